//! A private rabbitmq-server: its own ports, epmd, cookie and folders, gone with the test process.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::evaluator::{EVALUATOR, Evaluator};
use super::wait::{wait_for, wait_until};

/// A start takes about 5 s on a quiet machine and several times that on a busy one.
const START_LIMIT: Duration = Duration::from_secs(90);

/// Every other test of the machine may boot a broker first.
const TURN_LIMIT: Duration = Duration::from_secs(600);

/// What the memory high watermark is outside of an alarm; far more than any test makes a broker
/// use.
const MEMORY_LIMIT: u64 = 2_000_000_000;

/// A running broker on 127.0.0.1 that belongs to this test process alone.
///
/// The shared node refuses what would disturb other tests: kill, freeze, alarm, and the like.
#[derive(Debug)]
pub struct Node {
    folder: PathBuf,
    name: String,
    cookie: String,
    ports: Ports,
    version: String,
    keeper: Mutex<Keeper>,
    evaluator: Evaluator,
    shared: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ports {
    amqp: u16,
    distribution: u16,
    epmd: u16,
}

impl Node {
    /// Starts a node of the test's own; it is gone when the value is dropped.
    #[track_caller]
    pub fn start() -> Self {
        Self::start_as(false)
    }

    /// The node that all tests of this binary share, started by the first that asks.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Node> = OnceLock::new();
        SHARED.get_or_init(|| Self::start_as(true))
    }

    fn start_as(shared: bool) -> Self {
        let mut node = Self::prepare(None);
        node.shared = shared;
        node.boot_first();
        node
    }

    /// Lays out the folders and starts the keeper; the server itself is not started yet. Beside
    /// another node it has that one's cookie and epmd, as the nodes of a cluster must.
    pub(super) fn prepare(beside: Option<&Self>) -> Self {
        let id = format!("{:08x}", rand::random::<u32>());
        let folder = PathBuf::from(format!("/tmp/rungmq-test-{id}"));
        let ports = Ports {
            amqp: free_port(),
            distribution: free_port(),
            epmd: beside.map_or_else(free_port, |node| node.ports.epmd),
        };
        let name = format!("rungmq-{id}@localhost");
        let cookie = beside.map_or_else(
            || format!("{:032x}", rand::random::<u128>()),
            |node| node.cookie.clone(),
        );

        for part in ["", "home", "data", "log"] {
            fs::create_dir_all(folder.join(part)).unwrap();
        }
        let cookie_file = folder.join("home/.erlang.cookie");
        fs::write(&cookie_file, &cookie).unwrap();
        fs::set_permissions(&cookie_file, fs::Permissions::from_mode(0o400)).unwrap();
        fs::write(folder.join("plugins"), "[rabbitmq_auth_mechanism_ssl].\n").unwrap();
        fs::write(folder.join("advanced.config"), "[].\n").unwrap();
        fs::write(folder.join("rabbitmq.conf"), configuration(ports.amqp)).unwrap();
        // Erlang then resolves names itself and starts no inet_gethost processes, which outlive a
        // killed node.
        fs::write(
            folder.join("inetrc"),
            "{lookup, [file]}.\n{host, {127,0,0,1}, [\"localhost\"]}.\n",
        )
        .unwrap();

        let keeper = Keeper::start(&folder, &name, ports, beside.is_none());
        Self {
            folder,
            name,
            cookie,
            ports,
            version: String::new(),
            keeper: Mutex::new(keeper),
            evaluator: Evaluator::default(),
            shared: false,
        }
    }

    pub(super) fn boot_first(&mut self) {
        self.boot();
        self.version = self.eval_text("rabbit_misc:version()");
    }

    fn boot(&self) {
        let _turn = boot_turn();
        self.evaluator.forget();
        self.order("start");
        wait_until(START_LIMIT, "the broker has started", || {
            assert!(self.is_alive(), "the broker died:\n{}", self.log());
            // A boot takes a core for seconds. Asking by erl_call all the while would take another.
            TcpStream::connect(("127.0.0.1", self.ports.amqp)).is_ok()
                && self
                    .try_eval("rabbit:is_running()")
                    .is_ok_and(|running| running == "true")
        });
    }

