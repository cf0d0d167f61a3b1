//! Listening. What is heard lies in a queue with a bound until it is asked for.
//!
//! Redis remembers nothing for a listener that was away, so a listener is told whenever it begins to hear, and whoever must not
//! miss anything reads what it follows elsewhere, then. The same goes for one that does not keep up: its queue is
//! emptied, since what it would read anyway is newer than what lies there.

use super::{
    Task,
    link::{PATIENCE, PING, Servers, alive, pause},
};
use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _, future::abortable};
use redis::{Msg, Value, aio::PubSub};
use std::{
    collections::VecDeque,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};
use tenure_kernel::runtime::{First, Rt, first};
use tokio::time::timeout;

/// Messages that wait to be taken.
pub const QUEUE_MAX: usize = 16_384;
/// Their bytes.
pub const QUEUE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// What a listener is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    /// From here on it hears. What was published before, since it last heard, is lost: read it elsewhere, now.
    Connected {
        /// The how manieth time.
        connection: u64,
    },
    /// It does not hear, or not any more; each reason once. [`Heard::Connected`] follows when it does.
    Lost {
        /// What happened.
        why: String,
    },
    /// It hears, and did not keep up: so many messages were thrown away. Read it elsewhere, as after [`Heard::Connected`].
    Missed(u64),
    /// A message.
    Message {
        /// The channel that it was published to.
        channel: String,
        /// What was published.
        payload: Bytes,
    },
}

/// Somebody who listens. Ends with this value.
pub struct Subscription {
    queue: Arc<Queue>,
    _task: Task,
}

impl Subscription {
    pub(super) fn start(
        servers: Servers,
        channels: Vec<String>,
        patterns: Vec<String>,
        rt: Rt,
    ) -> Self {
        let queue = Arc::new(Queue::default());
        let line = Line { servers, channels, patterns, rt: rt.clone(), queue: queue.clone() };
        let (running, handle) = abortable(line.run());
        rt.spawn(Box::pin(running.map(|_| ())));
        Subscription { queue, _task: Task(handle) }
    }

    /// What it hears next.
    pub async fn heard(&mut self) -> Heard {
        std::future::poll_fn(|cx| self.queue.poll(cx)).await
    }
}

impl Stream for Subscription {
    type Item = Heard;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Heard>> {
        self.queue.poll(cx).map(Some)
    }
}

/// What was heard and not taken yet.
#[derive(Default)]
struct Queue(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    items: VecDeque<Heard>,
    bytes: usize,
    taker: Option<Waker>,
}

