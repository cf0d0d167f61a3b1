//! Lines with the seconds since the beginning, and questions to whoever sits at the terminal.

use crate::terminal;
use std::time::Duration;
use tenure_edge::TokioRuntime;
use tenure_kernel::{runtime::Runtime as _, time::Timestamp};
use tokio::sync::mpsc;

/// Tells.
pub(super) struct Voice {
    rt: TokioRuntime,
    began: Duration,
    began_at: Timestamp,
    json: bool,
    keyboard: Option<mpsc::UnboundedReceiver<String>>,
}

impl Voice {
    /// Begins to count. `now` is the store's time: events are told by their own times.
    pub fn new(now: Timestamp, json: bool, asks: bool) -> Self {
        let rt = TokioRuntime::current();
        let began = rt.mono();
        Voice { rt, began, began_at: now, json, keyboard: asks.then(keyboard) }
    }

    /// One that watches and tells nothing.
    pub fn silent(&self) -> Self {
        Voice { rt: self.rt.clone(), json: true, keyboard: None, ..*self }
    }

    /// Since it began.
    pub fn elapsed(&self) -> Duration {
        self.rt.mono().saturating_sub(self.began)
    }

    /// Whether there is somebody to ask.
    pub fn asks(&self) -> bool {
        self.keyboard.is_some()
    }

    /// Who answers.
    pub fn listener(&self) -> &'static str {
        if self.asks() { "you" } else { "the demo" }
    }

    /// Whether only the object at the end is wanted.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// A line about what this process does, now.
    pub fn say(&self, line: &str) {
        self.plain(&format!("{:7.2} s  {line}", self.elapsed().as_secs_f64()));
    }

    /// A line about what stands in a job's history, at the time that stands there.
    pub fn quote(&self, at: Timestamp, line: &str) {
        self.plain(&format!("{:7.2} s    | {line}", at.since(self.began_at).as_secs_f64()));
    }

    /// A line without a time.
    pub fn plain(&self, line: &str) {
        if !self.json {
            self.out(line);
        }
    }

    /// A line whatever the manner.
    pub fn out(&self, line: &str) {
        terminal::line(&line);
    }

    /// Asks, and waits for a line. Without anybody to ask, or at the end of their input: `None`.
    pub async fn ask(&mut self, question: &str) -> Option<String> {
        let keyboard = self.keyboard.as_mut()?;
        terminal::print(&format_args!("           {question} "));
        match keyboard.recv().await {
            Some(line) => Some(line.trim().to_lowercase()),
            None => {
                self.keyboard = None;
                self.plain("");
                None
            }
        }
    }
}

/// Lines from the terminal. A thread of its own and not Tokio's: the process may end while it reads.
fn keyboard() -> mpsc::UnboundedReceiver<String> {
    let (send, lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                return;
            }
        }
    });
    lines
}
