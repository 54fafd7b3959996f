//! The socket under amiquip: optional TLS, the frame guard, and the login.

use super::guard::{FrameMax, Guard};
use super::login::Login;
use crate::transport::Activity;
use amiquip::IoStream;
use mio::{Evented, Poll, PollOpt, Ready, Token};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A non-blocking stream, owned by amiquip's I/O thread.
#[derive(Debug)]
pub(super) struct Socket {
    wire: Wire,
    guard: Guard,
    activity: Activity,
    /// The login; `None` once it is sent.
    login: Option<Login>,
}

impl Socket {
    pub(super) fn plain(tcp: TcpStream, activity: Activity) -> Result<Self, String> {
        Ok(Self {
            wire: Wire {
                tcp: non_blocking(tcp)?,
                #[cfg(feature = "tls")]
                tls: None,
            },
            guard: Guard::new(activity.clone()),
            activity,
            login: None,
        })
    }

    /// Performs the TLS handshake, blocking until `limit`.
    #[cfg(feature = "tls")]
    pub(super) fn tls(
        tcp: TcpStream,
        config: std::sync::Arc<rustls::ClientConfig>,
        host: &str,
        limit: std::time::Instant,
        activity: Activity,
    ) -> Result<Self, String> {
        let session = super::tls::Session::handshake(&tcp, config, host, limit)?;
        Ok(Self {
            wire: Wire {
                tcp: non_blocking(tcp)?,
                tls: Some(session),
            },
            guard: Guard::new(activity.clone()),
            activity,
            login: None,
        })
    }

    /// Sets the login to send in place of the placeholder that amiquip sends.
    pub(super) fn log_in(&mut self, login: Login) {
        self.login = Some(login);
    }

    /// The negotiated `frame_max`. amiquip does not expose it, and the headers of a copy must fit
    /// it.
    pub(super) fn frame_max(&self) -> FrameMax {
        self.guard.frame_max()
    }
}

fn non_blocking(tcp: TcpStream) -> Result<mio::net::TcpStream, String> {
    mio::net::TcpStream::from_stream(tcp)
        .map_err(|error| format!("the socket could not be made non-blocking: {error}"))
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.guard.read(&mut self.wire, buffer)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.write_login_or(bytes)?;
        // A write of zero bytes is no sign of life.
        if written > 0 {
            self.activity.note_write();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }
}

impl Socket {
    fn write_login_or(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((filled, end)) = self.login.as_ref().and_then(|login| login.fill_in(bytes)) else {
            return self.wire.write(bytes);
        };
        let written = self.wire.write(&filled)?;
        // After a partial write the rest of the response follows with the next call.
        if written >= end {
            self.login = None;
        } else if let Some(login) = &mut self.login {
            login.wrote(written, end);
        }
        Ok(written)
    }
}

impl Evented for Socket {
    fn register(
        &self,
        poll: &Poll,
        token: Token,
        interest: Ready,
        options: PollOpt,
    ) -> io::Result<()> {
        self.wire.tcp.register(poll, token, interest, options)
    }

    fn reregister(
        &self,
        poll: &Poll,
        token: Token,
        interest: Ready,
        options: PollOpt,
    ) -> io::Result<()> {
        self.wire.tcp.reregister(poll, token, interest, options)
    }

    fn deregister(&self, poll: &Poll) -> io::Result<()> {
        self.wire.tcp.deregister(poll)
    }
}

impl IoStream for Socket {}

/// The plaintext side of the connection: the socket itself, or the TLS session over it.
#[derive(Debug)]
struct Wire {
    tcp: mio::net::TcpStream,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::Session>,
}

impl Read for Wire {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            return session.read(&mut self.tcp, buffer);
        }
        self.tcp.read(buffer)
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(session) = &mut self.tls {
            return session.write(&mut self.tcp, bytes);
        }
        self.tcp.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
    }
}