impl Queue {
    fn poll(&self, cx: &mut Context<'_>) -> Poll<Heard> {
        let mut waiting = self.waiting();
        match waiting.items.pop_front() {
            Some(item) => {
                waiting.bytes -= size(&item);
                Poll::Ready(item)
            }
            None => {
                waiting.taker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    fn push(&self, item: Heard) {
        let mut waiting = self.waiting();
        let (items, bytes) = (waiting.items.len(), waiting.bytes + size(&item));
        if items >= QUEUE_MAX || items > 0 && bytes > QUEUE_BYTES_MAX {
            let missed = waiting.items.iter().map(|i| match i {
                Heard::Message { .. } => 1,
                Heard::Missed(n) => *n,
                Heard::Connected { .. } | Heard::Lost { .. } => 0,
            });
            let missed = missed.sum();
            waiting.items.clear();
            waiting.items.push_back(Heard::Missed(missed));
            waiting.bytes = 0;
        }
        waiting.bytes += size(&item);
        waiting.items.push_back(item);
        if let Some(taker) = waiting.taker.take() {
            taker.wake();
        }
    }

    /// Nothing panics under this lock.
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(item: &Heard) -> usize {
    match item {
        Heard::Message { channel, payload } => channel.len() + payload.len(),
        Heard::Connected { .. } | Heard::Lost { .. } | Heard::Missed(_) => 0,
    }
}

/// What fills the queue.
struct Line {
    servers: Servers,
    channels: Vec<String>,
    patterns: Vec<String>,
    rt: Rt,
    queue: Arc<Queue>,
}

impl Line {
    /// Connects for ever.
    async fn run(self) {
        let (mut attempt, mut connection, mut told) = (0, 0, None);
        loop {
            let why = match self.servers.listen(&self.channels, &self.patterns).await {
                Ok((heard, at)) => {
                    attempt = 0;
                    connection += 1;
                    tracing::debug!(%at, connection, "listening to Redis");
                    told = None;
                    self.queue.push(Heard::Connected { connection });
                    self.hear(heard).await
                }
                Err(why) => why,
            };
            if told.as_ref() != Some(&why) {
                tracing::debug!(%why, "not listening to Redis");
                told = Some(why.clone());
                self.queue.push(Heard::Lost { why });
            }
            self.rt.sleep(pause(attempt, self.rt.random())).await;
            attempt = attempt.saturating_add(1);
        }
    }

    /// Hears until the connection is lost, and why it was.
    async fn hear(&self, heard: PubSub) -> String {
        let (mut asks, mut messages) = heard.split();
        let hearing = async {
            while let Some(message) = messages.next().await {
                self.queue.push(said(&message));
            }
        };
        let asking = async {
            loop {
                self.rt.sleep(PING).await;
                let answer = timeout(PATIENCE, asks.ping::<Value>()).await;
                if let Err(why) = alive(answer.map(|a| a.map(|_| ())).ok()) {
                    return why;
                }
            }
        };
        match first(hearing, asking).await {
            First::Left(()) => "the connection was closed".to_owned(),
            First::Right(why) => why,
        }
    }
}

fn said(message: &Msg) -> Heard {
    let payload = Bytes::copy_from_slice(message.get_payload_bytes());
    Heard::Message { channel: message.get_channel_name().to_owned(), payload }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(bytes: usize) -> Heard {
        Heard::Message { channel: String::new(), payload: vec![0; bytes].into() }
    }

    fn taken(queue: &Queue) -> Vec<Heard> {
        let mut cx = Context::from_waker(Waker::noop());
        std::iter::from_fn(|| match queue.poll(&mut cx) {
            Poll::Ready(item) => Some(item),
            Poll::Pending => None,
        })
        .collect()
    }

    #[test]
    fn who_does_not_keep_up_is_told_how_much_was_missed_and_hears_the_newest() {
        let queue = Queue::default();
        queue.push(Heard::Connected { connection: 1 });
        (1..QUEUE_MAX).for_each(|_| queue.push(message(1)));
        queue.push(message(7));
        let missed = u64::try_from(QUEUE_MAX - 1).unwrap();
        assert_eq!(taken(&queue), [Heard::Missed(missed), message(7)]);
        (0..QUEUE_MAX).for_each(|_| queue.push(message(1)));
        assert_eq!(taken(&queue).len(), QUEUE_MAX, "up to the bound nothing is lost");
    }

    #[test]
    fn missed_messages_add_up_and_what_is_said_about_the_connection_stays_true() {
        let queue = Queue::default();
        (0..2 * QUEUE_MAX).for_each(|_| queue.push(message(0)));
        (2..QUEUE_MAX).for_each(|_| queue.push(message(0)));
        queue.push(Heard::Lost { why: "x".into() });
        let told = taken(&queue);
        assert!(told.len() <= QUEUE_MAX, "{}", told.len());
        assert!(
            matches!(told[0], Heard::Missed(_)) && matches!(told.last(), Some(Heard::Lost { .. }))
        );
        let missed: u64 = told.iter().map(|h| if let Heard::Missed(n) = h { *n } else { 0 }).sum();
        let messages = told.iter().filter(|h| matches!(h, Heard::Message { .. })).count();
        assert_eq!(missed + messages as u64, 3 * QUEUE_MAX as u64 - 2);
    }

    #[test]
    fn the_bound_counts_bytes_and_one_message_fits_whatever_its_size() {
        let queue = Queue::default();
        queue.push(message(QUEUE_BYTES_MAX + 1));
        assert_eq!(taken(&queue).len(), 1);
        queue.push(message(QUEUE_BYTES_MAX));
        queue.push(message(1));
        assert_eq!(taken(&queue), [Heard::Missed(1), message(1)]);
    }
}
