//! Events into a JetStream that takes their subjects: each is acknowledged by the stream that has stored it, and a
//! repetition within the stream's window is known by its id and stored once. A stream that is there is used; one is made only where
//! `bus.jetstream` says so.
//!
//! Four requests are all we need of JetStream (look for streams and what they take, make one, publish with a reply), so they
//! are written here by hand. Order: a stream may refuse one message and take the next, so of every *line* one message is under way at a
//! time: what is said about one agent, also by two turns of it, or else what one source says. A batch goes out in waves: the
//! first of every line, then the second of those whose first was stored, and so on. Agents' events come in twos and
//! threes, so that is two or three round trips.

use super::{PATIENCE, Shared, away, message::agent_of, wire::Published};
use async_nats::{Message, RequestErrorKind, StatusCode};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    outbox::{Posted, Target},
};
use tokio::time::timeout;

/// How long a stream that we make keeps events.
const KEPT_SECONDS: u64 = 7 * 86_400;
/// How long it knows an id.
const KNOWN_SECONDS: u64 = 120;

/// What streams of the server take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Streams {
    /// All events: there has to be one.
    All,
    /// What these subjects cover.
    Of(Arc<[String]>),
}

impl Streams {
    /// Whether nothing is stored.
    pub(super) fn is_none(&self) -> bool {
        matches!(self, Streams::Of(subjects) if subjects.is_empty())
    }

    fn take(&self, subject: &str) -> bool {
        match self {
            Streams::All => true,
            Streams::Of(subjects) => subjects.iter().any(|s| covers(s, subject)),
        }
    }
}

/// Whether a subject with wildcards covers one without.
fn covers(wide: &str, subject: &str) -> bool {
    let mut tokens = subject.split('.');
    for want in wide.split('.') {
        match (want, tokens.next()) {
            (">", Some(_)) => return true,
            ("*", Some(_)) => {}
            (want, Some(token)) if want == token => {}
            _ => return false,
        }
    }
    tokens.next().is_none()
}

/// Streams whose subjects are looked at.
const STREAMS_MAX: usize = 16;
/// Connections are counted from one.
const NO_CONNECTION: u64 = 0;

impl Shared {
    /// The streams that take events, as they were found over this connection.
    pub(super) async fn streams(&self) -> Result<Streams, StoreError> {
        if self.jetstream {
            return self.ensure_stream().await.map(|()| Streams::All);
        }
        let connection = self.connection();
        let known = self.found_streams().clone();
        let before = match known {
            Some((of, subjects)) if of == connection => return Ok(Streams::Of(subjects)),
            Some((_, subjects)) => subjects,
            None => Arc::default(),
        };
        let found: Arc<[String]> = match self.look_for_streams().await {
            Ok(found) => found.into(),
            // Without JetStream, or without the permission to ask, nothing is stored.
            Err(e) if matches!(e, Unanswered::Off) || self.link.is_api_denied() => {
                tracing::debug!(error = %StoreError::from(e), "no stream takes events");
                Arc::default()
            }
            // It may be able to say so soon: the next batch asks again, and until then what was known holds.
            Err(e) => {
                tracing::debug!(error = %StoreError::from(e), "streams cannot be looked for now");
                return Ok(Streams::Of(before));
            }
        };
        if !found.is_empty() {
            tracing::info!(subjects = ?found, "events go to a stream that is there");
        }
        *self.found_streams() = Some((connection, found.clone()));
        Ok(Streams::Of(found))
    }

