//! The URLs of embedded brokers, `memory://`.

use super::model::profile::Profile;
use std::time::Duration;
use url::Url;

/// The default of AMQP URLs, too.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(10);

/// The parts of a `memory://` URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct MemoryUrl {
    pub(crate) name: String,
    pub(crate) profile: Option<Profile>,
    pub(crate) heartbeat: Duration,
    pub(crate) channel_max: Option<u16>,
    pub(crate) connection_timeout: Option<Duration>,
}

impl MemoryUrl {
    /// Parses a URL whose scheme is `memory`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text.trim()).map_err(|error| format!("invalid URL: {error}"))?;
        let name = url.host_str().unwrap_or_default();
        check_name(name)?;
        let has_more = !matches!(url.path(), "" | "/")
            || !url.username().is_empty()
            || url.password().is_some()
            || url.port().is_some()
            || url.fragment().is_some();
        if has_more {
            // The error does not repeat the URL, which may contain a password.
            return Err("a memory:// URL has a name and parameters, \
                 and no login, port, virtual host or fragment"
                .to_owned());
        }
        let mut parsed = Self {
            name: name.to_owned(),
            profile: None,
            heartbeat: DEFAULT_HEARTBEAT,
            channel_max: None,
            connection_timeout: None,
        };
        for (parameter, value) in url.query_pairs() {
            parsed.set(&parameter, &value)?;
        }
        Ok(parsed)
    }

    fn set(&mut self, parameter: &str, value: &str) -> Result<(), String> {
        let wrong = || format!("the URL's parameter {parameter} must be a whole number");
        match parameter {
            "profile" => self.profile = Some(value.parse()?),
            "heartbeat" => {
                let seconds: u16 = value.parse().map_err(|_| wrong())?;
                self.heartbeat = Duration::from_secs(seconds.into());
            }
            "channel_max" => self.channel_max = Some(value.parse().map_err(|_| wrong())?),
            "connection_timeout" => {
                let millis = value.parse().map_err(|_| wrong())?;
                self.connection_timeout = Some(Duration::from_millis(millis));
            }
            other => return Err(format!("unknown parameter {other:?} in the URL")),
        }
        Ok(())
    }
}

/// Fails for a name that is not valid in a URL.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.is_empty() || !name.chars().all(is_allowed) {
        return Err(format!(
            "the name of an embedded broker consists of letters, digits, '.', '_' and '-'; \
             {name:?} does not"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: &str) -> String {
        MemoryUrl::parse(url).unwrap_err()
    }

    #[test]
    fn name_and_parameters_are_parsed() {
        let url = "memory://orders-1?profile=3.10&heartbeat=2&channel_max=8&connection_timeout=500";
        let expected = MemoryUrl {
            name: "orders-1".to_owned(),
            profile: Some(Profile::V3_10),
            heartbeat: Duration::from_secs(2),
            channel_max: Some(8),
            connection_timeout: Some(Duration::from_millis(500)),
        };
        assert_eq!(MemoryUrl::parse(url), Ok(expected));
        let plain = MemoryUrl::parse("memory://Orders/").unwrap();
        assert_eq!((plain.name.as_str(), plain.profile), ("Orders", None));
    }

    #[test]
    fn errors_name_the_invalid_part() {
        for url in [
            "memory://",
            "memory:///",
            "memory://a%2fb",
            "memory://two words",
        ] {
            assert!(!error(url).is_empty(), "{url}");
        }
        assert!(error("memory://a?profile=5").contains("3.10 and 4.0"));
        assert!(error("memory://a?heartbeat=soon").contains("heartbeat"));
        assert!(error("memory://a?vhost=x").contains("vhost"));
        let login = error("memory://guest:secret@a/x");
        assert!(login.contains("no login") && !login.contains("secret"));
    }
}
