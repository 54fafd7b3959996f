//! The thread that owns a connection: it opens channels, watches for the end, and closes.

use super::{Over, OverSignal, is_over};
use crate::time::clock::Clock;
use crate::time::threads::{self, Role, SpawnError};
use crate::transport;
use crate::transport::{Activity, Channel, Dialled, Failure, KillSwitch, LinkEvent};
use crossbeam_channel::{Receiver, Select, Sender, bounded, select_biased, unbounded};
use log::debug;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

type OpenReply = Sender<Result<Box<dyn Channel>, Failure>>;

enum Request {
    Open(OpenReply),
    Close,
}

/// What happens to a link without being asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkNotice {
    Blocked(String),
    Unblocked,
    /// The last notice: the connection is gone, for this reason.
    Gone(String),
}

/// A connection, as everybody but its owner sees it.
#[derive(Debug)]
pub(crate) struct Link {
    requests: Sender<Request>,
    kill: KillSwitch,
    frame_max: usize,
    activity: Activity,
    gone: OverSignal,
    reason: Arc<Mutex<Option<String>>>,
}

impl Link {
    /// Starts the owner thread. It reports to `notify`, on its own thread.
    pub(crate) fn start(
        dialled: Dialled,
        name: &str,
        clock: &dyn Clock,
        notify: impl Fn(LinkNotice) + Send + 'static,
    ) -> Result<Arc<Self>, SpawnError> {
        let (requests, inbox) = unbounded();
        let (over, gone) = Over::new();
        let reason = Arc::new(Mutex::new(None));
        let opener = Opener {
            link: dialled.link,
            requests: inbox,
            reason: reason.clone(),
            kill: dialled.kill.clone(),
            _over: over,
        };
        clock.spawn(
            Role::Owner,
            format!("rungmq-opener-{name}"),
            Box::new(move || opener.run(&notify)),
        )?;
        Ok(Arc::new(Self {
            requests,
            kill: dialled.kill,
            frame_max: dialled.frame_max,
            activity: dialled.activity,
            gone,
            reason,
        }))
    }

    /// Opens a channel, or gives up after `limit`.
    pub(crate) fn open_channel(&self, limit: Duration) -> Result<Box<dyn Channel>, Failure> {
        let (reply, answer) = bounded(1);
        if self.requests.send(Request::Open(reply)).is_err() {
            return Err(self.lost());
        }
        select_biased! {
            recv(answer) -> opened => opened.unwrap_or_else(|_| Err(self.lost())),
            recv(self.gone) -> _ => Err(self.lost()),
            default(limit) => Err(Failure::TimedOut),
        }
    }

    /// Asks the owner to close; [`gone`](Self::gone) tells when it has.
    pub(crate) fn close(&self) {
        let _ = self.requests.send(Request::Close);
    }

    /// Ends the connection now, whatever the broker does.
    pub(crate) fn kill(&self) {
        self.kill.throw();
    }

    /// Ready once the connection is gone.
    pub(crate) fn gone(&self) -> &OverSignal {
        &self.gone
    }

    pub(crate) fn is_gone(&self) -> bool {
        is_over(&self.gone)
    }

    /// The largest frame that may be sent, in bytes.
    pub(crate) fn frame_max(&self) -> usize {
        self.frame_max
    }

    /// When something last arrived.
    pub(crate) fn activity(&self) -> &Activity {
        &self.activity
    }

    /// The failure that a call meets once the connection is gone.
    pub(crate) fn lost(&self) -> Failure {
        Failure::Lost(
            self.reason
                .lock()
                .clone()
                .unwrap_or_else(|| "it was closed".to_owned()),
        )
    }
}

struct Opener {
    link: Box<dyn transport::Link>,
    requests: Receiver<Request>,
    reason: Arc<Mutex<Option<String>>>,
    kill: KillSwitch,
    _over: Over,
}

impl Opener {
    fn run(mut self, notify: &dyn Fn(LinkNotice)) {
        while self.serve(notify) {}
        let reason = match self.link.close() {
            Ok(()) => "it was closed".to_owned(),
            Err(reason) => reason,
        };
        // A client that gave up by itself has closed nothing yet, and the broker would keep what is unsettled.
        self.kill.throw();
        debug!("connection ended: {reason}");
        *self.reason.lock() = Some(reason.clone());
        notify(LinkNotice::Gone(reason));
    }

    /// Does the next thing there is to do; false when the connection is over or shall be closed.
    fn serve(&mut self, notify: &dyn Fn(LinkNotice)) -> bool {
        let mut select = Select::new();
        select.recv(&self.requests);
        self.link.watch(&mut select);
        threads::ready(select, None);
        loop {
            match self.link.next_event() {
                Ok(Some(LinkEvent::Blocked(reason))) => notify(LinkNotice::Blocked(reason)),
                Ok(Some(LinkEvent::Unblocked)) => notify(LinkNotice::Unblocked),
                Ok(None) => break,
                Err(transport::Gone) => return false,
            }
        }
        match self.requests.try_recv() {
            Ok(Request::Open(reply)) => {
                let opened = self.link.open_channel();
                // Whoever asked may have given up meanwhile; then the channel is dropped, and so closed, here.
                drop(reply.send(opened));
                true
            }
            Ok(Request::Close) => false,
            Err(error) => error.is_empty(),
        }
    }
}
