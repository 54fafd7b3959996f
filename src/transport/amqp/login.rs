//! Keeps the password out of amiquip's hands: it logs the whole login that it sends, at debug.

use super::url::Authentication;
use amiquip::Sasl;

/// What the stand-in is made of. No text holds it, and what follows the response on the wire (a length of 5) differs.
const STAND_IN: u8 = 1;

/// What amiquip is given to log in with, as long as the real response.
#[derive(Clone, Debug, Default)]
pub(super) struct StandIn {
    mechanism: &'static str,
    response_len: usize,
}

impl Sasl for StandIn {
    fn mechanism(&self) -> String {
        self.mechanism.to_owned()
    }

    fn response(&self) -> String {
        char::from(STAND_IN).to_string().repeat(self.response_len)
    }
}

/// The real response, until it has been sent.
pub(super) struct Login {
    mechanism: &'static str,
    response: Vec<u8>,
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

    pub(super) fn stand_in(&self) -> StandIn {
        StandIn {
            mechanism: self.mechanism,
            response_len: self.response.len(),
        }
    }

    /// `bytes` with the response in place of its stand-in, and where in them the response ends; `None` when it is not in
    /// them. amiquip writes a frame from one buffer, so the stand-in is there whole, or from where the last write ended.
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
                .rposition(|window| window.iter().all(|byte| *byte == STAND_IN))?
        };
        let end = start + left.len();
        let mut filled = bytes.to_vec();
        filled.get_mut(start..end)?.copy_from_slice(left);
        Some((filled, end))
    }

    /// Takes note that of bytes in which the response ends at `end` only so many were written.
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

    /// What amiquip writes, with `response` in it, and a one before it that belongs to something else.
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
    fn the_response_goes_out_whole_however_the_writes_are_cut() {
        // 257 and 513 bytes have ones in their length, right before the stand-in.
        for password in ["", "secret", &"p".repeat(253), &"p".repeat(509)] {
            let real = frame(format!("\0me\0{password}").as_bytes());
            let given = frame(login(password).stand_in().response().as_bytes());
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
    fn nothing_is_filled_in_without_a_response() {
        let login = Login::new(&Authentication::External);
        assert_eq!(login.stand_in().mechanism(), "EXTERNAL");
        assert_eq!(login.stand_in().response(), "");
        assert!(login.fill_in(b"\x01\x01\x01").is_none());
    }

    #[test]
    fn no_output_shows_the_password() {
        let login = login("secret");
        let shown = format!(
            "{login:?} {:?} {}",
            login.stand_in(),
            login.stand_in().response()
        );
        assert!(!shown.contains("secret"), "{shown}");
    }
}
