//! The brokers of this process, by name.

use super::model::profile::Profile;
use super::server::broker::{Broker, WeakBroker};
use super::url::check_name;
use crate::message::id::new_id;
use crate::time::clock::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A name in a URL has to find its broker without anything else in hand, as a port finds a server: the one thing in this
/// crate that is the whole process's.
static BROKERS: Mutex<BTreeMap<String, Registration>> = Mutex::new(BTreeMap::new());

/// How the name begins of a broker that was given none. No other does, so that a URL that has outlived its broker is told from one
/// that is to make a broker.
const UNNAMED: &str = "unnamed.";

enum Registration {
    /// Made by a URL: stays until the process ends, so that a service that connects again finds its queues.
    Kept(Broker),
    /// Made by a test: ends with its last handle and connection.
    Shared(WeakBroker),
}

impl Registration {
    fn broker(&self) -> Option<Broker> {
        match self {
            Self::Kept(broker) => Some(broker.clone()),
            Self::Shared(broker) => broker.upgrade(),
        }
    }
}

/// The broker of that name. If there is none yet it is made, on the system's time, and kept; unless somebody else had made it
/// without a name.
pub(crate) fn named(name: &str, profile: Option<Profile>) -> Result<Broker, String> {
    let mut brokers = BROKERS.lock();
    if let Some(broker) = brokers.get(name).and_then(Registration::broker) {
        return match profile {
            Some(profile) if profile != broker.profile() => Err(format!(
                "the embedded broker {name:?} runs with the profile {}, not {profile}",
                broker.profile()
            )),
            _ => Ok(broker),
        };
    }
    check_name(name)?;
    if name.starts_with(UNNAMED) {
        return Err(format!(
            "the embedded broker {name:?} has ended, with its last handle and connection: keep its MemoryBroker for as long \
             as anybody is to connect"
        ));
    }
    let broker = start(
        name.to_owned(),
        profile.unwrap_or_default(),
        SystemClock::shared(),
    )?;
    brokers.insert(name.to_owned(), Registration::Kept(broker.clone()));
    Ok(broker)
}

/// Makes a broker, of a name that nobody else has when none is given.
pub(crate) fn make(
    name: Option<String>,
    profile: Profile,
    clock: Arc<dyn Clock>,
) -> Result<Broker, String> {
    let name = match name {
        None => format!("{UNNAMED}{}", new_id()),
        Some(name) if name.starts_with(UNNAMED) => {
            return Err(format!(
                "only an embedded broker that is given no name has one that begins with {UNNAMED:?}"
            ));
        }
        Some(name) => name,
    };
    check_name(&name)?;
    let mut brokers = BROKERS.lock();
    brokers.retain(|_, entry| entry.broker().is_some());
    if brokers.contains_key(&name) {
        return Err(format!("there is an embedded broker {name:?} already"));
    }
    let broker = start(name.clone(), profile, clock)?;
    brokers.insert(name, Registration::Shared(broker.downgrade()));
    Ok(broker)
}

fn start(name: String, profile: Profile, clock: Arc<dyn Clock>) -> Result<Broker, String> {
    Broker::launch(name, profile, clock).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_broker_and_keeps_it() {
        let name = new_id();
        let first = named(&name, Some(Profile::V3_10)).unwrap();
        assert_eq!(first.profile(), Profile::V3_10);
        drop(first);
        assert_eq!(named(&name, None).unwrap().profile(), Profile::V3_10);
        let error = named(&name, Some(Profile::V4_0)).unwrap_err();
        assert!(error.contains("3.10"), "{error}");
        assert!(make(Some(name), Profile::V4_0, SystemClock::shared()).is_err());
    }

    #[test]
    fn what_a_test_made_ends_with_its_last_handle() {
        let name = new_id();
        let make = |profile| make(Some(name.clone()), profile, SystemClock::shared());
        let first = make(Profile::V3_10).unwrap();
        assert!(make(Profile::V4_0).is_err());
        assert_eq!(named(&name, None).unwrap().profile(), Profile::V3_10);
        drop(first);
        assert_eq!(make(Profile::V4_0).unwrap().profile(), Profile::V4_0);
    }

    #[test]
    fn a_broker_that_was_given_no_name_and_has_ended_is_made_by_nobody_again() {
        let broker = make(None, Profile::V4_0, SystemClock::shared()).unwrap();
        let name = broker.name().to_owned();
        assert!(named(&name, None).is_ok());
        drop(broker);
        let error = named(&name, None).unwrap_err();
        assert!(error.contains("has ended"), "{error}");
        // So it is not a name that one can choose either.
        assert!(make(Some(name), Profile::V4_0, SystemClock::shared()).is_err());
    }
}
