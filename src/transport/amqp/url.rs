//! Parses `amqp://` and `amqps://` URLs. No error and no output shows the password.
//!
//! amiquip has a parser too, but its errors contain the URL with the password.

use crate::naming;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::time::Duration;
use url::{ParseError, Url};

/// The default heartbeat timeout in seconds. A dead peer is detected within twice this time.
const DEFAULT_HEARTBEAT: u16 = 10;

/// A parsed broker URL. `Debug` shows no credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BrokerUrl {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) virtual_host: String,
    pub(crate) authentication: Authentication,
    /// The heartbeat timeout in seconds; 0 turns heartbeats off.
    pub(crate) heartbeat: u16,
    /// The maximum number of channels; 0 accepts the limit of the broker.
    pub(crate) channel_max: u16,
    pub(crate) connection_timeout: Option<Duration>,
}

/// The login. `Display` and `Debug` show the user, never the password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Authentication {
    Plain { user: String, password: String },
    External,
}

impl fmt::Display for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain { user, .. } => write!(f, "user {user}"),
            Self::External => f.write_str("the client certificate"),
        }
    }
}

impl fmt::Debug for Authentication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An invalid broker URL. The text names the invalid part and does not show the URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlError(String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl BrokerUrl {
    pub(crate) fn parse(text: &str) -> Result<Self, UrlError> {
        let text = text.trim();
        let url = Url::parse(text).map_err(|error| {
            let hint = match error {
                ParseError::RelativeUrlWithoutBase => {
                    "; it must begin with amqp://, amqps:// or memory://"
                }
                ParseError::InvalidPort => {
                    "; special characters in a password must be percent-encoded"
                }
                _ => "",
            };
            UrlError(format!("the URL is invalid: {error}{hint}"))
        })?;
        let tls = match url.scheme() {
            "amqp" => false,
            "amqps" => true,
            other => {
                return Err(UrlError(format!(
                    "the scheme of the URL is {other:?}; it must be amqp, amqps or memory"
                )));
            }
        };
        let host = match url.host_str() {
            None | Some("") => "localhost".to_owned(),
            Some(host) => decode("host", host.trim_start_matches('[').trim_end_matches(']'))?,
        };
        // An unescaped # in a password would cut the URL short without notice.
        if url.fragment().is_some() {
            return Err(UrlError("a # in the URL must be written %23".to_owned()));
        }
        let mut parsed = Self {
            tls,
            host,
            port: url.port().unwrap_or(if tls { 5671 } else { 5672 }),
            virtual_host: virtual_host(text)?,
            authentication: credentials(&url)?,
            heartbeat: DEFAULT_HEARTBEAT,
            channel_max: 0,
            connection_timeout: None,
        };
        for (name, value) in url.query_pairs() {
            parsed.set_parameter(&name, &value)?;
        }
        Ok(parsed)
    }

    /// Host and port, without credentials.
    pub(crate) fn address(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The same login at another `host[:port]`.
    pub(crate) fn at(&self, address: &str) -> Result<Self, UrlError> {
        // A login is not allowed here. If there is one, the error must not show it.
        let shown = address.rsplit('@').next().unwrap_or_default();
        let wrong = || UrlError(format!("{shown:?} is not host or host:port"));
        let url = Url::parse(&format!("amqp://{address}")).map_err(|_| wrong())?;
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or_else(wrong)?;
        if !url.username().is_empty() || url.password().is_some() || !matches!(url.path(), "" | "/")
        {
            return Err(UrlError(
                "a further host must be host or host:port".to_owned(),
            ));
        }
        let host = decode("host", host.trim_start_matches('[').trim_end_matches(']'))?;
        Ok(Self {
            host,
            // Nodes of one cluster usually share a port.
            port: url.port().unwrap_or(self.port),
            ..self.clone()
        })
    }

    fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let wrong =
            |wants: &str| UrlError(format!("the parameter {name} of the URL must be {wants}"));
        match name {
            "heartbeat" => {
                self.heartbeat = value
                    .parse()
                    .map_err(|_| wrong("seconds from 0 to 65535"))?
            }
            "channel_max" => {
                self.channel_max = value
                    .parse()
                    .map_err(|_| wrong("a number from 0 to 65535"))?
            }
            "connection_timeout" => {
                let millis = value
                    .parse()
                    .map_err(|_| wrong("a number of milliseconds"))?;
                self.connection_timeout = Some(Duration::from_millis(millis));
            }
            "auth_mechanism" if value == "external" => {
                self.authentication = Authentication::External
            }
            "auth_mechanism" => return Err(wrong("external")),
            other
                if other
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) =>
            {
                return Err(UrlError(format!(
                    "the URL has an unknown parameter {other:?}"
                )));
            }
            // After an unescaped question mark in a password, this may be the rest of the password.
            _ => {
                return Err(UrlError(
                    "the URL has an unknown parameter; a ? in a login must be written %3f"
                        .to_owned(),
                ));
            }
        }
        Ok(())
    }
}

impl fmt::Debug for BrokerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BrokerUrl")
            .field("address", &self.address())
            .field("virtual_host", &self.virtual_host)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

