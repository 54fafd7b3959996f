//! A certificate authority of a test's own, and certificates it has signed, as PEM files.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};

use crate::rabbitmq::Node;
use crate::rabbitmq::node::free_port;

/// Signs certificates; its own is in [`Authority::file`].
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: PathBuf,
    name: String,
}

/// A certificate and its private key.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub chain: PathBuf,
    pub key: PathBuf,
}

impl Authority {
    /// An authority whose files go into `folder`.
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.distinguished_name.push(DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Self {
            issuer,
            folder: folder.to_owned(),
            name: name.to_owned(),
        };
        fs::write(authority.file(), authority.issuer.pem()).unwrap();
        authority
    }

    /// The PEM file with the authority's own certificate.
    pub fn file(&self) -> PathBuf {
        self.folder.join(format!("{}.pem", self.name))
    }

    /// A certificate for a server with these names and addresses.
    pub fn server(&self, names: &[&str]) -> Certificate {
        self.sign("server", names, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// A certificate for a client with this common name.
    pub fn client(&self, name: &str) -> Certificate {
        self.sign(name, &[], ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn sign(
        &self,
        name: &str,
        alternative: &[&str],
        purpose: ExtendedKeyUsagePurpose,
    ) -> Certificate {
        let alternative: Vec<_> = alternative.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(alternative).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let file = |part: &str| self.folder.join(format!("{}-{name}.{part}", self.name));
        let certificate = Certificate {
            chain: file("pem"),
            key: file("key"),
        };
        fs::write(&certificate.chain, signed.pem()).unwrap();
        fs::write(&certificate.key, key.serialize_pem()).unwrap();
        certificate
    }
}

impl Node {
    /// Opens one more port, for TLS; returns it. It is gone after a restart.
    ///
    /// Clients may show a certificate of the same authority, and must when `clients_certified`.
    #[track_caller]
    pub fn listen_with_tls(
        &self,
        authority: &Authority,
        own: &Certificate,
        clients_certified: bool,
    ) -> u16 {
        let port = free_port();
        let [ca, chain, key] = [&authority.file(), &own.chain, &own.key]
            .map(|file| format!("{:?}", file.to_str().unwrap()));
        self.eval("application:ensure_all_started(ssl)");
        self.eval_ok(&format!(
            "rabbit_networking:start_ssl_listener({{\"127.0.0.1\", {port}, auto}}, [{{cacertfile, {ca}}}, \
             {{certfile, {chain}}}, {{keyfile, {key}}}, {{verify, verify_peer}}, \
             {{fail_if_no_peer_cert, {clients_certified}}}], 1)"
        ));
        port
    }
}