    async fn look_for_streams(&self) -> Result<Vec<String>, Unanswered> {
        let wanted = json!({ "subject": self.subjects.full("evt.>") });
        let with = without_error(self.ask("STREAM.NAMES", &wanted).await?)?;
        let names = with["streams"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let mut subjects = Vec::new();
        for name in names.take(STREAMS_MAX) {
            let info = self.ask(&format!("STREAM.INFO.{name}"), &json!({})).await?;
            let info = without_error(info)?;
            // It never says that it has stored something.
            if info["config"]["no_ack"] == true {
                continue;
            }
            // A mirror and a source copy from others; only what lists subjects takes messages.
            let listed = info["config"]["subjects"].as_array().into_iter().flatten();
            subjects.extend(listed.filter_map(|s| s.as_str().map(str::to_owned)));
        }
        Ok(subjects)
    }

    fn found_streams(&self) -> MutexGuard<'_, Option<(u64, Arc<[String]>)>> {
        // Nothing panics while it holds this lock.
        self.found_streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream did not answer, and may not be there any more: it is looked for again. What was found holds until that is answered.
    fn doubt_streams(&self) {
        self.stream_is_there.store(false, Ordering::Relaxed);
        if let Some((connection, _)) = &mut *self.found_streams() {
            *connection = NO_CONNECTION;
        }
    }

    pub(super) async fn publish_to_stream(
        &self,
        rows: &[Posted],
        streams: &Streams,
    ) -> Vec<Published> {
        let mut answers: Vec<Published> =
            rows.iter().map(|_| Err(away("an earlier one of its line waits"))).collect();
        // Nobody stores what is not an event, or what no stream takes: such messages are published as without a stream.
        let is_taken = |posted: &Posted| match &posted.message.to {
            Target::Wire(subject) if subject.starts_with("evt.") => {
                streams.take(&self.subjects.of_message(&posted.tenant, subject))
            }
            _ => false,
        };
        let (events, others): (Vec<usize>, Vec<usize>) =
            (0..rows.len()).partition(|i| is_taken(&rows[*i]));
        let other_rows: Vec<Posted> = others.iter().map(|i| rows[*i].clone()).collect();
        if !other_rows.is_empty() {
            for (i, answer) in others.iter().zip(self.publish_core(&other_rows).await) {
                answers[*i] = answer;
            }
        }
        for wave in waves(events.iter().map(|i| (*i, Line::of(&rows[*i])))) {
            let is_stuck = |i: &usize| {
                let mut earlier = events.iter().take_while(|e| *e < i);
                let line = Line::of(&rows[*i]);
                earlier.any(|e| Line::of(&rows[*e]) == line && !is_settled(&answers[*e]))
            };
            let wave: Vec<usize> = wave.into_iter().filter(|i| !is_stuck(i)).collect();
            if wave.is_empty() {
                break;
            }
            let stored = timeout(2 * PATIENCE, self.publish_wave(rows, &wave, &mut answers)).await;
            if !matches!(stored, Ok(Ok(()))) {
                tracing::debug!(?stored, "a wave of events was not stored");
            }
        }
        answers
    }

    /// One message per line, and the answer of the stream to each. What is not answered stays as it was: not stored.
    async fn publish_wave(
        &self,
        rows: &[Posted],
        wave: &[usize],
        answers: &mut [Published],
    ) -> Result<(), StoreError> {
        let inbox = self.client.new_inbox();
        let mut replies = self.client.subscribe(format!("{inbox}.*")).await.map_err(away)?;
        let mut open = 0;
        for i in wave {
            match self.hand_over(&rows[*i], Some(format!("{inbox}.{i}"))).await {
                Ok(()) => {
                    answers[*i] = Err(away("the stream does not answer"));
                    open += 1;
                }
                refused => answers[*i] = refused,
            }
        }
        let all = async {
            while open > 0 {
                let Some(reply) = replies.next().await else { return };
                let index = reply.subject.rsplit('.').next().and_then(|t| t.parse::<usize>().ok());
                if let Some(answer) = index.and_then(|i| answers.get_mut(i)) {
                    *answer = self.stored(&reply);
                    open -= 1;
                }
            }
        };
        timeout(PATIENCE, all).await.map_err(|_| {
            self.doubt_streams();
            away("the stream does not answer")
        })
    }

    /// What the stream said about one message.
    fn stored(&self, reply: &Message) -> Published {
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            self.stream_is_there.store(false, Ordering::Relaxed);
            *self.found_streams() = None;
            return Err(away("no stream takes it"));
        }
        let said: Value = serde_json::from_slice(&reply.payload).map_err(away)?;
        match said.get("error") {
            None => Ok(()),
            Some(e) => Err(away(format!("the stream refuses it: {e}"))),
        }
    }