/// The virtual host. No path and a single slash mean the default one, `/`.
///
/// Taken from the text of the URL, because a parsed path would drop a virtual host named `.` or
/// `..`.
fn virtual_host(text: &str) -> Result<String, UrlError> {
    let behind_scheme = text.split_once("://").map_or("", |(_, rest)| rest);
    let before_query = behind_scheme.split('?').next().unwrap_or_default();
    let path = before_query.split_once('/').map_or("", |(_, path)| path);
    if path.contains('/') {
        return Err(UrlError(
            "a slash in the virtual host of the URL must be written %2f".to_owned(),
        ));
    }
    if path.is_empty() {
        return Ok("/".to_owned());
    }
    let name = decode("virtual host", path)?;
    naming::check("virtual host", &name).map_err(|error| UrlError(error.to_string()))?;
    Ok(name)
}

fn credentials(url: &Url) -> Result<Authentication, UrlError> {
    let user = if url.username().is_empty() {
        "guest".to_owned()
    } else {
        decode("user", url.username())?
    };
    // RabbitMQ predefines the user guest with this password.
    let password = url.password().map_or_else(
        || Ok("guest".to_owned()),
        |password| decode("password", password),
    )?;
    Ok(Authentication::Plain { user, password })
}

fn decode(what: &str, text: &str) -> Result<String, UrlError> {
    percent_decode_str(text)
        .decode_utf8()
        .map(|text| text.into_owned())
        .map_err(|_| UrlError(format!("the {what} of the URL is not UTF-8 after decoding")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> BrokerUrl {
        BrokerUrl::parse(url).unwrap()
    }

    fn plain(user: &str, password: &str) -> Authentication {
        Authentication::Plain {
            user: user.to_owned(),
            password: password.to_owned(),
        }
    }

    #[test]
    fn defaults_match_the_broker() {
        let url = parse("amqp://");
        assert_eq!(
            (url.host.as_str(), url.port, url.virtual_host.as_str()),
            ("localhost", 5672, "/")
        );
        assert_eq!(url.authentication, plain("guest", "guest"));
        assert_eq!(parse("amqps://broker").port, 5671);
        assert_eq!(parse("amqp://broker/").virtual_host, "/");
    }

    #[test]
    fn every_part_is_decoded() {
        let url = parse(
            "amqp://us%61er:p%40ss%3A%2F@[::1]:5673/v%2Fhost\
             ?heartbeat=3&channel_max=8&connection_timeout=250",
        );
        assert_eq!(url.authentication, plain("usaer", "p@ss:/"));
        assert_eq!(url.address(), "[::1]:5673");
        assert_eq!(url.virtual_host, "v/host");
        assert_eq!((url.heartbeat, url.channel_max), (3, 8));
        assert_eq!(url.connection_timeout, Some(Duration::from_millis(250)));
        assert_eq!(
            parse("amqp://h?auth_mechanism=external").authentication,
            Authentication::External
        );
    }

    #[test]
    fn virtual_host_is_not_a_path() {
        for (path, name) in [
            ("/.", "."),
            ("/%2e%2E", ".."),
            ("/a%2f..", "a/.."),
            ("/v?heartbeat=1", "v"),
        ] {
            let url = format!("amqp://h{path}");
            assert_eq!(parse(&url).virtual_host, name);
        }
        assert_eq!(parse("amqp://h?heartbeat=1").virtual_host, "/");
        let long = format!("amqp://h/{}", "v".repeat(256));
        assert!(BrokerUrl::parse(&long).is_err());
    }

    #[test]
    fn further_hosts_keep_the_login() {
        let first = parse("amqp://user:secret@one:5673/orders");
        let second = first.at("two:5674").unwrap();
        assert_eq!(
            (second.address().as_str(), second.virtual_host.as_str()),
            ("two:5674", "orders")
        );
        assert_eq!(second.authentication, first.authentication);
        assert_eq!(first.at("two").unwrap().port, 5673);
        assert!(first.at("").is_err());
        for address in [
            "user:other@two",
            "user:other@two:99999",
            "amqp://user:other@two",
        ] {
            let error = first.at(address).unwrap_err().to_string();
            assert!(!error.contains("other"), "{error}");
        }
    }

    #[test]
    fn errors_name_the_part_and_hide_the_url() {
        for (url, part) in [
            ("http://user:secret@h", "scheme"),
            ("amqp://user:secret@h/a/b", "virtual host"),
            ("amqp://user:secret@h?heartbeat=secret", "heartbeat"),
            ("amqp://user:secret@h?frame_max=1", "frame_max"),
            (
                "amqp://user:secret@h?auth_mechanism=plain",
                "auth_mechanism",
            ),
            ("amqp://user:secret@h:99999", "port"),
            ("amqp://user:p/secret@h", "percent-encoded"),
            ("//user:secret@h", "begin with amqp://"),
            ("amqp://user:%FFsecret@h", "password"),
            ("amqp://user:1?secret@h", "parameter"),
            ("amqp://user:1#secret@h", "#"),
        ] {
            let error = BrokerUrl::parse(url).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn debug_output_hides_the_password() {
        let shown = format!("{:?}", parse("amqp://user:secret@h"));
        assert!(
            shown.contains("h:5672") && !shown.contains("secret"),
            "{shown}"
        );
    }
}
