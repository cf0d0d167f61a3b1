//! What the load generators share: a closed loop and its figures.
//!
//! Each of N clients starts one piece of work, waits until it is told of its completion, and starts the next. The
//! rate counts every completion inside the window, wherever it began, so that slow work is not cut off at the edges.

use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

/// Bytes that every step returns: as many as in Tenure's own suite.
pub const RESULT_BYTES: usize = 200;

/// What was asked for on the command line.
pub struct Load {
    /// Durable steps of each piece of work.
    pub steps: usize,
    /// Clients.
    pub concurrency: usize,
    /// The window.
    pub seconds: f64,
    /// Before the window.
    pub warmup: f64,
    rest: Vec<(String, String)>,
}

impl Load {
    /// `--steps N --concurrency N --seconds S --warmup S`, and whatever else a program knows, all as pairs.
    pub fn from_args() -> Self {
        let mut args = std::env::args().skip(1);
        let mut rest = Vec::new();
        while let Some(name) = args.next() {
            let value = args.next().unwrap_or_else(|| give_up(&format!("{name} wants a value")));
            rest.push((name, value));
        }
        let mut load = Load { steps: 1, concurrency: 1, seconds: 5.0, warmup: 1.0, rest };
        load.steps = load.number("--steps", 1.0) as usize;
        load.concurrency = load.number("--concurrency", 1.0) as usize;
        load.seconds = load.number("--seconds", 5.0);
        load.warmup = load.number("--warmup", 1.0);
        load
    }

    /// The value of an option.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.rest.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The value of an option that is a number.
    pub fn number(&self, name: &str, default: f64) -> f64 {
        let Some(text) = self.text(name) else { return default };
        text.parse().unwrap_or_else(|_| give_up(&format!("{name} is no number: {text}")))
    }

    /// Runs the loop. `work` gets the number of the client and a number that is new each time.
    pub async fn run<W, F>(&self, work: W) -> Figures
    where
        W: Fn(usize, u64) -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), String>> + Send,
    {
        let work = Arc::new(work);
        let start = Instant::now() + Duration::from_secs_f64(self.warmup);
        let end = start + Duration::from_secs_f64(self.seconds);
        let clients: Vec<_> = (0..self.concurrency)
            .map(|client| {
                let work = work.clone();
                tokio::spawn(async move {
                    let (mut took, mut all) = (Vec::new(), 0);
                    loop {
                        let sent = Instant::now();
                        if sent >= end {
                            return Ok::<_, String>((took, all));
                        }
                        work(client, all).await?;
                        all += 1;
                        let done = Instant::now();
                        if done >= start && done <= end {
                            took.push((done - sent).as_secs_f64() * 1000.0);
                        }
                    }
                })
            })
            .collect();
        let (mut took, mut all) = (Vec::new(), 0);
        for client in clients {
            match client.await {
                Ok(Ok((mine, done))) => {
                    took.extend(mine);
                    all += done;
                }
                Ok(Err(e)) => give_up(&e),
                Err(e) => give_up(&e.to_string()),
            }
        }
        took.sort_by(f64::total_cmp);
        Figures { took, all }
    }

    /// One JSON line. `read_back` is how many the engine itself says are completed.
    pub fn print(&self, figures: &Figures, read_back: Option<u64>) {
        let at = |share: f64| {
            let last = figures.took.len().saturating_sub(1);
            figures.took.get((last as f64 * share).round() as usize).copied()
        };
        let line = serde_json::json!({
            "steps": self.steps,
            "concurrency": self.concurrency,
            "seconds": self.seconds,
            "per_second": figures.took.len() as f64 / self.seconds,
            "p50_ms": at(0.5),
            "p99_ms": at(0.99),
            "completed": figures.all,
            "read_back": read_back,
        });
        println!("{line}");
    }
}

/// What was seen.
pub struct Figures {
    /// Milliseconds of every completion in the window, sorted.
    pub took: Vec<f64>,
    /// Completions, the warm-up's and the late ones included.
    pub all: u64,
}

/// A benchmark that met an error has no result.
pub fn give_up(why: &str) -> ! {
    eprintln!("{why}");
    std::process::exit(1);
}
