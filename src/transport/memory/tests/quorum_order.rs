//! In which order a quorum queue takes and hands out messages, as the comparison with real brokers has shown.

use super::*;

fn put(channel: &dyn Channel, queue: &str, body: &str, priority: u8) {
    let mut message = message("", queue, body);
    message.properties.priority = Some(priority);
    channel.publish(&message).unwrap();
}

fn pull(channel: &dyn Channel, queue: &str) -> String {
    text(&channel.pull(queue).unwrap().expect("nothing is ready"))
}

#[test]
fn a_purge_makes_a_quorum_queue_count_anew_to_its_oldest_message() {
    for (purges, first) in [(false, "normal"), (true, "high")] {
        let broker = broker_of(Profile::V4_0);
        let mut link = dial(&broker);
        let channel = channel(&mut link);
        channel.declare(&quorum("q")).unwrap();
        for body in ["a", "b"] {
            put(&*channel, "q", body, 0);
            assert_eq!(pull(&*channel, "q"), body);
        }
        if purges {
            assert_eq!(broker.purge("q").unwrap(), 0);
        }
        put(&*channel, "q", "normal", 0);
        put(&*channel, "q", "high", 5);
        assert_eq!(pull(&*channel, "q"), first, "purged: {purges}");
    }
}
