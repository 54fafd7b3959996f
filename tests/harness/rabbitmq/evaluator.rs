//! Evaluates Erlang in a broker over a socket, which costs a hundredth of a process for each call.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use parking_lot::Mutex;

/// A frozen broker answers no sooner.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// What listens in the broker, and prints its port: each connection brings one request, which opens
/// with the cookie and the node's name. A port that belongs to another node by now refuses it.
pub(super) const EVALUATOR: &str = r#"
Credentials = iolist_to_binary(io_lib:format("~s ~s", [erlang:get_cookie(), node()])),
Eval = fun(Text) ->
  {ok, Tokens, _} = erl_scan:string(unicode:characters_to_list(Text)),
  {ok, Expressions} = erl_parse:parse_exprs(Tokens),
  {value, Value, _} = erl_eval:exprs(Expressions, []),
  unicode:characters_to_binary(Value) end,
Answer = fun(Socket) ->
  receive owner -> ok end,
  case gen_tcp:recv(Socket, 0) of
    {ok, Request} ->
      case binary:split(Request, <<0>>) of
        [Credentials, Text] ->
          gen_tcp:send(Socket, try [0, Eval(Text)]
            catch Class:Reason -> [1, unicode:characters_to_binary(io_lib:format("~0tp", [{Class, Reason}]))] end);
        _ -> ok
      end;
    _ -> ok
  end,
  gen_tcp:close(Socket) end,
Accept = fun Accept(Listener) ->
  {ok, Socket} = gen_tcp:accept(Listener),
  Worker = spawn(fun() -> Answer(Socket) end),
  gen_tcp:controlling_process(Socket, Worker),
  Worker ! owner,
  Accept(Listener) end,
Caller = self(),
spawn(fun() ->
  group_leader(whereis(user), self()),
  {ok, Listener} = gen_tcp:listen(0, [binary, {packet, 4}, {active, false}, {ip, {127,0,0,1}}, {backlog, 1024}]),
  {ok, Port} = inet:port(Listener),
  Caller ! {port, Port},
  Accept(Listener) end),
receive {port, Port} -> io:format("~b", [Port]) after 10000 -> exit(no_listener) end.
"#;

/// The client of the evaluator in one node.
#[derive(Debug, Default)]
pub(super) struct Evaluator {
    /// Where it listens in the server that runs now; `None` until it has been installed there.
    port: Mutex<Option<u16>>,
}

impl Evaluator {
    /// For a server that is started anew.
    pub(super) fn forget(&self) {
        *self.port.lock() = None;
    }

    /// Evaluates `erlang`, whose value is text. `install` gets an evaluator into the server and
    /// returns its port.
    pub(super) fn evaluate(
        &self,
        credentials: &str,
        erlang: &str,
        install: impl Fn() -> Result<String, String>,
    ) -> Result<String, String> {
        let request = format!("{credentials}\0{erlang}");
        let known = *self.port.lock();
        if let Some(port) = known {
            match exchange(port, request.as_bytes()) {
                Ok(answer) => return answer,
                Err(error) if is_timeout(&error) => return Err(error.to_string()),
                // The server has been killed, and maybe started again.
                Err(_) => self.forget(),
            }
        }
        let port = {
            let mut port = self.port.lock();
            match *port {
                Some(port) => port,
                None => {
                    let said = install()?;
                    let new = said.parse().map_err(|_| format!("no port: {said}"))?;
                    *port.insert(new)
                }
            }
        };
        exchange(port, request.as_bytes()).map_err(|error| error.to_string())?
    }
}

/// Sends a request and reads its answer: a value, or the exception.
fn exchange(port: u16, request: &[u8]) -> io::Result<Result<String, String>> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(ANSWER_LIMIT))?;
    let length = u32::try_from(request.len()).map_err(io::Error::other)?;
    socket.write_all(&[&length.to_be_bytes(), request].concat())?;
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let mut status = [0];
    socket.read_exact(&mut status)?;
    let mut text = Vec::new();
    let rest = u64::from(u32::from_be_bytes(length).saturating_sub(1));
    socket.take(rest).read_to_end(&mut text)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Ok(if status == [0] { Ok(text) } else { Err(text) })
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}
