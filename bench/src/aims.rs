//! `bench aims`: what we want of our own speed, what was measured, and whether that is enough. The figures come from
//! the other suites; what is here only judges and writes them down.

use crate::{
    drain::Drained,
    growth::{FLAT, Growth, Point, last_to_first},
    serial::Serial,
    slow_disk::Slowed,
    start::Started,
};
use std::fmt::Write as _;

/// One aim beside what was measured.
#[derive(Clone, Debug)]
pub struct Aim {
    /// What we want.
    pub aim: String,
    /// What was seen.
    pub measured: String,
    /// Whether that is enough.
    pub met: bool,
    /// What limits it, where it is known.
    pub limit: &'static str,
    /// How to see it again.
    pub command: String,
}

/// A step takes at most so many durable writes of the engine.
pub const STEP_TO_RAW_MAX: f64 = 1.5;
/// Of its throughput a slow disk may take less than half.
pub const SLOW_TO_AS_IT_IS_MIN: f64 = 0.5;
/// Memory of an idle process, in MB.
pub const IDLE_RSS_MB_MAX: f64 = 100.0;
/// Process start to first completion, in milliseconds.
pub const FIRST_COMPLETION_MS_MAX: f64 = 500.0;
/// Jobs per second out of a full queue on Postgres.
pub const DRAIN_POSTGRES_MIN: f64 = 7_500.0;

fn url(store: &str) -> &str {
    if store == "postgres" { "postgres://…" } else { store }
}

/// One job at a time: two aims.
pub fn serial(s: &Serial) -> [Aim; 2] {
    let command = format!("tenure bench serial --store {} --jobs {}", url(s.store), s.options.jobs);
    let step = Aim {
        aim: format!(
            "{}: one {}-step job at a time, a step at most {STEP_TO_RAW_MAX} × one durable write",
            s.store, s.options.steps
        ),
        measured: format!(
            "{:.2} × ({:.3} ms a step, {:.3} ms a one-row commit; p99 {:.3} and {:.3})",
            s.ratio, s.step.p50, s.raw.p50, s.step.p99, s.raw.p99
        ),
        met: s.ratio <= STEP_TO_RAW_MAX,
        limit: "a job of N steps is N + 1 commits, each more than one row",
        command: command.clone(),
    };
    let commits = s.start.p50 / s.raw.p50;
    let start = Aim {
        aim: format!("{}: submission to start without a poll", s.store),
        measured: format!(
            "{:.3} ms, {commits:.1} one-row commits (p99 {:.3} ms): the start is part of the birth",
            s.start.p50, s.start.p99
        ),
        // A poll would show as its tick: two orders of magnitude more than a commit.
        met: commits < 10.0,
        limit: "",
        command,
    };
    [step, start]
}

/// A slow disk.
pub fn slow_disk(s: &Slowed) -> Aim {
    let (o, ms) = (&s.options, s.options.fsync.as_millis());
    Aim {
        aim: format!(
            "{}: every sync {ms} ms slower, throughput at {} falls by less than half",
            o.engine(),
            o.concurrency
        ),
        measured: format!(
            "{:.0} % left: {:.0} of {:.0} jobs/s (a lone commit {:.2} ms instead of {:.2})",
            100.0 * s.ratio(),
            s.slow.jobs_per_second,
            s.as_it_is.jobs_per_second,
            s.slow.lone_commit_p50_ms,
            s.as_it_is.lone_commit_p50_ms,
        ),
        met: s.ratio() > SLOW_TO_AS_IT_IS_MIN,
        limit: "a job is two commits one after the other, so each client waits for two slow syncs or more",
        command: format!("tenure bench slow-disk --store {} --fsync-ms {ms}", url(o.engine())),
    }
}

