//! The transport over a socket, implemented with amiquip.
//!
//! The socket is this crate's: it sets `TCP_NODELAY`, has a kill switch, adds TLS, and filters what
//! amiquip cannot handle. No type of amiquip leaves this module.

mod channel;
mod guard;
mod login;
mod socket;
mod table;
#[cfg(feature = "tls")]
pub(crate) mod tls;
mod url;

pub(crate) use url::BrokerUrl;

use super::{Activity, Channel, Dialled, Failure, Gone, KillSwitch, Link, LinkEvent, Transport};
use crate::time::instant::monotonic;
use amiquip::{
    Connection, ConnectionBlockedNotification, ConnectionOptions, ConnectionTuning, Error,
};
use channel::AmqpChannel;
use crossbeam_channel::{Receiver, Select, TryRecvError};
use login::Login;
use socket::Socket;
use std::net::{TcpStream, ToSocketAddrs};
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The number of writes a channel may queue for amiquip's I/O thread before its owner blocks.
/// Enough for pipelining, and few enough to bound the memory for large bodies.
const WRITES_IN_FLIGHT: usize = 128;

/// The address of one broker and the login for it.
#[derive(Debug)]
pub(crate) struct AmqpTransport {
    pub(crate) url: BrokerUrl,
    /// The description of this client in the management UI of the broker.
    pub(crate) information: String,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Transport for AmqpTransport {
    fn dial(&self, limit: Instant, armed: &dyn Fn(KillSwitch)) -> Result<Dialled, String> {
        let tcp = self.connect(limit)?;
        let kill = kill_switch(&tcp)?;
        // From here on the dialler can abort the TLS handshake and the login.
        armed(kill.clone());
        let activity = Activity::new(Duration::from_secs(self.url.heartbeat.into()));
        let socket = self.socket(tcp, limit, activity.clone())?;
        let frame_max = socket.frame_max();
        let mut connection = self.log_in(socket, limit)?;
        let blocked = connection
            .listen_for_connection_blocked()
            .map_err(|error| {
                format!(
                    "the connection was lost right after the login: {}",
                    describe(&error)
                )
            })?;
        Ok(Dialled {
            link: Box::new(AmqpLink {
                connection,
                blocked,
            }),
            kill,
            frame_max: frame_max.get(),
            activity,
        })
    }

    fn address(&self) -> String {
        self.url.address()
    }
}

impl AmqpTransport {
    fn connect(&self, limit: Instant) -> Result<TcpStream, String> {
        let addresses = (self.url.host.as_str(), self.url.port)
            .to_socket_addrs()
            .map_err(|error| format!("the host name could not be resolved: {error}"))?;
        // Every address is tried; the error is that of the last one.
        let mut last = "the host name has no address".to_owned();
        for address in addresses {
            let left = limit.saturating_duration_since(monotonic());
            if left.is_zero() {
                return Err("no connection within the limit".to_owned());
            }
            match TcpStream::connect_timeout(&address, left) {
                Ok(tcp) => {
                    // amiquip writes one publish in three pieces, which Nagle's algorithm delays by
                    // 40 ms.
                    tcp.set_nodelay(true)
                        .map_err(|error| format!("TCP_NODELAY could not be set: {error}"))?;
                    return Ok(tcp);
                }
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    #[cfg(feature = "tls")]
    fn socket(&self, tcp: TcpStream, limit: Instant, activity: Activity) -> Result<Socket, String> {
        match &self.tls {
            Some(config) => Socket::tls(tcp, config.clone(), &self.url.host, limit, activity),
            None => Socket::plain(tcp, activity),
        }
    }

    #[cfg(not(feature = "tls"))]
    fn socket(
        &self,
        tcp: TcpStream,
        _limit: Instant,
        activity: Activity,
    ) -> Result<Socket, String> {
        Socket::plain(tcp, activity)
    }

    fn log_in(&self, mut socket: Socket, limit: Instant) -> Result<Connection, String> {
        let login = Login::new(&self.url.authentication);
        let options = ConnectionOptions::default()
            .auth(login.placeholder())
            .virtual_host(self.url.virtual_host.clone())
            .heartbeat(self.url.heartbeat)
            .channel_max(self.url.channel_max)
            .information(Some(self.information.clone()))
            .connection_timeout(Some(
                limit
                    .saturating_duration_since(monotonic())
                    .max(Duration::from_millis(1)),
            ));
        // amiquip sends the placeholder; the socket replaces it.
        socket.log_in(login);
        let tuning = ConnectionTuning::default().mem_channel_bound(WRITES_IN_FLIGHT);
        Connection::insecure_open_stream(socket, options, tuning).map_err(|error| match error {
            Error::InvalidCredentials => format!(
                "the broker refused the credentials of {}, \
                 or closed the connection while it checked them",
                self.url.authentication
            ),
            Error::UnexpectedSocketClose => {
                format!("{}; is that a RabbitMQ port?", describe(&error))
            }
            other => describe(&other),
        })
    }
}

/// Shuts the socket down in both directions, which ends every blocked call on it.
fn kill_switch(tcp: &TcpStream) -> Result<KillSwitch, String> {
    let handle = tcp
        .try_clone()
        .map_err(|error| format!("the socket could not be shared: {error}"))?;
    Ok(KillSwitch::new(move || {
        // Fails only if the socket is already closed.
        let _ = handle.shutdown(std::net::Shutdown::Both);
    }))
}

#[derive(Debug)]
struct AmqpLink {
    connection: Connection,
    blocked: Receiver<ConnectionBlockedNotification>,
}

impl Link for AmqpLink {
    fn open_channel(&mut self) -> Result<Box<dyn Channel>, Failure> {
        let channel = self.connection.open_channel(None).map_err(failure)?;
        Ok(Box::new(AmqpChannel::new(channel)))
    }

    fn watch<'s>(&'s self, select: &mut Select<'s>) -> usize {
        select.recv(&self.blocked)
    }

    fn next_event(&self) -> Result<Option<LinkEvent>, Gone> {
        match self.blocked.try_recv() {
            Ok(ConnectionBlockedNotification::Blocked(reason)) => {
                Ok(Some(LinkEvent::Blocked(reason)))
            }
            Ok(ConnectionBlockedNotification::Unblocked) => Ok(Some(LinkEvent::Unblocked)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(Gone),
        }
    }

    fn close(self: Box<Self>) -> Result<(), String> {
        self.connection.close().map_err(|error| describe(&error))
    }
}

/// Converts an error of amiquip to a failure of the seam.
fn failure(error: Error) -> Failure {
    match error {
        Error::ServerClosedChannel { code, message, .. } => Failure::Refused {
            code,
            text: message,
        },
        Error::ExhaustedChannelIds => Failure::NoChannelLeft,
        other => Failure::Lost(describe(&other)),
    }
}

/// An error of amiquip in this library's words; reply texts of the broker and errors of the
/// operating system are kept.
///
/// amiquip's errors about URLs show the URL with its password. amiquip is never given a URL, and
/// the last arm shows none.
fn describe(error: &Error) -> String {
    match error {
        Error::ServerClosedConnection { code, message } => {
            format!("the broker closed the connection: {code} {message}")
        }
        Error::ServerClosedChannel { code, message, .. } => {
            format!("the broker closed the channel: {code} {message}")
        }
        Error::ClientClosedConnection => "the connection is closed".to_owned(),
        Error::ClientClosedChannel => "the channel is closed".to_owned(),
        Error::UnexpectedSocketClose => "the socket was closed".to_owned(),
        Error::IoErrorReadingSocket { source } => {
            format!("reading from the socket failed: {source}")
        }
        Error::IoErrorWritingSocket { source } => format!("writing to the socket failed: {source}"),
        Error::MissedServerHeartbeats => "the broker missed its heartbeats".to_owned(),
        Error::InvalidCredentials => "the broker refused the credentials".to_owned(),
        Error::ConnectionTimeout => "no connection within the limit".to_owned(),
        Error::SaslSecureNotSupported => {
            "the broker asked for a second login step (connection.secure), \
             which is not supported"
                .to_owned()
        }
        Error::UnsupportedAuthMechanism {
            available,
            requested,
        } => format!("the broker does not accept {requested} logins, only {available}"),
        Error::UnsupportedLocale {
            available,
            requested,
        } => format!("the broker does not support the locale {requested}, only {available}"),
        Error::FrameMaxTooSmall { min, requested } => {
            format!(
                "the broker allows frames of {requested} bytes, where at least {min} are needed"
            )
        }
        Error::ExhaustedChannelIds | Error::UnavailableChannelId { .. } => {
            "the connection has no free channel left (channel_max)".to_owned()
        }
        // A channel learns only that amiquip's I/O thread is gone; closing the connection tells
        // why.
        Error::EventLoopClientDropped | Error::EventLoopDropped => {
            "the I/O thread of the connection has ended".to_owned()
        }
        Error::IoThreadPanic => "the thread of the connection panicked".to_owned(),
        Error::CreatePollHandle { source }
        | Error::RegisterWithPollHandle { source }
        | Error::DeregisterWithPollHandle { source }
        | Error::FailedToPoll { source } => format!("polling the socket failed: {source}"),
        Error::ForkFailed { source } => {
            format!("failed to spawn the thread of the connection: {source}")
        }
        Error::MalformedFrame
        | Error::FrameUnexpected
        | Error::ClientException
        | Error::ReceivedFrameWithBogusChannelId { .. }
        | Error::DuplicateConsumerTag { .. }
        | Error::UnknownConsumerTag { .. } => "the broker broke the AMQP protocol".to_owned(),
        _ => "the URL was refused".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_socket_has_nodelay() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let transport = AmqpTransport {
            url: BrokerUrl::parse(&format!("amqp://{address}")).unwrap(),
            information: String::new(),
            #[cfg(feature = "tls")]
            tls: None,
        };
        let limit = monotonic() + Duration::from_secs(10);
        assert!(transport.connect(limit).unwrap().nodelay().unwrap());
    }
}
