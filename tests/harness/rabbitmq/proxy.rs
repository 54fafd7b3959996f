//! A TCP proxy between client and broker that counts, holds back, loses and cuts.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use parking_lot::{Condvar, Mutex};

use super::node::Node;

/// The way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client to the broker.
    ToBroker,
    /// From the broker to the client.
    ToClient,
}

/// What happens to bytes that go one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// They pass.
    Pass,
    /// They wait, and pass later; the sender feels the back-pressure.
    Hold,
    /// They are read and lost; the sender notices nothing.
    Swallow,
}

/// A proxy on a port of its own in front of a broker.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    target: SocketAddr,
    flows: Mutex<[Flow; 2]>,
    changed: Condvar,
    bytes: [AtomicU64; 2],
    accepted: AtomicUsize,
    refusing: AtomicBool,
    closed: AtomicBool,
    sockets: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// A proxy in front of `node`.
    pub fn to(node: &Node) -> Self {
        Self::to_port(node.port())
    }

    /// A proxy in front of whatever listens on `port`.
    pub fn to_port(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            target: SocketAddr::from(([127, 0, 0, 1], port)),
            flows: Mutex::new([Flow::Pass; 2]),
            changed: Condvar::new(),
            bytes: [AtomicU64::new(0), AtomicU64::new(0)],
            accepted: AtomicUsize::new(0),
            refusing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            sockets: Mutex::new(Vec::new()),
        });
        let for_thread = Arc::clone(&state);
        thread::spawn(move || accept(&listener, &for_thread));
        Self { address, state }
    }

    /// The port clients connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The URL of `vhost` through the proxy, as guest.
    pub fn url_for(&self, vhost: &str) -> String {
        super::raw::url("guest", "guest", self.port(), vhost)
    }

    /// Sets what happens to bytes going `way`, on all connections and those to come.
    pub fn set(&self, way: Way, flow: Flow) {
        self.state.flows.lock()[way as usize] = flow;
        self.state.changed.notify_all();
    }

    /// The same for both ways.
    pub fn set_both(&self, flow: Flow) {
        self.set(Way::ToBroker, flow);
        self.set(Way::ToClient, flow);
    }

    /// Loses all bytes going `way` from now on.
    pub fn swallow(&self, way: Way) {
        self.set(way, Flow::Swallow);
    }

    /// Holds all bytes back until [`Proxy::resume`].
    pub fn pause(&self) {
        self.set_both(Flow::Hold);
    }

    /// Lets bytes pass again, those held back first.
    pub fn resume(&self) {
        self.set_both(Flow::Pass);
    }

    /// Closes all connections; new ones are still taken.
    pub fn cut(&self) {
        for socket in self.state.sockets.lock().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Closes one connection, counted from 0 in the order they came, refused ones left out. Not
    /// after [`Proxy::cut`].
    pub fn cut_nth(&self, nth: usize) {
        let sockets = self.state.sockets.lock();
        for socket in &sockets[2 * nth..2 * nth + 2] {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Whether new connections are closed as soon as they are accepted.
    pub fn refuse(&self, refuse: bool) {
        self.state.refusing.store(refuse, Ordering::SeqCst);
    }

    /// How many bytes arrived going `way`, lost ones included.
    pub fn bytes(&self, way: Way) -> u64 {
        self.state.bytes[way as usize].load(Ordering::SeqCst)
    }

    /// How many connections were tried so far, refused ones included.
    pub fn accepted(&self) -> usize {
        self.state.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.closed.store(true, Ordering::SeqCst);
        self.cut();
        self.resume();
        // Wakes the accepting thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, state: &Arc<State>) {
    for client in listener.incoming() {
        if state.closed.load(Ordering::SeqCst) {
            return;
        }
        let Ok(client) = client else { continue };
        state.accepted.fetch_add(1, Ordering::SeqCst);
        if state.refusing.load(Ordering::SeqCst) {
            continue;
        }
        let Ok(broker) = TcpStream::connect(state.target) else {
            continue;
        };
        let copies = [client.try_clone(), broker.try_clone()];
        state.sockets.lock().extend(copies.map(Result::unwrap));
        for socket in [&client, &broker] {
            socket.set_nodelay(true).unwrap();
        }
        let (client_copy, broker_copy) = (client.try_clone().unwrap(), broker.try_clone().unwrap());
        let (one, other) = (Arc::clone(state), Arc::clone(state));
        thread::spawn(move || pump(client, broker, Way::ToBroker, &one));
        thread::spawn(move || pump(broker_copy, client_copy, Way::ToClient, &other));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, way: Way, state: &State) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        state.bytes[way as usize].fetch_add(n as u64, Ordering::SeqCst);
        if state.flow(way) == Flow::Pass && to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    // The end of a connection is held back, and lost, like its bytes.
    if state.flow(way) == Flow::Pass {
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }
}

impl State {
    /// What to do with bytes going `way`; waits as long as they are to be held back.
    fn flow(&self, way: Way) -> Flow {
        let mut flows = self.flows.lock();
        while flows[way as usize] == Flow::Hold {
            self.changed.wait(&mut flows);
        }
        flows[way as usize]
    }
}
