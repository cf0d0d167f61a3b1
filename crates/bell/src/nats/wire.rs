//! Events over the bus: many are published, then acknowledged together. Either all of a batch were taken or none
//! counts: in order, because a repetition of the whole batch keeps the order of what is heard for the first time.
//! A subject that is not permitted and is no event's costs its own message alone (see [`super::address`]).

use super::{Bus, PATIENCE, Shared, address::is_event, away, message::Outbound};
use async_nats::{HeaderMap, HeaderValue, PublishErrorKind};
use bytes::Bytes;
use std::{collections::HashSet, str::FromStr as _};
use tenure_kernel::{
    error::StoreError,
    outbox::{Posted, Target, Wire},
    runtime::BoxFuture,
};
use tokio::time::timeout;

/// What became of one row.
pub(super) type Published = Result<(), StoreError>;

impl Wire for Bus {
    fn publish(&self, subject: &str, posted: &Posted) -> BoxFuture<'_, Published> {
        let to = Target::Wire(subject.to_owned());
        let mut row = posted.clone();
        row.message.to = to;
        Box::pin(async move {
            let mut answers = self.publish_all(std::slice::from_ref(&row)).await;
            answers.pop().unwrap_or_else(|| Err(away("no answer")))
        })
    }

    fn publish_all<'a>(&'a self, rows: &'a [Posted]) -> BoxFuture<'a, Vec<Published>> {
        Box::pin(async move {
            if !self.is_up() {
                return rows.iter().map(|_| Err(away("not connected"))).collect();
            }
            match self.shared.streams().await {
                Ok(streams) if streams.is_none() => self.shared.publish_core(rows).await,
                Ok(streams) => self.shared.publish_to_stream(rows, &streams).await,
                Err(e) => rows.iter().map(|_| Err(e.clone())).collect(),
            }
        })
    }

    fn is_up(&self) -> bool {
        *self.shared.ready.borrow()
    }
}

impl Shared {
    pub(super) async fn publish_core(&self, rows: &[Posted]) -> Vec<Published> {
        let connection = self.connection();
        self.settled().await;
        let mut answers: Vec<Published> = rows.iter().map(|_| Ok(())).collect();
        let handing_over = async {
            for (posted, answer) in rows.iter().zip(&mut answers) {
                *answer = self.hand_over(posted, None).await;
            }
            self.confirm(connection).await
        };
        let taken = timeout(2 * PATIENCE, handing_over).await;
        if let Err(e) = taken.unwrap_or_else(|_| Err(away("the way to the server is full"))) {
            // What can never be published is refused all the same.
            for answer in answers.iter_mut().filter(|a| !matches!(a, Err(StoreError::Refused(_)))) {
                *answer = Err(e.clone());
            }
            return answers;
        }
        let denied = self.is_denied().await;
        let mut found = HashSet::new();
        for (posted, answer) in rows.iter().zip(&mut answers).filter(|(_, a)| a.is_ok()) {
            let Target::Wire(subject) = &posted.message.to else { continue };
            let subject = self.subjects.of_message(&posted.tenant, subject);
            if is_event(&self.subjects, &subject) {
                if denied {
                    *answer = Err(away("the server does not permit us to publish events"));
                }
            } else if self.link.unwelcome().contains(&subject) {
                let why = format!("NATS: we are not permitted to publish to {subject}");
                *answer = Err(StoreError::Refused(why));
                found.insert(subject);
            }
        }
        // Tried again with the next message: somebody may have permitted it meanwhile.
        self.link.unwelcome().retain(|subject| !found.contains(subject));
        answers
    }

    /// Gives one row to the client. Not yet on its way.
    pub(super) async fn hand_over(&self, posted: &Posted, reply: Option<String>) -> Published {
        // Nothing else is read from the outbox as outside.
        let Target::Wire(subject) = &posted.message.to else { return Ok(()) };
        let out = Outbound::of(subject, posted);
        let mut headers = HeaderMap::new();
        for (name, value) in out.headers {
            if let Ok(value) = HeaderValue::from_str(&value) {
                headers.insert(name, value);
            }
        }
        let subject = self.subjects.of_message(&posted.tenant, subject);
        let payload = Bytes::from(out.payload);
        // The client looks for spaces only; a subject with an empty token would cost the connection.
        if !is_subject(&subject) {
            return Err(StoreError::Refused(format!("{subject:?} is no subject")));
        }
        let handed = match reply {
            Some(reply) => {
                self.client.publish_with_reply_and_headers(subject, reply, headers, payload).await
            }
            None => self.client.publish_with_headers(subject, headers, payload).await,
        };
        handed.map_err(|e| match e.kind() {
            PublishErrorKind::Send => away(e),
            PublishErrorKind::MaxPayloadExceeded | PublishErrorKind::InvalidSubject => {
                StoreError::Refused(format!("NATS: {e}"))
            }
        })
    }
}

/// Whether something can be published to it: tokens without wildcards.
fn is_subject(text: &str) -> bool {
    let bad = |c: char| c.is_whitespace() || c.is_control() || c == '*' || c == '>';
    text.split('.').all(|token| !token.is_empty() && !token.contains(bad))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_is_tokens_without_wildcards() {
        for good in ["a", "evt.agent.0190-x.task", "orders.\u{2713}"] {
            assert!(is_subject(good), "{good}");
        }
        for bad in ["", ".", "a.", ".a", "a..b", "a.*", ">", "a b", "a\r\nPUB x"] {
            assert!(!is_subject(bad), "{bad:?}");
        }
    }
}
