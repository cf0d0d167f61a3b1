//! The log of a pod, as pieces of its history.
//!
//! The API server is asked for lines with their time stamps, so that whoever takes over reads on where the last piece ends
//! and nothing is kept twice: lines up to that moment are skipped. Moments are kept in microseconds, and a program writes
//! several lines in one of those; therefore a piece ends only where the time stamp changes, or after a pause, in which
//! everything of the same moment has come.
//!
//! A log never fails a task. What cannot be read is tried again for as long as the pod is tended, and given up with it. Why is on
//! record, so that whoever looks for the log does not take it for an empty one.

use super::cluster::{Cluster, LogAsk};
use crate::pod::{Begun, model::limits};
use futures_util::StreamExt as _;
use std::{sync::Arc, time::Duration};
use tenure_kernel::{
    runtime::{First, Rt, first},
    time::Timestamp,
};
use tokio::sync::{mpsc, watch};

/// A line with its moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it was written, by its node.
    pub at: Timestamp,
    /// With its end of line.
    pub text: String,
}

/// Takes bytes apart into lines. A line that is longer than a piece may be comes in parts of one moment.
#[derive(Debug, Default)]
pub struct Lines {
    rest: Vec<u8>,
    /// The moment of a line whose end has not come.
    inside: Option<Timestamp>,
}

impl Lines {
    /// Takes bytes, gives the lines that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<Line> {
        self.rest.extend_from_slice(bytes);
        let mut lines = Vec::new();
        let mut from = 0;
        while let Some(n) = self.rest[from..].iter().position(|b| *b == b'\n') {
            let line = self.rest[from..=from + n].to_vec();
            lines.extend(self.line(&line, true));
            from += n + 1;
        }
        self.rest.drain(..from);
        if self.rest.len() > limits::LOG_CHUNK_BYTES_MAX {
            let part = std::mem::take(&mut self.rest);
            lines.extend(self.line(&part, false));
        }
        lines
    }

    /// What is left when nothing more comes.
    pub fn finish(&mut self) -> Option<Line> {
        let rest = std::mem::take(&mut self.rest);
        if rest.is_empty() { None } else { self.line(&rest, true) }
    }

    fn line(&mut self, bytes: &[u8], ends: bool) -> Option<Line> {
        let text = String::from_utf8_lossy(bytes);
        let (at, text) = match (self.inside, text.split_once(' ')) {
            (Some(at), _) => (at, text.into_owned()),
            (None, Some((stamp, rest))) => match moment(stamp) {
                Some(at) => (at, rest.to_owned()),
                // Words of the kubelet's own ("failed to watch file …") have none, and are not the program's.
                None => return None,
            },
            (None, None) => match moment(text.trim_end()) {
                Some(at) => (at, "\n".to_owned()),
                None => return None,
            },
        };
        self.inside = (!ends).then_some(at);
        Some(Line { at, text })
    }
}

fn moment(stamp: &str) -> Option<Timestamp> {
    let at: k8s_openapi::jiff::Timestamp = stamp.parse().ok()?;
    Some(Timestamp::from_micros(at.as_microsecond()))
}

/// A piece of a log, ready to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its lines.
    pub text: String,
    /// The moment of its last line.
    pub until: Timestamp,
}

/// Gathers lines into pieces.
#[derive(Debug, Default)]
pub struct Pieces {
    /// Lines of moments that are over.
    closed: String,
    closed_until: Option<Timestamp>,
    /// Lines of the last moment.
    open: String,
    open_at: Option<Timestamp>,
}

impl Pieces {
    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.closed.is_empty() && self.open.is_empty()
    }

    /// Takes a line; gives a piece when there is a whole one.
    pub fn push(&mut self, line: Line) -> Vec<Piece> {
        let mut full = Vec::new();
        if self.open_at != Some(line.at) {
            self.close();
        }
        if self.closed.len() + line.text.len() > limits::LOG_CHUNK_BYTES_MAX {
            full.extend(self.take_closed());
        }
        self.open.push_str(&line.text);
        self.open_at = Some(line.at);
        if self.open.len() > limits::LOG_CHUNK_BYTES_MAX {
            self.close();
            full.extend(self.take_closed());
        }
        full
    }

    /// Everything that waits, after a pause or at the end.
    pub fn flush(&mut self) -> Vec<Piece> {
        self.close();
        self.take_closed()
    }

    fn close(&mut self) {
        self.closed.push_str(&self.open);
        self.open.clear();
        self.closed_until = self.open_at.take().or(self.closed_until);
    }

    fn take_closed(&mut self) -> Vec<Piece> {
        let text = std::mem::take(&mut self.closed);
        let Some(until) = self.closed_until.take() else { return Vec::new() };
        let mut left = text.as_str();
        let mut pieces = Vec::new();
        while !left.is_empty() {
            let part = tenure_kernel::limits::clip(left, limits::LOG_CHUNK_BYTES_MAX);
            pieces.push(Piece { text: part.to_owned(), until });
            left = &left[part.len()..];
        }
        pieces
    }
}

