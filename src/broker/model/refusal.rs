//! The errors with which RabbitMQ closes a channel or a connection, in its own words.

/// The reason for which the broker closes a channel or a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    /// AMQP's reply code.
    pub(crate) code: u16,
    /// The broker's text.
    pub(crate) text: String,
}

impl Refusal {
    pub(crate) fn access_refused(why: impl AsRef<str>) -> Self {
        Self::new(403, "ACCESS_REFUSED", why.as_ref())
    }

    pub(crate) fn not_found(why: impl AsRef<str>) -> Self {
        Self::new(404, "NOT_FOUND", why.as_ref())
    }

    pub(crate) fn resource_locked(why: impl AsRef<str>) -> Self {
        Self::new(405, "RESOURCE_LOCKED", why.as_ref())
    }

    pub(crate) fn precondition_failed(why: impl AsRef<str>) -> Self {
        Self::new(406, "PRECONDITION_FAILED", why.as_ref())
    }

    pub(crate) fn not_implemented(why: impl AsRef<str>) -> Self {
        Self::new(540, "NOT_IMPLEMENTED", why.as_ref())
    }

    /// The refusal to use a queue that is exclusive to another connection.
    pub(crate) fn locked_queue(name: &str) -> Self {
        Self::resource_locked(format!(
            "cannot obtain exclusive access to locked {}. It could be originally declared on \
             another connection or the exclusive property value does not match that of the \
             original declaration.",
            queue(name)
        ))
    }

    /// A refusal with a code that a test chose.
    pub(crate) fn with_code(code: u16, why: &str) -> Self {
        let name = match code {
            403 => "ACCESS_REFUSED",
            404 => "NOT_FOUND",
            405 => "RESOURCE_LOCKED",
            406 => "PRECONDITION_FAILED",
            540 => "NOT_IMPLEMENTED",
            _ => "INTERNAL_ERROR",
        };
        Self::new(code, name, why)
    }

    /// Whether the code is hard and closes the connection; soft codes close a channel.
    pub(crate) fn ends_link(&self) -> bool {
        matches!(self.code, 320 | 402 | 501..=506 | 530 | 540 | 541)
    }

    fn new(code: u16, name: &str, why: &str) -> Self {
        let mut text = format!("{name} - {why}");
        // The reply text is a short string, of at most 255 bytes.
        text.truncate(text.floor_char_boundary(255));
        Self { code, text }
    }
}

/// The name of a queue in RabbitMQ's texts.
pub(crate) fn queue(name: &str) -> String {
    format!("queue '{name}' in vhost '/'")
}

/// The name of an exchange in RabbitMQ's texts.
pub(crate) fn exchange(name: &str) -> String {
    format!("exchange '{name}' in vhost '/'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_truncated_to_a_short_string() {
        let refusal = Refusal::not_found("ä".repeat(200));
        assert_eq!(refusal.text.len(), 254, "the last ä does not fit");
    }
}
