//! `bench slow-disk`: what a slow disk costs many clients.
//!
//! The same jobs run at the disk's own speed and with every `fsync` and `fdatasync` made slower, in turns. A small
//! library stands between the database and the kernel for that, preloaded into this program (SQLite) or into a
//! Postgres of its own; both sides run under it, so what it costs by itself cancels out. A lone caller's commit is
//! measured too: if it does not take as long as the disk was told to, nothing was slowed and the run fails.

use crate::{jobs::wrong, report::Case};
use serde_json::Value;
use std::{
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};
use tempfile::TempDir;
use tenure_kernel::error::StoreError;

/// How slow, how wide, how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// `sqlite`, `sqlite:DIRECTORY`, or `postgres://` for a server of its own.
    pub store: String,
    /// What every sync takes longer.
    pub fsync: Duration,
    /// Clients.
    pub concurrency: usize,
    /// Time of each measurement.
    pub time: Duration,
    /// How often both are measured.
    pub rounds: usize,
    /// The script that starts a Postgres.
    pub private_postgres: PathBuf,
}

impl Options {
    /// The engine's name.
    pub fn engine(&self) -> &str {
        self.store.split(':').next().unwrap_or_default()
    }
}

/// What one speed of the disk gave.
#[derive(Clone, Copy, Debug, Default)]
pub struct Speed {
    /// Jobs per second of all clients.
    pub jobs_per_second: f64,
    /// Median time of one commit of a lone caller, in milliseconds.
    pub lone_commit_p50_ms: f64,
}

/// What came of it: medians over the rounds. Every job was read back as completed.
#[derive(Clone, Debug)]
pub struct Slowed {
    /// What was asked for.
    pub options: Options,
    /// The disk as it is.
    pub as_it_is: Speed,
    /// The slow disk.
    pub slow: Speed,
}

impl Slowed {
    /// What is left of the throughput.
    pub fn ratio(&self) -> f64 {
        self.slow.jobs_per_second / self.as_it_is.jobs_per_second
    }

    /// For the report.
    pub fn case(&self) -> Case {
        Case::of("slow-disk")
            .with("store", self.options.engine())
            .with("concurrency", self.options.concurrency)
            .measured("fsync_ms", self.options.fsync.as_secs_f64() * 1000.0)
            .measured("jobs_per_second", self.as_it_is.jobs_per_second)
            .measured("slow_jobs_per_second", self.slow.jobs_per_second)
            .measured("slow_to_as_it_is", self.ratio())
            .measured("lone_commit_p50_ms", self.as_it_is.lone_commit_p50_ms)
            .measured("slow_lone_commit_p50_ms", self.slow.lone_commit_p50_ms)
    }
}

fn failed(e: impl std::fmt::Display) -> StoreError {
    wrong(e.to_string())
}

/// Runs the suite.
pub fn run(options: Options) -> Result<Slowed, StoreError> {
    let disk = SlowDisk::build()?;
    let server = match options.engine() == "postgres" {
        true => Some(PrivatePostgres::start(&options.private_postgres, &disk)?),
        false => None,
    };
    let url = server.as_ref().map_or(options.store.as_str(), |s| s.url.as_str());
    let (mut as_it_is, mut slow) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds.max(1) {
        for (delay, speeds) in [(Duration::ZERO, &mut as_it_is), (options.fsync, &mut slow)] {
            disk.set(delay)?;
            speeds.push(measure(&disk, url, &options)?);
        }
    }
    disk.set(Duration::ZERO)?;
    let (as_it_is, slow) = (median(&as_it_is), median(&slow));
    let told = options.fsync.as_secs_f64() * 1000.0;
    if slow.lone_commit_p50_ms < told {
        return Err(wrong(format!(
            "the disk was not slowed: a commit took {:.3} ms and should take {told} at least",
            slow.lone_commit_p50_ms
        )));
    }
    Ok(Slowed { options, as_it_is, slow })
}

fn median(speeds: &[Speed]) -> Speed {
    let middle = |of: fn(&Speed) -> f64| {
        let mut all: Vec<f64> = speeds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        crate::report::percentile(&all, 0.5)
    };
    Speed {
        jobs_per_second: middle(|s| s.jobs_per_second),
        lone_commit_p50_ms: middle(|s| s.lone_commit_p50_ms),
    }
}

fn measure(disk: &SlowDisk, url: &str, options: &Options) -> Result<Speed, StoreError> {
    let seconds = options.time.as_secs_f64();
    let lone = (seconds / 4.0).min(1.0).to_string();
    let commit = bench(disk, url, &["commit", "--callers", "1", "--seconds", &lone])?;
    let (clients, seconds) = (options.concurrency.to_string(), seconds.to_string());
    let load = ["growth", "--finished", "0", "--clients", &clients, "--seconds", &seconds];
    let jobs = bench(disk, url, &load)?;
    Ok(Speed {
        jobs_per_second: figure(&jobs, |_| true, "per_second")?,
        lone_commit_p50_ms: figure(&commit, |f| f["metric"] == "latency_p50", "value")?,
    })
}