    /// Looks for the stream, and makes it where it is missing. Whoever wants another one (more copies, another age) makes it
    /// first, under the same name or with the same subjects.
    async fn ensure_stream(&self) -> Result<(), StoreError> {
        if self.stream_is_there.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (name, subjects) = self.subjects.stream();
        let with = self.ask("STREAM.NAMES", &json!({ "subject": subjects })).await?;
        let found = with["streams"].as_array().is_some_and(|s| !s.is_empty());
        if !found {
            let nanos = |seconds: u64| seconds * 1_000_000_000;
            let made = self
                .ask(
                    &format!("STREAM.CREATE.{name}"),
                    &json!({
                        "name": name, "subjects": [subjects], "retention": "limits", "storage": "file",
                        "discard": "old", "num_replicas": 1, "max_age": nanos(KEPT_SECONDS),
                        "duplicate_window": nanos(KNOWN_SECONDS),
                    }),
                )
                .await?;
            if let Some(e) = made.get("error") {
                return Err(away(format!("the stream {name} can not be made: {e}")));
            }
            tracing::info!(stream = %name, %subjects, "made a stream for events");
        }
        self.stream_is_there.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn ask(&self, what: &str, with: &Value) -> Result<Value, Unanswered> {
        let asking = self.client.request(format!("$JS.API.{what}"), with.to_string().into());
        let answer =
            timeout(PATIENCE, asking).await.map_err(|_| away("JetStream does not answer"))?;
        let answer = answer.map_err(|e| match e.kind() {
            RequestErrorKind::NoResponders => Unanswered::Off,
            _ => Unanswered::Now(away(format!("JetStream: {e}"))),
        })?;
        Ok(serde_json::from_slice(&answer.payload).map_err(away)?)
    }
}

/// Why JetStream does not say what it was asked for.
enum Unanswered {
    /// There is none here. The server says so at once.
    Off,
    /// Not now.
    Now(StoreError),
}

impl From<StoreError> for Unanswered {
    fn from(e: StoreError) -> Self {
        Unanswered::Now(e)
    }
}

impl From<Unanswered> for StoreError {
    fn from(e: Unanswered) -> Self {
        match e {
            Unanswered::Off => away("JetStream: nobody answers; is it switched on?"),
            Unanswered::Now(e) => e,
        }
    }
}

/// "JetStream not enabled for account" and "JetStream not enabled".
const NOT_ENABLED: [u64; 2] = [10_039, 10_076];

fn without_error(answer: Value) -> Result<Value, Unanswered> {
    match answer.get("error") {
        None => Ok(answer),
        Some(e) if e["err_code"].as_u64().is_some_and(|c| NOT_ENABLED.contains(&c)) => {
            Err(Unanswered::Off)
        }
        Some(e) => Err(Unanswered::Now(away(format!("JetStream: {e}")))),
    }
}

/// What is stored in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Line<'a> {
    /// Of a tenant: two may have agents of the same name.
    Agent(&'a str, &'a str),
    Source(EntityId),
}

impl<'a> Line<'a> {
    fn of(posted: &'a Posted) -> Self {
        match &posted.message.to {
            Target::Wire(subject) => {
                agent_of(subject).map(|name| Line::Agent(&posted.tenant, name))
            }
            _ => None,
        }
        .unwrap_or(Line::Source(posted.id.source))
    }
}

/// Whether the next of the same line may go.
fn is_settled(answer: &Published) -> bool {
    matches!(answer, Ok(()) | Err(StoreError::Refused(_)))
}

/// The first of every line, the second of every line, and so on, each in order.
fn waves<'a>(rows: impl Iterator<Item = (usize, Line<'a>)>) -> Vec<Vec<usize>> {
    let mut of_line: HashMap<Line<'a>, usize> = HashMap::new();
    let mut waves: Vec<Vec<usize>> = Vec::new();
    for (i, line) in rows {
        let turn = of_line.entry(line).or_default();
        if waves.len() == *turn {
            waves.push(Vec::new());
        }
        waves[*turn].push(i);
        *turn += 1;
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_takes_what_its_subjects_cover() {
        let all = Streams::Of(["evt.>".to_owned()].into());
        assert!(
            all.take("evt.agent.a.task") && !all.take("p.evt.agent.a.task") && !all.take("evt")
        );
        let some = Streams::Of(["evt.agent.*.task".to_owned(), "x".to_owned()].into());
        assert!(some.take("evt.agent.a.task") && !some.take("evt.agent.a.step"));
        assert!(!some.take("evt.agent.a.task.b") && !some.take("evt.agent.a"));
        assert!(
            Streams::Of(Vec::new().into()).is_none() && !all.is_none() && !Streams::All.is_none()
        );
    }

    #[test]
    fn an_error_is_no_answer_and_some_say_that_there_is_no_jetstream() {
        let said = |code: u64| without_error(json!({ "error": { "err_code": code } }));
        assert!(matches!(said(10_039), Err(Unanswered::Off)));
        assert!(matches!(said(10_008), Err(Unanswered::Now(_))), "temporarily unavailable");
        assert!(without_error(json!({ "streams": null })).is_ok());
    }

    #[test]
    fn a_wave_has_one_of_every_line_in_order() {
        let (a, b) = (Line::Agent("t", "a"), Line::Source(EntityId::fixed(1, 2)));
        let rows = [a, a, b, a, b].into_iter().enumerate();
        assert_eq!(waves(rows), [vec![0, 2], vec![1, 4], vec![3]]);
        assert!(waves(std::iter::empty()).is_empty());
    }
}