/// How long lines may wait for others: a second at first, longer for a pod that speaks slowly and for long, so that a day of
/// one line a second is not a day of one commit a second.
pub fn patience(pieces: u32) -> Duration {
    Duration::from_millis(1_000 + u64::from(pieces.min(290)) * 100)
}

/// Between two tries to read a log; doubles.
const PAUSE: Duration = Duration::from_millis(500);
/// The longest.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// This number of failures in a row is reported.
const FAILURES_SAID: u32 = 3;
/// Lines on their way.
const LINES_MAX: usize = 256;

/// Whose log, and from where.
pub struct Reading {
    /// The pod.
    pub at: Begun,
    /// The container.
    pub container: Option<String>,
    /// Up to when it was read.
    pub since: Option<Timestamp>,
}

/// What comes of a log that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A line.
    Line(Line),
    /// It cannot be read; why. It is tried again.
    Trouble(String),
    /// There is nothing more. A channel that closes without it says nothing about the log: whoever read it is gone.
    End,
}

/// A log that is being read.
pub struct Log {
    /// What comes of it.
    pub lines: mpsc::Receiver<Read>,
    over: watch::Sender<bool>,
}

impl Log {
    /// Begins to read.
    pub fn follow(cluster: Arc<dyn Cluster>, rt: &Rt, reading: Reading) -> Self {
        let (sender, lines) = mpsc::channel(LINES_MAX);
        let (over, is_over) = watch::channel(false);
        rt.spawn(Box::pin(read(cluster, rt.clone(), reading, sender, is_over)));
        Log { lines, over }
    }

    /// The container has ended: what is there now is all there is.
    pub fn ends(&self) {
        self.over.send_if_modified(|over| !std::mem::replace(over, true));
    }
}

async fn read(
    cluster: Arc<dyn Cluster>,
    rt: Rt,
    reading: Reading,
    sender: mpsc::Sender<Read>,
    mut over: watch::Receiver<bool>,
) {
    let Reading { at, container, mut since } = reading;
    let mut pause = PAUSE;
    let mut failures = 0u32;
    loop {
        let last = *over.borrow_and_update();
        let ask = LogAsk { container: container.clone(), since, follow: !last, tail_lines: None };
        let heard = first(sender.closed(), one(&*cluster, &at, ask, since, &sender)).await;
        let (until, trouble) = match heard {
            First::Left(()) => return,
            First::Right(heard) => heard,
        };
        if until > since {
            (pause, failures) = (PAUSE, 0);
        }
        since = until;
        match trouble {
            None if last => {
                let _ = sender.send(Read::End).await;
                return;
            }
            None => failures = 0,
            Some(why) => {
                failures = failures.saturating_add(1);
                // One that was just started may have none yet; of one that has ended there is no more to wait for.
                if failures == FAILURES_SAID || last && failures <= 1 {
                    tracing::info!(pod = %at.name, %why, "a log cannot be read now");
                    if sender.send(Read::Trouble(why)).await.is_err() {
                        return;
                    }
                }
            }
        }
        // The end of the container is worth another look at once.
        let nap = first(sender.closed(), rt.sleep(pause));
        match first(nap, over.wait_for(|over| *over && !last)).await {
            First::Left(First::Left(())) | First::Right(Err(_)) => return,
            First::Left(First::Right(())) => pause = (pause * 2).min(PAUSE_MAX),
            First::Right(Ok(_)) => {}
        }
    }
}

/// One stream: up to when it was read, and what went wrong.
async fn one(
    cluster: &dyn Cluster,
    at: &Begun,
    ask: LogAsk,
    since: Option<Timestamp>,
    sender: &mpsc::Sender<Read>,
) -> (Option<Timestamp>, Option<String>) {
    let mut until = since;
    let mut stream = match cluster.log(at, ask).await {
        Ok(stream) => stream,
        Err(e) => return (until, Some(e.to_string())),
    };
    let mut lines = Lines::default();
    loop {
        let (done, ready) = match stream.next().await {
            Some(Ok(bytes)) => (false, lines.feed(&bytes)),
            Some(Err(e)) => return (until, Some(e.to_string())),
            None => (true, lines.finish().into_iter().collect()),
        };
        for line in ready.into_iter().filter(|l| since.is_none_or(|s| l.at > s)) {
            until = until.max(Some(line.at));
            if sender.send(Read::Line(line)).await.is_err() {
                return (until, None);
            }
        }
        if done {
            return (until, None);
        }
    }
}

