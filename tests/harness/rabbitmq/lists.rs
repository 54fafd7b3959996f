//! What the broker says about its queues, bindings, channels: `rabbitmqctl list_…`, only a hundred
//! times faster.
//!
//! The columns are those of rabbitmqctl. The numbers come from the processes themselves and are not
//! statistics.

use super::node::{Node, binary};

/// One line of a list, by column.
pub type Row = serde_json::Map<String, serde_json::Value>;

impl Node {
    /// The queues of `vhost`: `name`, `messages`, `messages_ready`, `messages_unacknowledged`,
    /// `consumers`, `arguments`, `durable`, `type`, `state`, `policy`, …
    #[track_caller]
    pub fn list_queues(&self, vhost: &str, columns: &[&str]) -> Vec<Row> {
        self.list("rabbit_amqqueue:info_all", Some(vhost), Some(columns))
    }

    /// The exchanges of `vhost`: `name`, `type`, `durable`, `arguments`, …
    #[track_caller]
    pub fn list_exchanges(&self, vhost: &str, columns: &[&str]) -> Vec<Row> {
        self.list("rabbit_exchange:info_all", Some(vhost), Some(columns))
    }

    /// The bindings of `vhost`: `source_name`, `destination_name`, `destination_kind`,
    /// `routing_key`, `arguments`.
    #[track_caller]
    pub fn list_bindings(&self, vhost: &str) -> Vec<Row> {
        let columns = [
            "source_name",
            "destination_name",
            "destination_kind",
            "routing_key",
            "arguments",
        ];
        self.list("rabbit_binding:info_all", Some(vhost), Some(&columns))
    }

    /// The consumers of `vhost`: `queue_name`, `channel_pid`, `consumer_tag`, `ack_required`,
    /// `prefetch_count`, …
    #[track_caller]
    pub fn list_consumers(&self, vhost: &str) -> Vec<Row> {
        self.list("rabbit_amqqueue:consumers_all", Some(vhost), None)
    }

    /// The channels on `vhost`: `pid`, `connection`, `number`, `consumer_count`,
    /// `messages_unacknowledged`, `messages_unconfirmed`, `prefetch_count`, `confirm`, …
    #[track_caller]
    pub fn list_channels(&self, vhost: &str, columns: &[&str]) -> Vec<Row> {
        on_vhost(
            self.list("rabbit_channel:info_all", None, Some(&with_vhost(columns))),
            vhost,
        )
    }

    /// The connections on `vhost`: `pid`, `user`, `state`, `channels`, `client_properties`,
    /// `timeout`, …
    #[track_caller]
    pub fn list_connections(&self, vhost: &str, columns: &[&str]) -> Vec<Row> {
        let columns = with_vhost(columns);
        on_vhost(
            self.list(
                "rabbit_networking:connection_info_all",
                None,
                Some(&columns),
            ),
            vhost,
        )
    }

    #[track_caller]
    fn list(&self, function: &str, vhost: Option<&str>, columns: Option<&[&str]>) -> Vec<Row> {
        let mut args = Vec::new();
        args.extend(vhost.map(binary));
        args.extend(columns.map(|columns| format!("[{}]", columns.join(", "))));
        let json = self.eval_text(&format!(
            "{TO_JSON} rabbit_json:encode([Row(R) || R <- {function}({})])",
            args.join(", ")
        ));
        serde_json::from_str(&json).unwrap_or_else(|error| panic!("{function}: {error} in {json}"))
    }
}

/// `Row`: a property list as a map that can be written as JSON.
const TO_JSON: &str = "
Text = fun(B) -> case unicode:characters_to_binary(B) of T when is_binary(T) -> T;
         _ -> iolist_to_binary(io_lib:format(\"~0p\", [B])) end end,
Value = fun F({resource, _, _, N}) -> F(N);
            F(B) when is_binary(B) -> Text(B);
            F(P) when is_pid(P) -> list_to_binary(pid_to_list(P));
            F([{K, T, _} | _] = L) when is_binary(K), is_atom(T) -> maps:from_list([{Text(N), F(V)} || {N, _, V} <- L]);
            F([{K, _} | _] = L) when is_atom(K) -> maps:from_list([{N, F(V)} || {N, V} <- L]);
            F([{T, _} | _] = L) when is_atom(T) -> [F(V) || {_, V} <- L];
            F([C | _] = L) when is_integer(C) -> Text(L);
            F(L) when is_list(L) -> [F(V) || V <- L];
            F(A) when is_atom(A); is_number(A) -> A;
            F(O) -> iolist_to_binary(io_lib:format(\"~0p\", [O])) end,
Row = fun(R) -> maps:from_list([case C of {arguments, []} -> {arguments, #{}}; {N, V} -> {N, Value(V)} end || C <- R]) end,
";

fn with_vhost<'a>(columns: &[&'a str]) -> Vec<&'a str> {
    let mut columns = columns.to_vec();
    columns.push("vhost");
    columns
}

fn on_vhost(mut rows: Vec<Row>, vhost: &str) -> Vec<Row> {
    rows.retain(|row| row.get("vhost").is_some_and(|name| name == vhost));
    rows
}
