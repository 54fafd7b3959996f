//! Keeps the password from amiquip, which logs the complete login it sends, at debug level.
//!
//! amiquip receives a placeholder of the same length, and the socket replaces it on the way out.

use super::url::Authentication;
use amiquip::Sasl;

/// The byte that fills the placeholder. It occurs in no text, and it differs from the byte after
/// the response on the wire, a length of 5.
const PLACEHOLDER: u8 = 1;

/// The login for amiquip, with a response as long as the real one.
#[derive(Clone, Debug, Default)]
pub(super) struct Placeholder {
    mechanism: &'static str,
    response_len: usize,
}

impl Sasl for Placeholder {
    fn mechanism(&self) -> String {
        self.mechanism.to_owned()
    }

    fn response(&self) -> String {
        char::from(PLACEHOLDER)
            .to_string()
            .repeat(self.response_len)
    }
}

/// The real response.
pub(super) struct Login {
    mechanism: &'static str,
    response: Vec<u8>,
    /// The number of bytes of `response` already written.
    sent: usize,
}

impl Login {
    pub(super) fn new(authentication: &Authentication) -> Self {
        let (mechanism, response) = match authentication {
            Authentication::Plain { user, password } => {
                ("PLAIN", format!("\0{user}\0{password}").into_bytes())
            }
            Authentication::External => ("EXTERNAL", Vec::new()),
        };
        Self {
            mechanism,
            response,
            sent: 0,
        }
    }

    pub(super) fn placeholder(&self) -> Placeholder {
        Placeholder {
            mechanism: self.mechanism,
            response_len: self.response.len(),
        }
    }

    /// Replaces the placeholder in `bytes` with the response; returns the result and the end of the
    /// response in it, or `None` if there is no placeholder.
    ///
    /// amiquip writes a frame from one buffer, so the placeholder is complete, or continues at the
    /// start of `bytes` after a partial write.
    pub(super) fn fill_in(&self, bytes: &[u8]) -> Option<(Vec<u8>, usize)> {
        let left = self
            .response
            .get(self.sent..)
            .filter(|left| !left.is_empty())?;
        let start = if self.sent > 0 {
            0
        } else {
            bytes
                .windows(left.len())
                // The last match: bytes before the placeholder, such as its length, may equal it.
                .rposition(|window| window.iter().all(|byte| *byte == PLACEHOLDER))?
        };
        let end = start + left.len();
        let mut filled = bytes.to_vec();
        filled.get_mut(start..end)?.copy_from_slice(left);
        Some((filled, end))
    }

    /// Records a partial write of `written` bytes, in which the response would end at `end`.
    pub(super) fn wrote(&mut self, written: usize, end: usize) {
        let missing = end.saturating_sub(written);
        self.sent = self.response.len().saturating_sub(missing).max(self.sent);
    }
}

impl std::fmt::Debug for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Login")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn login(password: &str) -> Login {
        Login::new(&Authentication::Plain {
            user: "me".to_owned(),
            password: password.to_owned(),
        })
    }

    /// A frame as amiquip writes it, with `response` in it and a preceding byte equal to the
    /// placeholder.
    fn frame(response: &[u8]) -> Vec<u8> {
        let length = (response.len() as u32).to_be_bytes();
        [
            b"\x01\0\0ct\x01\x05PLAIN",
            &length[..],
            response,
            b"\x05en_US\xCE",
        ]
        .concat()
    }

    #[test]
    fn response_is_complete_after_any_partial_writes() {
        // Lengths of 257 and 513 contain the placeholder byte, directly before the placeholder.
        for password in ["", "secret", &"p".repeat(253), &"p".repeat(509)] {
            let real = frame(format!("\0me\0{password}").as_bytes());
            let given = frame(login(password).placeholder().response().as_bytes());
            for size in 1..real.len() {
                let mut login = login(password);
                let (mut wire, mut rest) = (Vec::<u8>::new(), &given[..]);
                while !rest.is_empty() {
                    let written = size.min(rest.len());
                    match login.fill_in(rest) {
                        None => wire.extend(&rest[..written]),
                        Some((filled, end)) => {
                            wire.extend(&filled[..written]);
                            login.wrote(written, end);
                        }
                    }
                    rest = &rest[written..];
                }
                assert_eq!(wire, real, "{size}");
                assert!(login.fill_in(&given).is_none());
            }
        }
    }

    #[test]
    fn nothing_is_replaced_without_a_response() {
        let login = Login::new(&Authentication::External);
        assert_eq!(login.placeholder().mechanism(), "EXTERNAL");
        assert_eq!(login.placeholder().response(), "");
        assert!(login.fill_in(b"\x01\x01\x01").is_none());
    }

    #[test]
    fn no_output_shows_the_password() {
        let login = login("secret");
        let shown = format!(
            "{login:?} {:?} {}",
            login.placeholder(),
            login.placeholder().response()
        );
        assert!(!shown.contains("secret"), "{shown}");
    }
}