/// Growing history, and a snapshot where there was one.
pub fn growth(g: &Growth, command: &str) -> Vec<Aim> {
    let told = |aim: String, points: &[Point]| {
        let (ratio, first, last) = (last_to_first(points)?, points.first()?, points.last()?);
        let measured = format!(
            "{ratio:.2} of the first: {:.0} ({}) to {:.0} jobs/s ({}); p50 {:.1} to {:.1} ms, signal to next step p50 {:.1} to {:.1} ms",
            first.per_second,
            first.case,
            last.per_second,
            last.case,
            first.p50_ms,
            last.p50_ms,
            first.resume_p50_ms,
            last.resume_p50_ms,
        );
        let limit = "";
        Some(Aim { aim, measured, met: ratio >= FLAT, limit, command: command.to_owned() })
    };
    let beside = match g.waiting {
        0 => String::new(),
        n => format!(", beside {n} waiting jobs"),
    };
    let sizes = format!("{}: cost flat while finished jobs grow{beside}", g.store);
    let snapshot = format!("{}: cost flat while a foreign snapshot is held open", g.store);
    [told(sizes, &g.sizes), told(snapshot, &g.slices)].into_iter().flatten().collect()
}

/// Start and memory: two aims.
pub fn start(s: &Started) -> [Aim; 2] {
    let command = format!("tenure bench start --runs {}", s.runs);
    let first = Aim {
        aim: format!("first completion within {FIRST_COMPLETION_MS_MAX} ms of process start"),
        measured: format!(
            "{:.0} ms (median of {}, slowest {:.0}); listening after {:.0}",
            s.completed_p50_ms, s.runs, s.completed_max_ms, s.listening_p50_ms
        ),
        met: s.completed_p50_ms <= FIRST_COMPLETION_MS_MAX,
        limit: "",
        command: command.clone(),
    };
    let memory = Aim {
        aim: format!("memory of an idle process below {IDLE_RSS_MB_MAX} MB"),
        measured: format!(
            "{:.0} MB idle, {:.0} right after {:.0} jobs/s over HTTP, {:.0} idle again",
            s.idle_rss_mb, s.loaded_rss_mb, s.load_per_second, s.idle_again_rss_mb
        ),
        met: s.idle_rss_mb < IDLE_RSS_MB_MAX,
        limit: "",
        command,
    };
    [first, memory]
}

/// A full queue.
pub fn drain(d: &Drained) -> Aim {
    let wanted = if d.store == "postgres" { DRAIN_POSTGRES_MIN } else { 0.0 };
    let aim = match wanted > 0.0 {
        true => format!("{}: a full queue is emptied at {wanted:.0} jobs/s or more", d.store),
        false => format!("{}: a full queue is emptied (no aim of its own)", d.store),
    };
    Aim {
        aim,
        measured: format!(
            "{:.0} jobs/s ({} jobs in {:.2} s)",
            d.per_second, d.options.jobs, d.seconds
        ),
        met: d.per_second >= wanted,
        limit: "processor time: a claim and two commits per job, on cores that worker and database share",
        command: format!("tenure bench drain --store {} --jobs {}", url(d.store), d.options.jobs),
    }
}

/// All of them, for people.
pub fn markdown(aims: &[Aim], about: &str) -> String {
    let mut out =
        format!("# Our own aims\n\n{about}\n\n| aim | measured | | command |\n|---|---|---|---|\n");
    for aim in aims {
        let verdict = match (aim.met, aim.limit) {
            (true, _) => "met".to_owned(),
            (false, "") => "**missed**".to_owned(),
            (false, limit) => format!("**missed**: {limit}"),
        };
        let Aim { aim, measured, command, .. } = aim;
        // Writing to a String cannot fail.
        let _ = writeln!(out, "| {aim} | {measured} | {verdict} | `{command}` |");
    }
    let met = aims.iter().filter(|a| a.met).count();
    let _ = writeln!(
        out,
        "\n{met} of {} met. Every job that was counted was read back as completed.",
        aims.len()
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::start::Started;

    fn started(completed_p50_ms: f64) -> Started {
        Started {
            runs: 3,
            listening_p50_ms: 40.0,
            completed_p50_ms,
            completed_max_ms: 90.0,
            idle_rss_mb: 30.0,
            loaded_rss_mb: 60.0,
            idle_again_rss_mb: 50.0,
            load_per_second: 2_000.0,
        }
    }

    #[test]
    fn an_aim_that_is_missed_says_so() {
        let page = markdown(&start(&started(900.0)), "Somewhere.");
        assert!(
            page.contains("| 900 ms (median of 3, slowest 90); listening after 40 | **missed** |")
        );
        assert!(page.contains("| met |"));
        assert!(page.contains("1 of 2 met."));
        assert!(markdown(&start(&started(60.0)), "").contains("2 of 2 met."));
    }
}
