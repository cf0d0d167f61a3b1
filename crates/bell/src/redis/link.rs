//! Connections: which server of the list, when to try again, and when to give one up.

use super::address::{RedisOptions, Server};
use redis::{
    AsyncConnectionConfig, ErrorKind, Pipeline, RedisError, Value,
    aio::{MultiplexedConnection, PubSub},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};
use tokio::time::timeout;

/// How long the server may take to answer. A longer silence costs the connection.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// How often a connection is asked whether it is alive.
pub(super) const PING: Duration = Duration::from_secs(2);
const BACKOFF_FIRST: Duration = Duration::from_millis(50);
const BACKOFF_MAX: Duration = Duration::from_secs(3);

/// The pause before a further try to connect: doubled each time up to a bound, and somewhere in its upper half, because
/// everybody who listened to a server loses it in the same moment.
pub(super) fn pause(attempt: u32, random: u64) -> Duration {
    let whole = (BACKOFF_FIRST * 2u32.pow(attempt.min(10))).min(BACKOFF_MAX);
    let half = whole / 2;
    // At most three seconds: it fits.
    let spread = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(random % spread)
}

/// The servers of a list, in turn.
pub(super) struct Servers {
    list: Vec<Server>,
    /// The one that was there last.
    at: AtomicUsize,
    name: String,
}

/// A connection that answers, and where it is.
pub(super) struct Answering {
    pub(super) connection: MultiplexedConnection,
    pub(super) at: String,
}

impl Servers {
    pub(super) fn new(options: &RedisOptions) -> Result<Self, String> {
        let name = options.name.replace(|c: char| !c.is_ascii_graphic(), "_");
        Ok(Servers { list: options.servers()?, at: AtomicUsize::new(0), name })
    }

    /// A list of the same servers that goes on by itself.
    pub(super) fn again(&self) -> Self {
        let list =
            self.list.iter().map(|s| Server { client: s.client.clone(), shown: s.shown.clone() });
        Servers { list: list.collect(), at: AtomicUsize::new(0), name: self.name.clone() }
    }

    /// Connects to the first server that will do, beginning with the last one that did.
    pub(super) async fn connect(&self) -> Result<Answering, String> {
        let mut troubles = Vec::new();
        for nth in 0..self.list.len() {
            let (index, server) = self.nth(nth);
            match in_time(self.usable(server)).await {
                Ok(connection) => {
                    self.at.store(index, Ordering::Relaxed);
                    return Ok(Answering { connection, at: server.shown.clone() });
                }
                Err(e) => troubles.push(format!("{}: {e}", server.shown)),
            }
        }
        Err(troubles.join("; "))
    }

    /// Listens at the first server that will do.
    pub(super) async fn listen(
        &self,
        channels: &[String],
        patterns: &[String],
    ) -> Result<(PubSub, String), String> {
        let mut troubles = Vec::new();
        for nth in 0..self.list.len() {
            let (index, server) = self.nth(nth);
            match in_time(self.listening(server, channels, patterns)).await {
                Ok(heard) => {
                    self.at.store(index, Ordering::Relaxed);
                    return Ok((heard, server.shown.clone()));
                }
                Err(e) => troubles.push(format!("{}: {e}", server.shown)),
            }
        }
        Err(troubles.join("; "))
    }

    fn nth(&self, nth: usize) -> (usize, &Server) {
        let index = (self.at.load(Ordering::Relaxed) + nth) % self.list.len();
        (index, &self.list[index])
    }

    async fn listening(
        &self,
        server: &Server,
        channels: &[String],
        patterns: &[String],
    ) -> Result<PubSub, String> {
        // A connection that listens can ask nothing else.
        drop(self.usable(server).await?);
        let mut heard = server.client.get_async_pubsub().await.map_err(say)?;
        if !channels.is_empty() {
            heard.subscribe(channels).await.map_err(say)?;
        }
        if !patterns.is_empty() {
            heard.psubscribe(patterns).await.map_err(say)?;
        }
        Ok(heard)
    }

