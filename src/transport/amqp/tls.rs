//! TLS (feature `tls`): options, and a session over a non-blocking socket.
//!
//! amiquip sees plaintext. The certificate of the broker is always verified.

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// TLS options of `amqps://` connections: trusted certificate authorities and a client certificate.
///
/// By default the certificate of the broker must be signed by a certificate authority of the
/// system. It must always name the host of the URL. Verification cannot be turned off.
///
/// ```
/// use rungmq::TlsOptions;
///
/// let tls = TlsOptions::new()
///     .certificate_authority("ca.pem")
///     .client_certificate("service.pem", "service.key");
/// # let _ = tls;
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct TlsOptions {
    certificate_authority: Option<PathBuf>,
    client_certificate: Option<(PathBuf, PathBuf)>,
}

impl TlsOptions {
    /// Options with the certificate authorities of the system and no client certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts only the certificate authorities in a PEM file. The file is read when the connection
    /// is built.
    pub fn certificate_authority(mut self, pem_file: impl Into<PathBuf>) -> Self {
        self.certificate_authority = Some(pem_file.into());
        self
    }

    /// Sets a client certificate: the PEM files of the certificate chain and of its private key.
    ///
    /// With `auth_mechanism=external` in the URL, the certificate is the login.
    pub fn client_certificate(
        mut self,
        chain: impl Into<PathBuf>,
        key: impl Into<PathBuf>,
    ) -> Self {
        self.client_certificate = Some((chain.into(), key.into()));
        self
    }

    pub(crate) fn config(&self) -> Result<Arc<ClientConfig>, String> {
        // The process-wide default provider belongs to the application and may not be installed.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| format!("TLS could not be set up: {error}"))?
            .with_root_certificates(self.roots()?);
        let Some((chain, key)) = &self.client_certificate else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let file = chain;
        let chain = certificates(file)?;
        if chain.is_empty() {
            return Err(format!(
                "{}: the file contains no certificate",
                file.display()
            ));
        }
        let key = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| format!("{}: {error}", key.display()))?;
        let config = builder
            .with_client_auth_cert(chain, key)
            .map_err(|error| format!("the client certificate cannot be used: {error}"))?;
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, String> {
        let (authorities, file) = match &self.certificate_authority {
            Some(file) => (certificates(file)?, file.display().to_string()),
            None => (
                rustls_native_certs::load_native_certs().certs,
                "the system".to_owned(),
            ),
        };
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(authorities);
        if roots.is_empty() {
            return Err(format!(
                "{file}: no certificate authority found to verify the broker with"
            ));
        }
        Ok(roots)
    }
}

fn certificates(file: &PathBuf) -> Result<Vec<CertificateDer<'static>>, String> {
    CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{}: {error}", file.display()))
}

/// One TLS session over a non-blocking socket.
#[derive(Debug)]
pub(super) struct Session {
    tls: ClientConnection,
    /// Whether the last plaintext byte is already encrypted although it was reported as not
    /// written.
    ///
    /// amiquip polls for writability only while its own buffer is not empty. Keeping one byte in it
    /// makes amiquip call again until the ciphertext is sent.
    held_back: bool,
}

