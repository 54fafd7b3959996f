//! The embedded brokers of this process, by name.

use super::model::profile::Profile;
use super::server::broker::{Broker, WeakBroker};
use super::url::check_name;
use crate::message::wire::new_id;
use crate::time::clock::{Clock, SystemClock};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The registry. It is the only global of the crate: a URL finds its broker by name alone, as a
/// port finds a server.
///
/// Its lock is taken before that of a broker, and held while a broker starts, so that two threads
/// do not start the same one.
static BROKERS: Mutex<BTreeMap<String, Registration>> = Mutex::new(BTreeMap::new());

/// The prefix of the names of brokers that were given none. Chosen names cannot have it, which
/// tells a URL that has outlived its broker from a URL that creates one.
const UNNAMED: &str = "unnamed.";

enum Registration {
    /// Created by a URL. The broker stays until the process ends, so that a service that connects
    /// again finds its queues.
    Kept(Broker),
    /// Created by a test. The broker ends with its last handle and connection.
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

/// The broker of that name. A missing broker is created on the system's clock and kept, unless the
/// name is that of an unnamed broker that has ended.
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
            "the embedded broker {name:?} has ended with its last handle and connection: keep its \
             MemoryBroker for as long as connections are opened"
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

/// Creates a broker. Without a name it is given a unique one.
pub(crate) fn make(
    name: Option<String>,
    profile: Profile,
    clock: Arc<dyn Clock>,
) -> Result<Broker, String> {
    let name = match name {
        None => format!("{UNNAMED}{}", new_id()),
        Some(name) if name.starts_with(UNNAMED) => {
            return Err(format!(
                "the name of an embedded broker must not begin with {UNNAMED:?}"
            ));
        }
        Some(name) => name,
    };
    check_name(&name)?;
    let mut brokers = BROKERS.lock();
    // Ended brokers leave their entries behind; this is the place that removes them.
    brokers.retain(|_, entry| entry.broker().is_some());
    if brokers.contains_key(&name) {
        return Err(format!("an embedded broker {name:?} exists already"));
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
    fn named_broker_outlives_its_handles() {
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
    fn created_broker_ends_with_its_last_handle() {
        let name = new_id();
        let make = |profile| make(Some(name.clone()), profile, SystemClock::shared());
        let first = make(Profile::V3_10).unwrap();
        assert!(make(Profile::V4_0).is_err());
        assert_eq!(named(&name, None).unwrap().profile(), Profile::V3_10);
        drop(first);
        assert_eq!(make(Profile::V4_0).unwrap().profile(), Profile::V4_0);
    }

    #[test]
    fn ended_unnamed_broker_is_not_created_again() {
        let broker = make(None, Profile::V4_0, SystemClock::shared()).unwrap();
        let name = broker.name().to_owned();
        assert!(named(&name, None).is_ok());
        drop(broker);
        let error = named(&name, None).unwrap_err();
        assert!(error.contains("has ended"), "{error}");
        // The prefix is reserved, so the name cannot be chosen either.
        assert!(make(Some(name), Profile::V4_0, SystemClock::shared()).is_err());
    }
}