/// Lines from the end that may hold the tail.
const TAIL_LINES: i64 = 400;

/// The last lines of a log, after what was kept of it.
pub async fn tail(
    cluster: &dyn Cluster,
    at: &Begun,
    container: Option<String>,
    after: Option<Timestamp>,
) -> Option<String> {
    let ask = LogAsk { container, since: after, follow: false, tail_lines: Some(TAIL_LINES) };
    let mut stream = cluster.log(at, ask).await.ok()?;
    let (mut lines, mut text) = (Lines::default(), String::new());
    let mut take = |line: Line| {
        if after.is_none_or(|a| line.at > a) {
            text.push_str(&line.text);
        }
    };
    while let Some(Ok(bytes)) = stream.next().await {
        lines.feed(&bytes).into_iter().for_each(&mut take);
    }
    lines.finish().into_iter().for_each(&mut take);
    let mut from = text.len().saturating_sub(limits::LOG_TAIL_BYTES);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    Some(text[from..].to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: i64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn lines_come_whole_however_the_bytes_are_cut() {
        let log = "2026-01-01T00:00:00.000000001Z one\n2026-01-01T00:00:00.000002Z two words\n\
                   2026-01-01T00:00:01Z\nunable to read\n2026-01-01T00:00:02Z é";
        let whole = |size: usize| {
            let (mut lines, mut all) = (Lines::default(), Vec::new());
            log.as_bytes().chunks(size).for_each(|part| all.extend(lines.feed(part)));
            all.extend(lines.finish());
            all.into_iter().map(|l| l.text).collect::<Vec<_>>()
        };
        for size in 1..log.len() {
            assert_eq!(whole(size), ["one\n", "two words\n", "\n", "é"], "in parts of {size}");
        }
    }

    #[test]
    fn a_line_without_end_comes_in_parts_of_its_moment() {
        let mut lines = Lines::default();
        let start = lines.feed(b"2026-01-01T00:00:00Z begin ");
        assert!(start.is_empty());
        let parts = lines.feed(&vec![b'x'; limits::LOG_CHUNK_BYTES_MAX]);
        assert_eq!(parts.len(), 1);
        let rest = lines.feed(b"2026 is no stamp here\n2026-01-01T00:00:01Z next\n");
        assert_eq!(rest[0].text, "2026 is no stamp here\n");
        assert_eq!(rest[0].at, parts[0].at);
        assert_eq!(rest[1].text, "next\n");
    }

    #[test]
    fn a_piece_ends_only_where_the_moment_changes_or_after_a_pause() {
        let line = |micros, text: &str| Line { at: at(micros), text: text.into() };
        let mut pieces = Pieces::default();
        let big = "x".repeat(limits::LOG_CHUNK_BYTES_MAX - 10);
        assert!(pieces.push(line(1, &big)).is_empty());
        assert!(pieces.push(line(2, "of two\n")).is_empty());
        // Does not fit, but belongs to the moment before: both move on together.
        let full = pieces.push(line(2, "also of two\n"));
        assert_eq!(full, [Piece { text: big, until: at(1) }]);
        let rest = pieces.flush();
        assert_eq!(rest, [Piece { text: "of two\nalso of two\n".into(), until: at(2) }]);
        assert!(pieces.is_empty() && pieces.flush().is_empty());
    }

    #[test]
    fn no_piece_is_larger_than_an_event_may_be() {
        let mut pieces = Pieces::default();
        let line = Line { at: at(1), text: "é".repeat(limits::LOG_CHUNK_BYTES_MAX) };
        let all = pieces.push(line.clone());
        assert!(all.len() > 1);
        assert!(all.iter().all(|p| p.text.len() <= limits::LOG_CHUNK_BYTES_MAX));
        assert_eq!(all.iter().map(|p| p.text.as_str()).collect::<String>(), line.text);
    }

    #[test]
    fn a_pod_that_speaks_for_long_is_written_down_less_often() {
        assert_eq!(patience(0), Duration::from_secs(1));
        assert_eq!(patience(10_000), Duration::from_secs(30));
    }
}