    /// A connection to a server that answers, and through which everybody is reached.
    async fn usable(&self, server: &Server) -> Result<MultiplexedConnection, String> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE));
        let connecting = server.client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await.map_err(say)?;
        let mut questions = Pipeline::new();
        questions.cmd("CLIENT").arg("SETNAME").arg(&self.name).cmd("ROLE");
        let answers = connection.send_packed_commands(&questions, 0, 2).await.map_err(say)?;
        let role = answers.get(1).map_or(Ok(Role::Unknown), Role::of)?;
        if role == Role::Replica {
            let mut question = redis::cmd("CLUSTER");
            let answer = connection.send_packed_command(question.arg("INFO")).await;
            if matches!(answer, Err(_) | Ok(Value::ServerError(_))) {
                return Err("it is a replica: only those who listen there would hear us".to_owned());
            }
        }
        Ok(connection)
    }
}

/// What a server is. One that tells what is published to its own listeners only will not do.
#[derive(Debug, PartialEq, Eq)]
enum Role {
    Primary,
    /// Outside of a cluster, which tells all its nodes.
    Replica,
    /// What it may not be asked is not held against it: `ROLE` needs a permission that publishers seldom have.
    Unknown,
}

impl Role {
    fn of(answer: &Value) -> Result<Self, String> {
        match answer {
            Value::ServerError(e) if ["LOADING", "NOAUTH", "MASTERDOWN"].contains(&e.code()) => {
                Err(e.to_string())
            }
            Value::Array(words) => match words.first() {
                Some(Value::BulkString(word)) if word == b"master" => Ok(Role::Primary),
                Some(Value::BulkString(word)) if word == b"slave" => Ok(Role::Replica),
                Some(Value::BulkString(word)) if word == b"sentinel" => {
                    Err("it is a Sentinel; name the servers that it watches".to_owned())
                }
                _ => Ok(Role::Unknown),
            },
            _ => Ok(Role::Unknown),
        }
    }
}

async fn in_time<T>(connecting: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    timeout(2 * PATIENCE, connecting).await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn say(e: RedisError) -> String {
    if e.is_timeout() { "it does not answer".to_owned() } else { e.to_string() }
}

/// Asks whether a server is alive. One that answers with a refusal is.
pub(super) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), String> {
    let asking = redis::cmd("PING");
    let asked = timeout(PATIENCE, connection.send_packed_command(&asking)).await;
    alive(asked.map(|answer| answer.map(|_| ())).ok())
}

/// What an answer to a ping means; `None` where there was none in time.
pub(super) fn alive(answer: Option<Result<(), RedisError>>) -> Result<(), String> {
    match answer {
        None => Err("the server does not answer".to_owned()),
        Some(Err(e)) if !matches!(e.kind(), ErrorKind::Server(_) | ErrorKind::Extension) => {
            Err(say(e))
        }
        Some(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_lie_in_the_upper_half() {
        for (attempt, whole) in [(0, 50), (1, 100), (5, 1_600), (6, 3_000), (4_000_000, 3_000)] {
            let whole = Duration::from_millis(whole);
            for random in [0, 1, u64::MAX, 123_456_789] {
                let paused = pause(attempt, random);
                assert!((whole / 2..=whole).contains(&paused), "{attempt} {random}: {paused:?}");
            }
        }
        assert_ne!(pause(6, 1), pause(6, 77_777), "not all at once");
    }

    #[test]
    fn a_server_that_is_not_ready_will_not_do_and_one_that_may_not_be_asked_will() {
        let role = |answer: &str| Role::of(&redis::parse_redis_value(answer.as_bytes()).unwrap());
        assert_eq!(role("*1\r\n$6\r\nmaster\r\n"), Ok(Role::Primary));
        assert_eq!(role("*1\r\n$5\r\nslave\r\n"), Ok(Role::Replica));
        assert!(role("*1\r\n$8\r\nsentinel\r\n").unwrap_err().contains("Sentinel"));
        assert_eq!(role("-NOPERM this user may not\r\n"), Ok(Role::Unknown));
        assert_eq!(role("-ERR unknown command\r\n"), Ok(Role::Unknown));
        assert!(role("-LOADING the dataset\r\n").is_err());
        assert!(role("-NOAUTH Authentication required.\r\n").unwrap_err().contains("NOAUTH"));
    }
}
