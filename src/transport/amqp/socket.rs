//! The socket under amiquip: ours, so that it has TCP_NODELAY, a kill switch, and TLS where it is asked for.

use super::login::Login;
use super::tune::{FrameMax, TuneWatch};
use amiquip::IoStream;
use mio::{Evented, Poll, PollOpt, Ready, Token};
use std::io::{self, Read, Write};
use std::net::TcpStream;

/// A non-blocking stream for amiquip's I/O thread.
#[derive(Debug)]
pub(super) struct Socket {
    tcp: mio::net::TcpStream,
    tune: TuneWatch,
    /// Until it has been sent.
    login: Option<Login>,
    #[cfg(feature = "tls")]
    tls: Option<super::tls::Session>,
}

impl Socket {
    pub(super) fn plain(tcp: TcpStream) -> Result<(Self, FrameMax), String> {
        let (tune, frame_max) = TuneWatch::new();
        let socket = Self {
            tcp: non_blocking(tcp)?,
            tune,
            login: None,
            #[cfg(feature = "tls")]
            tls: None,
        };
        Ok((socket, frame_max))
    }

    /// Makes the TLS handshake before anything else is sent.
    #[cfg(feature = "tls")]
    pub(super) fn tls(
        tcp: TcpStream,
        config: std::sync::Arc<rustls::ClientConfig>,
        host: &str,
        limit: std::time::Instant,
    ) -> Result<(Self, FrameMax), String> {
        let session = super::tls::Session::handshake(&tcp, config, host, limit)?;
        let (tune, frame_max) = TuneWatch::new();
        Ok((
            Self {
                tcp: non_blocking(tcp)?,
                tune,
                login: None,
                tls: Some(session),
            },
            frame_max,
        ))
    }

    /// Sends `login` where amiquip, which does not know it, sends its stand-in.
    pub(super) fn log_in(&mut self, login: Login) {
        self.login = Some(login);
    }

    #[cfg(feature = "tls")]
    fn write_wire(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(session) => session.write(&mut self.tcp, bytes),
            None => self.tcp.write(bytes),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn write_wire(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.tcp.write(bytes)
    }

    #[cfg(feature = "tls")]
    fn read_wire(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            Some(session) => session.read(&mut self.tcp, buffer),
            None => self.tcp.read(buffer),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn read_wire(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.tcp.read(buffer)
    }
}

fn non_blocking(tcp: TcpStream) -> Result<mio::net::TcpStream, String> {
    mio::net::TcpStream::from_stream(tcp)
        .map_err(|error| format!("the socket could not be made non-blocking: {error}"))
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_wire(buffer)?;
        self.tune.observe(&buffer[..read])?;
        Ok(read)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some((filled, end)) = self.login.as_ref().and_then(|login| login.fill_in(bytes)) else {
            return self.write_wire(bytes);
        };
        let written = self.write_wire(&filled)?;
        if written >= end {
            self.login = None;
        } else if let Some(login) = &mut self.login {
            login.wrote(written, end);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.tcp.flush()
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
        self.tcp.register(poll, token, interest, options)
    }

    fn reregister(
        &self,
        poll: &Poll,
        token: Token,
        interest: Ready,
        options: PollOpt,
    ) -> io::Result<()> {
        self.tcp.reregister(poll, token, interest, options)
    }

    fn deregister(&self, poll: &Poll) -> io::Result<()> {
        self.tcp.deregister(poll)
    }
}

impl IoStream for Socket {}