impl Session {
    /// Performs the handshake on the blocking socket, or fails by `limit`.
    pub(super) fn handshake(
        mut tcp: &TcpStream,
        config: Arc<ClientConfig>,
        host: &str,
        limit: Instant,
    ) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("the TLS handshake failed: {error}");
        let name = ServerName::try_from(host.to_owned()).map_err(|error| failed(&error))?;
        let mut tls = ClientConnection::new(config, name).map_err(|error| failed(&error))?;
        while tls.is_handshaking() {
            // A timeout of zero is an error, so the last wait is at least a millisecond.
            let left = limit
                .saturating_duration_since(crate::time::instant::monotonic())
                .max(Duration::from_millis(1));
            tcp.set_read_timeout(Some(left))
                .and_then(|()| tcp.set_write_timeout(Some(left)))
                .map_err(|e| failed(&e))?;
            tls.complete_io(&mut tcp).map_err(|error| failed(&error))?;
        }
        tcp.set_read_timeout(None)
            .and_then(|()| tcp.set_write_timeout(None))
            .map_err(|error| failed(&error))?;
        Ok(Self {
            tls,
            held_back: false,
        })
    }

    pub(super) fn read(
        &mut self,
        tcp: &mut mio::net::TcpStream,
        buffer: &mut [u8],
    ) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            // The plaintext buffer is empty: read from the socket until it has a complete record.
            if self.tls.read_tls(tcp)? == 0 {
                return Ok(0);
            }
            self.tls
                .process_new_packets()
                .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        }
    }

    pub(super) fn write(
        &mut self,
        tcp: &mut mio::net::TcpStream,
        bytes: &[u8],
    ) -> io::Result<usize> {
        // Older ciphertext goes first. While it blocks, no plaintext is accepted.
        self.send_ciphertext(tcp)?;
        let ahead = usize::from(std::mem::take(&mut self.held_back));
        let taken = ahead
            + self
                .tls
                .writer()
                .write(bytes.get(ahead..).unwrap_or_default())?;
        match self.send_ciphertext(tcp) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.held_back = true;
                // Reporting zero bytes would mean a closed socket.
                if taken == 1 {
                    Err(error)
                } else {
                    Ok(taken - 1)
                }
            }
            Err(error) => Err(error),
            Ok(()) => Ok(taken),
        }
    }

    /// Sends all pending ciphertext, or fails with `WouldBlock`.
    fn send_ciphertext(&mut self, tcp: &mut mio::net::TcpStream) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(tcp) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => return Err(self.closing_alert(tcp).unwrap_or(error)),
            }
        }
        Ok(())
    }

    /// Reads the alert of a broker that refused the client certificate and closed the socket. A
    /// write can fail before the alert is read.
    fn closing_alert(&mut self, tcp: &mut mio::net::TcpStream) -> Option<io::Error> {
        while let Ok(1..) = self.tls.read_tls(tcp) {
            if let Err(alert) = self.tls.process_new_packets() {
                return Some(io::Error::new(io::ErrorKind::InvalidData, alert));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::instant::monotonic;
    use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
    use rustls::{ServerConfig, ServerConnection, StreamOwned};
    use std::net::TcpListener;
    use std::thread;

    /// A session, its socket, and the peer, after the handshake.
    fn connected() -> (
        Session,
        mio::net::TcpStream,
        StreamOwned<ServerConnection, TcpStream>,
    ) {
        let own = CertificateDer::from(&include_bytes!("../../../fixtures/localhost.der")[..]);
        let key =
            PrivatePkcs8KeyDer::from(&include_bytes!("../../../fixtures/localhost.key.der")[..]);
        let provider = || Arc::new(rustls::crypto::ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![own.clone()], key.into())
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(own).unwrap();
        let client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let accepting = thread::spawn(move || {
            let mut tls = ServerConnection::new(Arc::new(server)).unwrap();
            while tls.is_handshaking() {
                tls.complete_io(&mut peer).unwrap();
            }
            StreamOwned::new(tls, peer)
        });
        let limit = monotonic() + Duration::from_secs(10);
        let session = Session::handshake(&tcp, Arc::new(client), "localhost", limit).unwrap();
        let tcp = mio::net::TcpStream::from_stream(tcp).unwrap();
        (session, tcp, accepting.join().unwrap())
    }

    /// amiquip stops polling for writability once its buffer is empty, so no ciphertext may be
    /// pending then.
    #[test]
    fn written_bytes_leave_no_pending_ciphertext() {
        let (mut session, mut tcp, mut peer) = connected();
        let message: Vec<u8> = (0..251_u8).cycle().take(100_000).collect();
        let mut read = vec![0; 50_000];
        let (mut sent, mut received, mut blocked) = (0, 0, 0);
        while blocked < 100 {
            let mut rest = &message[..];
            while !rest.is_empty() {
                match session.write(&mut tcp, rest) {
                    Ok(written) => rest = &rest[written..],
                    // The peer reads only enough to make room, so the buffers stay almost full.
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        blocked += 1;
                        let got = peer.read(&mut read).unwrap();
                        for byte in &read[..got] {
                            assert_eq!(*byte, message[received % message.len()]);
                            received += 1;
                        }
                    }
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(!session.tls.wants_write(), "ciphertext was left behind");
            sent += message.len();
        }
        while received < sent {
            let got = peer.read(&mut read).unwrap();
            for byte in &read[..got] {
                assert_eq!(*byte, message[received % message.len()]);
                received += 1;
            }
        }
    }
}