    /// Whether the server's process lives, up or not.
    pub(super) fn is_alive(&self) -> bool {
        self.keeper.lock().order("alive") == "ok"
    }

    /// The Erlang node's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The broker's version, such as `3.10.8`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The first part of [`Node::version`]: 3 or 4.
    pub fn major(&self) -> u32 {
        self.version.split('.').next().unwrap().parse().unwrap()
    }

    /// The AMQP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.ports.amqp
    }

    /// A folder that the broker reads and that ends with the node.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The broker's log and output so far.
    pub fn log(&self) -> String {
        let mut files = vec![self.folder.join("server.out")];
        files.extend(
            fs::read_dir(self.folder.join("log"))
                .unwrap()
                .map(|file| file.unwrap().path()),
        );
        files
            .iter()
            .filter_map(|file| fs::read(file).ok())
            .map(|text| String::from_utf8_lossy(&text).into_owned())
            .collect()
    }

    // Addresses

    /// The URL of the virtual host `/`, as guest.
    pub fn url(&self) -> String {
        self.url_for("/")
    }

    /// The URL of `vhost`, as guest.
    pub fn url_for(&self, vhost: &str) -> String {
        self.url_for_user("guest", "guest", vhost)
    }

    /// The URL of `vhost` for another user.
    pub fn url_for_user(&self, user: &str, password: &str, vhost: &str) -> String {
        super::raw::url(user, password, self.ports.amqp, vhost)
    }

    // Commands

    /// Runs `rabbitmqctl` (about a second a call; [`Node::eval`] takes 1 ms) and returns what it
    /// printed.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        let output = broker_command("/usr/lib/rabbitmq/bin/rabbitmqctl")
            .args(["-q", "-n", &self.name])
            .args(args)
            .envs(environment(&self.folder, &self.name, self.ports))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "rabbitmqctl {args:?}: {}",
            both(&output)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Evaluates Erlang expressions in the broker and returns the last one's value as Erlang writes
    /// it.
    #[track_caller]
    pub fn eval(&self, erlang: &str) -> String {
        match self.try_eval(erlang) {
            Ok(value) => value,
            Err(error) => panic!("eval of {erlang}: {error}"),
        }
    }

    /// The same for a value that is text (a string or binary), without quotes.
    #[track_caller]
    pub fn eval_text(&self, erlang: &str) -> String {
        match self.evaluate(&format!("io_lib:format(\"~ts\", [begin {erlang} end]).")) {
            Ok(value) => value,
            Err(error) => panic!("eval of {erlang}: {error}"),
        }
    }

    /// [`Node::eval`] for a broker that may be down.
    pub fn try_eval(&self, erlang: &str) -> Result<String, String> {
        self.evaluate(&format!("io_lib:format(\"~0tp\", [begin {erlang} end])."))
    }

    /// Evaluates an expression that is text, by the evaluator of this run of the server.
    fn evaluate(&self, erlang: &str) -> Result<String, String> {
        let credentials = format!("{} {}", self.cookie, self.name);
        self.evaluator
            .evaluate(&credentials, erlang, || self.erl_call(EVALUATOR))
    }

    /// Evaluates by a process of its own and returns what was printed.
    fn erl_call(&self, erlang: &str) -> Result<String, String> {
        let address = format!("127.0.0.1:{}", self.ports.distribution);
        // Without a name every erl_call is c17, and the node turns the second c17 of a moment away.
        static CALLS: AtomicU32 = AtomicU32::new(0);
        let caller = format!("c{}", 100 + CALLS.fetch_add(1, Ordering::Relaxed));
        let mut child = broker_command("/usr/bin/timeout")
            .args([
                "30",
                "/usr/bin/erl_call",
                "-address",
                &address,
                "-c",
                &self.cookie,
                "-h",
                &caller,
            ])
            .args(["-fetch_stdout", "-e"])
            .env("HOME", self.folder.join("home"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // A failed write shows in the output: erl_call found no node.
        let _ = child.stdin.take().unwrap().write_all(erlang.as_bytes());
        let output = child.wait_with_output().unwrap();
        let printed = String::from_utf8_lossy(&output.stdout);
        match printed.strip_suffix("{ok, ok}") {
            Some(value) if output.status.success() => Ok(value.to_owned()),
            _ => Err(both(&output)),
        }
    }

    // Users, policies, connections

    /// Adds a user that may do nothing yet.
    #[track_caller]
    pub fn add_user(&self, user: &str, password: &str) {
        self.eval_ok(&format!(
            "rabbit_auth_backend_internal:add_user({}, {}, <<\"test\">>)",
            binary(user),
            binary(password)
        ));
    }

    /// Sets what `user` may configure, write and read on `vhost`, as regular expressions.
    #[track_caller]
    pub fn set_permissions(
        &self,
        user: &str,
        vhost: &str,
        configure: &str,
        write: &str,
        read: &str,
    ) {
        let args = [user, vhost, configure, write, read].map(binary).join(", ");
        self.eval_ok(&format!(
            "rabbit_auth_backend_internal:set_permissions({args}, <<\"test\">>)"
        ));
    }

    /// Sets a policy for queues and exchanges whose names match `pattern`.
    #[track_caller]
    pub fn set_policy(
        &self,
        vhost: &str,
        name: &str,
        pattern: &str,
        definition: &serde_json::Value,
    ) {
        let args = [vhost, name, pattern, &definition.to_string()]
            .map(binary)
            .join(", ");
        self.eval_ok(&format!(
            "rabbit_policy:parse_set({args}, <<\"0\">>, <<\"all\">>, <<\"test\">>)"
        ));
    }

    /// Removes a policy.
    #[track_caller]
    pub fn clear_policy(&self, vhost: &str, name: &str) {
        self.eval_ok(&format!(
            "rabbit_policy:delete({}, {}, <<\"test\">>)",
            binary(vhost),
            binary(name)
        ));
    }

    /// Closes the connections of one virtual host from the broker's side; returns how many there
    /// were. One that ends meanwhile, because its client lost another one, is no failure.
    #[track_caller]
    pub fn close_connections(&self, vhost: &str) -> usize {
        self.close_connections_that(vhost, "true")
    }

    /// The same for about half of them; `salt` says which.
    #[track_caller]
    pub fn close_some_connections(&self, vhost: &str, salt: u32) -> usize {
        self.close_connections_that(vhost, &format!("erlang:phash2({{{salt}, P}}, 2) == 0"))
    }

    #[track_caller]
    fn close_connections_that(&self, vhost: &str, condition: &str) -> usize {
        let erlang = format!(
            "P = [P || [{{pid, P}}, {{vhost, {}}}] <- rabbit_networking:connection_info_all([pid, vhost]), {condition}], \
             [catch rabbit_networking:close_connection(C, \"closed by the test\") || C <- P], length(P)",
            binary(vhost)
        );
        self.eval(&erlang).parse().unwrap()
    }

    /// Closes every connection from the broker's side.
    #[track_caller]
    pub fn close_all_connections(&self) {
        self.own();
        self.eval(
            "[catch rabbit_networking:close_connection(P, \"closed by the test\") \
             || P <- rabbit_networking:connections()]",
        );
    }

    // Trouble

    /// Stops the broker but not its Erlang node: the port is closed, [`Node::eval`] still works.
    #[track_caller]
    pub fn stop_app(&self) {
        self.own();
        self.ctl(&["stop_app"]);
    }

    /// Starts the broker again after [`Node::stop_app`].
    #[track_caller]
    pub fn start_app(&self) {
        self.own();
        // Not by eval: after rabbit:start() called that way the broker never came up.
        self.ctl(&["start_app"]);
    }

    /// Kills the broker without a warning, frozen or not.
    #[track_caller]
    pub fn kill_9(&self) {
        self.own();
        self.order("kill");
    }

    /// Has queues and policies written down, which a kill within about a second would undo, with
    /// the messages in new queues.
    #[track_caller]
    pub fn sync_metadata(&self) {
        self.eval("catch mnesia:sync_log()");
    }

    /// Starts the broker again after [`Node::kill_9`], on the same port and data.
    #[track_caller]
    pub fn start_again(&self) {
        self.own();
        self.boot();
    }

    /// Stops the broker in good order and starts it again.
    #[track_caller]
    pub fn restart(&self) {
        self.stop_app();
        self.kill_9();
        self.start_again();
    }

    /// Kills the broker and starts it as if it had just been installed.
    #[track_caller]
    pub fn restart_with_empty_data(&self) {
        self.kill_9();
        self.empty_data();
        self.start_again();
    }

    /// Throws the data of a killed broker away.
    #[track_caller]
    pub fn empty_data(&self) {
        self.own();
        let data = self.folder.join("data");
        fs::remove_dir_all(&data).unwrap();
        fs::create_dir(&data).unwrap();
    }

    /// Stops the broker's process (SIGSTOP): its sockets stay open and nothing answers,
    /// [`Node::eval`] neither.
    #[track_caller]
    pub fn freeze(&self) {
        self.own();
        self.order("freeze");
    }

    /// Lets a frozen broker go on.
    #[track_caller]
    pub fn thaw(&self) {
        self.own();
        self.order("thaw");
    }

    /// Raises or clears the memory alarm, and waits until the broker says so.
    #[track_caller]
    pub fn memory_alarm(&self, on: bool) {
        self.own();
        let limit = if on {
            "0.0".to_owned()
        } else {
            format!("{{absolute, {MEMORY_LIMIT}}}")
        };
        self.eval_ok(&format!(
            "vm_memory_monitor:set_vm_memory_high_watermark({limit})"
        ));
        wait_until(Duration::from_secs(10), "the alarm has changed", || {
            (self.eval("rabbit_alarm:get_alarms()") != "[]") == on
        });
    }

    #[track_caller]
    fn own(&self) {
        assert!(
            !self.shared,
            "this would disturb the other tests: use Node::start()"
        );
    }

    #[track_caller]
    fn order(&self, word: &str) {
        assert_eq!(
            self.keeper.lock().order(word),
            "ok",
            "order {word} to {}",
            self.name
        );
    }

    #[track_caller]
    pub(crate) fn eval_ok(&self, erlang: &str) {
        let value = self.eval(erlang);
        assert_eq!(value, "ok", "{erlang}");
    }
}

/// A turn to boot a broker, which ends with the file: two boot at a time on a machine, whichever
/// test processes they belong to. More would take the cores from the tests that run beside them.
fn boot_turn() -> Option<File> {
    let slot = |n: usize| File::create(std::env::temp_dir().join(format!("rungmq-test-boot-{n}")));
    // Another user's files cannot be opened: boots then take no turns.
    let mut slots = vec![slot(0).ok()?, slot(1).ok()?];
    let free = wait_for(TURN_LIMIT, "a turn to boot a broker", || {
        slots.iter().position(|slot| slot.try_lock().is_ok())
    });
    Some(slots.swap_remove(free))
}

/// `text` as an Erlang binary.
pub(super) fn binary(text: &str) -> String {
    let bytes: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
    format!("<<{}>>", bytes.join(","))
}

/// The shell that starts and signals the server, and outlives this process just long enough to
/// clean up.
#[derive(Debug)]
struct Keeper {
    shell: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Keeper {
    fn start(folder: &Path, name: &str, ports: Ports, own_epmd: bool) -> Self {
        let root = root()
            .map(|root| format!("chroot {root} "))
            .unwrap_or_default();
        let epmd = format!("{root}epmd -address 127.0.0.1 -port {}", ports.epmd);
        let mut shell = Command::new("sh")
            .args(["-c", include_str!("keeper.sh"), "keeper"])
            .arg(folder)
            .arg(if own_epmd { epmd.as_str() } else { "" })
            .arg(format!("{root}/usr/lib/rabbitmq/bin/rabbitmq-server"))
            .envs(environment(folder, name, ports))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A group of its own: Ctrl-C reaches the tests, and the keeper by the closing pipe.
            .process_group(0)
            .spawn()
            .unwrap();
        let orders = shell.stdin.take();
        let answers = BufReader::new(shell.stdout.take().unwrap());
        Self {
            shell,
            orders,
            answers,
        }
    }

    fn order(&mut self, word: &str) -> String {
        let orders = self.orders.as_mut().unwrap();
        writeln!(orders, "{word}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer.trim_end().to_owned()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.shell.wait();
    }
}

fn configuration(port: u16) -> String {
    format!(
        "listeners.tcp.local = 127.0.0.1:{port}\n\
         disk_free_limit.absolute = 1MB\n\
         vm_memory_high_watermark.absolute = {MEMORY_LIMIT}\n\
         collect_statistics_interval = 500\n\
         auth_mechanisms.1 = PLAIN\n\
         auth_mechanisms.2 = AMQPLAIN\n\
         auth_mechanisms.3 = EXTERNAL\n\
         ssl_options.verify = verify_peer\n\
         ssl_cert_login_from = common_name\n\
         log.file.level = info\n\
         log.console = false\n"
    )
}

fn environment(folder: &Path, name: &str, ports: Ports) -> Vec<(&'static str, String)> {
    let inside = |part: &str| folder.join(part).to_str().unwrap().to_owned();
    vec![
        ("HOME", inside("home")),
        (
            "PATH",
            "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
        ),
        ("LANG", "C.UTF-8".to_owned()),
        ("ERL_EPMD_PORT", ports.epmd.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_INETRC", inside("inetrc")),
        ("ERL_CRASH_DUMP_SECONDS", "0".to_owned()),
        ("RABBITMQ_NODENAME", name.to_owned()),
        ("RABBITMQ_DIST_PORT", ports.distribution.to_string()),
        ("RABBITMQ_MNESIA_BASE", inside("data")),
        ("RABBITMQ_LOG_BASE", inside("log")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", inside("plugins")),
        ("RABBITMQ_CONFIG_FILE", inside("rabbitmq.conf")),
        ("RABBITMQ_ADVANCED_CONFIG_FILE", inside("advanced.config")),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        // The script then becomes the server (exec) instead of waiting for it: one process to kill.
        ("RABBITMQ_ALLOW_INPUT", "1".to_owned()),
        (
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
            "-noinput -start_epmd false -kernel inet_dist_use_interface {127,0,0,1}".to_owned(),
        ),
    ]
}

/// A program of the broker's installation; called past Debian's wrapper, which changes the user.
fn broker_command(program: &str) -> Command {
    match root() {
        None => Command::new(program),
        Some(root) => {
            let mut command = Command::new("chroot");
            command.args([&root, program]);
            command
        }
    }
}

/// Where RabbitMQ is installed when not in `/`: a root made by `tests/rabbitmq-4.sh`, with the
/// host's `/tmp` in it.
fn root() -> Option<String> {
    std::env::var("RUNGMQ_TEST_RABBITMQ")
        .ok()
        .filter(|root| !root.is_empty())
}

/// A free port below the range from which the kernel takes the ports of outgoing connections: it
/// stays free while the broker is down, and a client dialling a broker that is down cannot reach
/// itself.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = rand::random_range(10_000..30_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn both(output: &Output) -> String {
    format!(
        "{}{} ({})",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        output.status
    )
}
