//! Reads `amqp://` URLs. amiquip would too, but its errors show the URL with the password in it.

use crate::naming;
use percent_encoding::percent_decode_str;
use std::fmt;
use std::time::Duration;
use url::{ParseError, Url};

/// Seconds between heartbeats unless the URL or the builder says otherwise: a dead peer is noticed in twice that.
const DEFAULT_HEARTBEAT: u16 = 10;

/// Where a broker is and how to log in there. Shows no password in any output.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct BrokerUrl {
    pub(crate) tls: bool,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) virtual_host: String,
    pub(crate) authentication: Authentication,
    /// In seconds; 0 turns heartbeats off.
    pub(crate) heartbeat: u16,
    /// 0 takes the broker's limit.
    pub(crate) channel_max: u16,
    pub(crate) connection_timeout: Option<Duration>,
}

/// How to log in. Its output names the user and never the password.
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

/// What is wrong with a broker URL. It names the part that is wrong, and never shows the URL.
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
                    "; it begins with amqp://, amqps:// or memory://"
                }
                ParseError::InvalidPort => {
                    "; special characters in a password are written percent-encoded"
                }
                _ => "",
            };
            UrlError(format!("the URL cannot be read: {error}{hint}"))
        })?;
        let tls = match url.scheme() {
            "amqp" => false,
            "amqps" => true,
            other => {
                return Err(UrlError(format!(
                    "the URL's scheme is {other:?}, not amqp or amqps, and it does not begin with memory://"
                )));
            }
        };
        let host = match url.host_str() {
            None | Some("") => "localhost".to_owned(),
            Some(host) => decode("host", host.trim_start_matches('[').trim_end_matches(']'))?,
        };
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
        // A login does not belong here, and must not be shown when somebody wrote one all the same.
        let shown = address.rsplit('@').next().unwrap_or_default();
        let wrong = || UrlError(format!("{shown:?} is no host or host:port"));
        let url = Url::parse(&format!("amqp://{address}")).map_err(|_| wrong())?;
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or_else(wrong)?;
        if !url.username().is_empty() || url.password().is_some() || !matches!(url.path(), "" | "/")
        {
            return Err(UrlError(
                "a further host takes only host or host:port".to_owned(),
            ));
        }
        let host = decode("host", host.trim_start_matches('[').trim_end_matches(']'))?;
        Ok(Self {
            host,
            port: url.port().unwrap_or(self.port),
            ..self.clone()
        })
    }

    fn set_parameter(&mut self, name: &str, value: &str) -> Result<(), UrlError> {
        let wrong = |wants: &str| UrlError(format!("the URL's parameter {name} must be {wants}"));
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
            "auth_mechanism" => return Err(wrong("external, when it is given")),
            other
                if other
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c)) =>
            {
                return Err(UrlError(format!(
                    "the URL's parameter {other:?} is not known"
                )));
            }
            // Behind an unescaped question mark in it, this is the rest of a password.
            _ => {
                return Err(UrlError(
                    "the URL has a parameter that is not known; a ? in a login must be written %3f"
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

/// No path, or a single slash, is the broker's default virtual host, `/`. Taken from the text: parsed as a path, a virtual
/// host named `.` or `..` would be left out.
fn virtual_host(text: &str) -> Result<String, UrlError> {
    let behind_scheme = text.split_once("://").map_or("", |(_, rest)| rest);
    let before_query = behind_scheme.split('?').next().unwrap_or_default();
    let path = before_query.split_once('/').map_or("", |(_, path)| path);
    if path.contains('/') {
        return Err(UrlError(
            "a slash inside the URL's virtual host must be written %2f".to_owned(),
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
        .map_err(|_| UrlError(format!("the URL's {what} is not UTF-8 once decoded")))
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
    fn defaults_are_the_brokers_own() {
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
            "amqp://us%61er:p%40ss%3A%2F@[::1]:5673/v%2Fhost?heartbeat=3&channel_max=8&connection_timeout=250",
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
    fn a_virtual_host_is_no_path() {
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
            ("//user:secret@h", "begins with amqp://"),
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