/// This program again, as another suite, under the library.
fn bench(disk: &SlowDisk, url: &str, suite: &[&str]) -> Result<String, StoreError> {
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(["--json", "--store", url, "bench"]).args(suite);
    if url.starts_with("sqlite") {
        disk.preload(&mut command);
    }
    said(command.output().map_err(failed)?, "this program as another suite")
}

fn said(output: Output, who: &str) -> Result<String, StoreError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => {
            Err(wrong(format!("{who} ended with {}: {}", output.status, text(&output.stderr))))
        }
    }
}

/// A figure of the first fitting line of a report.
fn figure(lines: &str, fits: impl Fn(&Value) -> bool, name: &str) -> Result<f64, StoreError> {
    let mut told = lines.lines().filter_map(|l| serde_json::from_str::<Value>(l).ok());
    told.find(fits)
        .and_then(|f| f[name].as_f64())
        .ok_or_else(|| wrong(format!("no figure {name} in: {lines}")))
}

/// The library, and the file that tells it how slow the disk is.
struct SlowDisk {
    dir: TempDir,
}

impl SlowDisk {
    /// Built by the C compiler that built SQLite.
    fn build() -> Result<Self, StoreError> {
        let disk = SlowDisk { dir: tempfile::tempdir().map_err(failed)? };
        open_to_others(disk.dir.path())?;
        let source = disk.dir.path().join("slow_sync.c");
        std::fs::write(&source, include_str!("slow_sync.c")).map_err(failed)?;
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-o"]).arg(disk.library()).arg(&source).arg("-ldl");
        let built = cc.output().map_err(|e| wrong(format!("a C compiler is needed (cc): {e}")))?;
        said(built, "the C compiler")?;
        disk.set(Duration::ZERO)?;
        Ok(disk)
    }

    fn library(&self) -> PathBuf {
        self.dir.path().join("slow_sync.so")
    }

    fn told(&self) -> PathBuf {
        self.dir.path().join("milliseconds")
    }

    fn set(&self, delay: Duration) -> Result<(), StoreError> {
        std::fs::write(self.told(), delay.as_millis().to_string()).map_err(failed)
    }

    fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.library()).env("SLOW_SYNC_FILE", self.told());
    }
}

/// A Postgres that root starts runs as another user, who has to reach the library.
fn open_to_others(dir: &Path) -> Result<(), StoreError> {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).map_err(failed)
}

/// The exit code with which the script says that the port is taken.
const PORT_TAKEN: i32 = 75;

/// A Postgres of this run. Stopped and removed when dropped.
struct PrivatePostgres {
    script: PathBuf,
    dir: TempDir,
    url: String,
}

impl PrivatePostgres {
    fn start(script: &Path, disk: &SlowDisk) -> Result<Self, StoreError> {
        let dir = tempfile::tempdir().map_err(failed)?;
        let mut server = PrivatePostgres { script: script.to_owned(), dir, url: String::new() };
        // A port is free when it is looked for, and may be taken by the time the server starts.
        let mut tries = 10;
        let output = loop {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)?;
            let port = listener.local_addr().map_err(failed)?.port().to_string();
            drop(listener);
            let mut start = Command::new(script);
            start.arg("start").arg(server.dir.path()).arg(port);
            disk.preload(&mut start);
            let output = start.output().map_err(|e| {
                wrong(format!("{}: {e} (see --private-postgres)", script.display()))
            })?;
            tries -= 1;
            if output.status.code() != Some(PORT_TAKEN) || tries == 0 {
                break output;
            }
        };
        server.url = said(output, "private-postgres")?;
        Ok(server)
    }
}

impl Drop for PrivatePostgres {
    fn drop(&mut self) {
        // One that did not start has nothing to stop.
        let _ = Command::new(&self.script).arg("stop").arg(self.dir.path()).output();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_found_by_its_name() {
        let lines = "{\"metric\":\"a\",\"value\":null}\n{\"metric\":\"b\",\"value\":12.5}";
        assert_eq!(figure(lines, |f| f["metric"] == "b", "value").ok(), Some(12.5));
        assert!(figure(lines, |f| f["metric"] == "a", "value").is_err());
        assert!(figure(lines, |f| f["metric"] == "c", "value").is_err());
    }

    #[test]
    fn rounds_are_told_by_their_median() {
        let speed = |n| Speed { jobs_per_second: n, lone_commit_p50_ms: 10.0 * n };
        let middle = median(&[speed(3.0), speed(1.0), speed(2.0)]);
        assert_eq!((middle.jobs_per_second, middle.lone_commit_p50_ms), (2.0, 20.0));
    }
}
