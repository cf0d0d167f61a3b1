//! Events into a JetStream, where `bus.jetstream` says so: each is acknowledged by the stream that has stored it, and a
//! repetition within the stream's window is known by its id and stored once.
//!
//! Three requests are all we need of JetStream (look for the stream, make it, publish with a reply), so they are written
//! here by hand. Order: a stream may refuse one message and take the next, so of every *line* one message is under way at a
//! time: what is said about one agent, also by two turns of it, or else what one source says. A batch goes out in waves: the
//! first of every line, then the second of those whose first was stored, and so on. Agents' events come in twos and
//! threes, so that is two or three round trips.

use super::{PATIENCE, Shared, away, message::agent_of, wire::Published};
use async_nats::{Message, StatusCode};
use futures_util::StreamExt as _;
use serde_json::{Value, json};
use std::{collections::HashMap, sync::atomic::Ordering};
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

impl Shared {
    pub(super) async fn publish_to_stream(&self, rows: &[Posted]) -> Vec<Published> {
        if let Err(e) = self.ensure_stream().await {
            return rows.iter().map(|_| Err(e.clone())).collect();
        }
        let mut answers: Vec<Published> =
            rows.iter().map(|_| Err(away("an earlier one of its line waits"))).collect();
        // Nobody stores what is not an event: such messages are published as without a stream.
        let (events, others): (Vec<usize>, Vec<usize>) =
            (0..rows.len()).partition(|i| is_event(&rows[*i]));
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
        timeout(PATIENCE, all).await.map_err(|_| away("the stream does not answer"))
    }

    /// What the stream said about one message.
    fn stored(&self, reply: &Message) -> Published {
        if reply.status == Some(StatusCode::NO_RESPONDERS) {
            self.stream_is_there.store(false, Ordering::Relaxed);
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

    async fn ask(&self, what: &str, with: &Value) -> Result<Value, StoreError> {
        let asking = self.client.request(format!("$JS.API.{what}"), with.to_string().into());
        let answer =
            timeout(PATIENCE, asking).await.map_err(|_| away("JetStream does not answer"))?;
        let answer = answer.map_err(|e| away(format!("JetStream: {e}; is it switched on?")))?;
        serde_json::from_slice(&answer.payload).map_err(away)
    }
}

/// Whether the stream keeps it.
fn is_event(posted: &Posted) -> bool {
    matches!(&posted.message.to, Target::Wire(subject) if subject.starts_with("evt."))
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
    fn a_wave_has_one_of_every_line_in_order() {
        let (a, b) = (Line::Agent("t", "a"), Line::Source(EntityId::fixed(1, 2)));
        let rows = [a, a, b, a, b].into_iter().enumerate();
        assert_eq!(waves(rows), [vec![0, 2], vec![1, 4], vec![3]]);
        assert!(waves(std::iter::empty()).is_empty());
    }
}
