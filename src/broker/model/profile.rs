//! The version of RabbitMQ whose behaviour a broker has.

use std::fmt;
use std::str::FromStr;

/// The version of RabbitMQ that an embedded broker follows where versions differ.
///
/// They differ in the delivery limit of quorum queues, where quorum queues requeue messages, their
/// priorities, and whether an `x-death` header that a client published counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Profile {
    /// RabbitMQ 3.10: quorum queues have no delivery limit of their own.
    V3_10,
    /// RabbitMQ 4.0, the default: quorum queues have a delivery limit of 20.
    #[default]
    V4_0,
}

impl Profile {
    /// The default delivery limit of a quorum queue.
    pub(crate) fn delivery_limit(self) -> Option<u64> {
        match self {
            Self::V3_10 => None,
            Self::V4_0 => Some(20),
        }
    }

    /// The maximum size of a body, in bytes.
    pub(crate) fn max_message_size(self) -> usize {
        match self {
            Self::V3_10 => 128 << 20,
            Self::V4_0 => 16 << 20,
        }
    }
}

impl FromStr for Profile {
    type Err = String;

    fn from_str(version: &str) -> Result<Self, String> {
        match version {
            "3.10" => Ok(Self::V3_10),
            "4.0" => Ok(Self::V4_0),
            other => Err(format!(
                "the embedded broker has no profile {other:?}: it has 3.10 and 4.0"
            )),
        }
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V3_10 => "3.10",
            Self::V4_0 => "4.0",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_parses_from_its_version() {
        for profile in [Profile::V3_10, Profile::V4_0] {
            assert_eq!(profile.to_string().parse(), Ok(profile));
        }
        assert!("3.11".parse::<Profile>().is_err());
    }
}
