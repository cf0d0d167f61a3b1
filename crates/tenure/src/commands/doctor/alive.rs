//! Whether the deployment lives: somebody serves what is due, everybody is heard, nothing hangs.

use super::{
    diagnose::{
        Diagnosis, QUEUED_LONG, SKEW, STUCK_FOR_LONG, Times, Verdict, ago, long, named,
        open_entities, said,
    },
    findings::Findings,
    plural,
};
use crate::config::BusKind;
use serde_json::{Map, json};
use std::time::Duration;
use tenure_jobs::serving::{Parts, flow_of, parts};
use tenure_kernel::rules::HISTORY_LOST;

/// A loss that was longer ago is no news.
const LOSS_IS_NEWS: Duration = Duration::from_secs(7 * 24 * 3600);
/// An outage that ended longer ago is no news.
const RECENT: Duration = Duration::from_secs(600);

/// Whether anybody serves what is due.
pub(super) fn servers(f: &Findings, times: &Times) -> Diagnosis {
    let alive: Vec<_> = f.sessions.iter().filter(|s| s.role == "server").collect();
    let open = open_entities(f);
    let numbers = |d: Diagnosis| {
        let age = f.health.pulse_at.map(|at| f.health.now.since(at).as_secs_f64());
        d.number("servers", alive.len()).number("pulse_age_seconds", age).number("open", open)
    };
    let start = "start one: `tenure server`, or `tenure up` for a server with a worker";
    let Some(pulse) = f.health.pulse_at else {
        let says = "no server has ever left a pulse in this store";
        return numbers(Diagnosis::warning("servers", says).remedy(start).page("no-server-pulse"));
    };
    let silent = f.health.now.since(pulse);
    // A server that stands alone renews and pulses on its own period; one of them late is a busy machine.
    let too_long = times.gap.max(times.tick * 3);
    if alive.is_empty() || silent > too_long * 3 {
        let who = match alive.is_empty() {
            true => "no server is alive".to_owned(),
            false => format!("{} claims to be alive and leaves no pulse", alive[0].name),
        };
        let says = format!(
            "{who}; the last pulse is {} old: nothing that is due is served, no timer fires, no lost worker is noticed",
            long(silent)
        );
        let d = match open {
            0 if alive.is_empty() => {
                Diagnosis::warning("servers", format!("{says} (nothing is open)"))
            }
            _ => Diagnosis::wrong("servers", says),
        };
        let d = d.remedy(start);
        return numbers(
            d.remedy("look at its last log lines, and whether it reaches the store")
                .page("no-server-pulse"),
        );
    }
    if silent > too_long {
        let says = format!(
            "the last pulse is {} old; with server.tick_seconds = {} one is expected every tick: the store is slow, or the server is",
            long(silent),
            times.tick.as_secs_f64()
        );
        let d = Diagnosis::warning("servers", says)
            .remedy("ask again in a few seconds; then see tenure_batch_seconds");
        return numbers(d.page("no-server-pulse"));
    }
    let mut says =
        format!("{} alive; the last pulse is {} old", plural(alive.len(), "server"), long(silent));
    if f.health.judge_after > f.health.now {
        let left = f.health.judge_after.since(f.health.now);
        says += &format!(
            "; after an outage, or a first start, no holder is judged for another {}",
            long(left)
        );
    }
    numbers(Diagnosis::ok("servers", says))
}

/// Law 4: nothing hangs.
pub(super) fn bounds(f: &Findings, times: &Times) -> Diagnosis {
    let now = f.health.now;
    let past: Vec<_> = f
        .late
        .iter()
        .filter(|l| l.must_end_by.is_some_and(|end| end + times.late() < now))
        .collect();
    let open = open_entities(f);
    let more = if f.health.open_is_all { "" } else { " and more" };
    let numbers = |d: Diagnosis| d.number("past_bound", past.len()).number("open", open);
    let Some(first) = past.first() else {
        let says =
            format!("no open entity is past the moment by which it must end ({open}{more} open)");
        return numbers(Diagnosis::ok("bounds", says));
    };
    let end = first.must_end_by.unwrap_or(now);
    let says = format!(
        "{} past must_end_by: {} ({}, {}) had to end {} ago. The law that nothing hangs is broken",
        plural(past.len(), "open entity"),
        first.id,
        first.kind,
        first.status,
        ago(f, end)
    );
    let ids = named(past.iter().map(|l| l.id));
    let d = Diagnosis::wrong("bounds", says)
        .remedy("if no server is alive (see `servers`), start one: it ends them within a tick")
        .remedy(format!("if one is, its log says why: look for `a decision failed` and {ids}"))
        .number("ids", past.iter().map(|l| l.id.to_string()).collect::<Vec<_>>());
    numbers(d.page("an-entity-is-past-its-bound"))
}

/// Whether the due loop keeps up.
pub(super) fn due(f: &Findings, times: &Times) -> Diagnosis {
    let now = f.health.now;
    let late: Vec<_> = f.late.iter().filter(|l| l.due + times.late() < now).collect();
    let lag = f.late.first().map_or(Duration::ZERO, |l| now.since(l.due));
    let numbers =
        |d: Diagnosis| d.number("overdue", late.len()).number("lag_seconds", lag.as_secs_f64());
    let Some(first) = late.first() else {
        return numbers(Diagnosis::ok(
            "due",
            "what is due is served; nothing is overdue by more than two ticks",
        ));
    };
    let failing = late.iter().filter(|l| l.faults > 0).count();
    let at_least = if f.late_is_all { "" } else { "at least " };
    let mut says = format!(
        "{at_least}{} overdue by more than two ticks, the longest by {}: {} ({}, {})",
        plural(late.len(), "entity"),
        long(lag),
        first.id,
        first.kind,
        first.status
    );
    if failing > 0 {
        says += &format!("; decisions about {failing} of them fail");
    }
    let mut d = Diagnosis::wrong("due", says)
        .remedy("no server, or one that does not keep up: see `servers` above, then its log")
        .remedy("if decisions fail, the log names the entity and why; `tenure job show ID` says where it stands");
    if lag < STUCK_FOR_LONG && failing == 0 {
        d.verdict = Verdict::Warning;
    }
    numbers(d.page("what-is-due-is-served-late"))
}

/// Deadlines are of the store's clock alone; a skew misleads people and whoever compares logs.
pub(super) fn clocks(f: &Findings) -> Diagnosis {
    let us = |us: i64| Duration::from_micros(us.unsigned_abs());
    let from_server =
        said(f).and_then(|s| s.get("tenure_clock_skew_seconds")).map(|s| (s * 1e6) as i64);
    let numbers = |d: Diagnosis| {
        let seconds = |us: Option<i64>| us.map(|us| us as f64 / 1e6);
        d.number("here_less_store_seconds", seconds(f.skew_us))
            .number("server_less_store_seconds", seconds(from_server))
    };
    if let Some(pulse) = f.health.pulse_at.filter(|p| *p > f.health.now + SKEW) {
        let ahead = long(pulse.since(f.health.now));
        let says = format!(
            "the last pulse lies {ahead} in the future: the clock that the store goes by was set back, and what is due waits that much longer"
        );
        let d = Diagnosis::wrong("clocks", says)
            .remedy("set the clock right (`timedatectl`), and let NTP keep it");
        return numbers(d.page("clocks-differ"));
    }
    let off: Vec<String> = [("this machine", f.skew_us), ("the server", from_server)]
        .iter()
        .filter_map(|(who, skew)| {
            let skew = skew.filter(|us_off| us(*us_off) > SKEW)?;
            let side = if skew > 0 { "ahead of" } else { "behind" };
            Some(format!("{who} is {} {side} the store", long(us(skew))))
        })
        .collect();
    if !off.is_empty() {
        let says = format!(
            "{}. Deadlines go by the store's clock alone and are not touched; times in logs can not be compared",
            off.join("; ")
        );
        let d = Diagnosis::warning("clocks", says).remedy("let NTP set the clocks of all machines");
        return numbers(d.page("clocks-differ"));
    }
    numbers(Diagnosis::ok(
        "clocks",
        match f.skew_us {
            Some(skew) => format!(
                "this machine and the store differ by {:.0} ms",
                us(skew).as_secs_f64() * 1e3
            ),
            None => "the store goes by the clock of this machine, which has not been set back"
                .to_owned(),
        },
    ))
}

/// What the server said about itself, where it was asked.
pub(super) fn server(f: &Findings) -> Vec<Diagnosis> {
    let says = match &f.server {
        None => return Vec::new(),
        Some(Err(why)) => {
            let says = format!("the server that was named does not answer: {why}");
            let d = Diagnosis::wrong("server", says)
                .remedy("look whether it runs and listens there; what the store says about it is under `servers`");
            return vec![d.page("no-server-pulse")];
        }
        Some(Ok(says)) => says,
    };
    let mut all = Vec::new();
    if says.get("tenure_store_up") == Some(0.0) {
        let d = Diagnosis::wrong(
            "server",
            format!("{} does not reach its store, and this doctor does", says.url),
        );
        all.push(
            d.remedy("look at the network between them, and at its store.url")
                .page("the-store-is-down"),
        );
    }
    let differs: Vec<String> = f
        .settings
        .iter()
        .filter_map(|(key, value, _)| {
            let (here, there) = (value.parse::<f64>().ok()?, says.setting(key.name)?);
            (here != there).then(|| format!("{} = {there} there, {here} here", key.name))
        })
        .collect();
    if !differs.is_empty() {
        let d = Diagnosis::warning(
            "server",
            format!("it runs by other settings than this doctor was given: {}", differs.join(", ")),
        );
        all.push(d.remedy(
            "give doctor the server's file with --config; times above are judged by the server's",
        ));
    }
    let stale = says.get("tenure_commits_total{result=\"stale_epoch\"}").unwrap_or(0.0);
    let takeovers = says.get("tenure_job_takeovers_total").unwrap_or(0.0);
    let d = Diagnosis::ok(
        "server",
        format!(
            "{} answers; since it started {takeovers} takeovers, {stale} writes of somebody who had lost tenure refused",
            says.url
        ),
    );
    all.push(d.number("takeovers", takeovers).number("stale_epoch", stale));
    all
}

/// Law 5: with every bell silent all is correct, and slower by up to a tick.
pub(super) fn bells(f: &Findings) -> Diagnosis {
    let missed = said(f).and_then(|s| s.get("tenure_bells_missed_total"));
    let heard = said(f).and_then(|s| s.get("tenure_due_wakeups_total{by=\"bell\"}"));
    let connected = said(f).and_then(|s| s.get("tenure_bell_connected"));
    let servers = f.sessions.iter().filter(|s| s.role == "server").count() as u64;
    let numbers = |d: Diagnosis| {
        d.number("listening", f.health.bells_listening)
            .number("heard", heard)
            .number("missed", missed)
    };
    let slower = "everything still works, only later by up to one tick";
    if connected == Some(0.0) || f.health.bells_listening.is_some_and(|n| n < servers) {
        let says = format!(
            "{} of {} listens for bells of others: {slower}",
            f.health.bells_listening.map_or_else(|| "none".to_owned(), |n| n.to_string()),
            plural(servers, "server")
        );
        let d = Diagnosis::warning("bells", says)
            .remedy("LISTEN does not go through a pooler in transaction mode: give the server a direct address of the database")
            .remedy("its log says why the bell can not connect (log.filter = info,tenure_bell=debug)");
        return numbers(d.page("bells-are-not-heard"));
    }
    if let (Some(missed), Some(heard)) = (missed, heard)
        && missed > 10.0
        && missed > heard / 10.0
    {
        let d = Diagnosis::warning(
            "bells",
            format!(
                "{missed} entities became due without a bell, {heard} rings were heard: {slower}"
            ),
        );
        let d = d.remedy(
            "a pooler, or a proxy, between the servers and the database may swallow NOTIFY",
        );
        return numbers(d.page("bells-are-not-heard"));
    }
    numbers(Diagnosis::ok(
        "bells",
        match (f.health.bells_listening, heard) {
            (Some(n), _) => {
                format!("{n} of {} listen for bells of others", plural(servers, "server"))
            }
            (None, Some(heard)) => format!(
                "bells stay within the process; it was woken by {heard} of them, and missed {}",
                missed.unwrap_or(0.0)
            ),
            (None, None) => {
                "bells stay within the process that writes; --server URL asks it what it heard"
                    .to_owned()
            }
        },
    ))
}

/// The bus carries bells and events; without it bells are late and events wait.
pub(super) fn bus(f: &Findings) -> Option<Diagnosis> {
    let from_here = f.bus.as_ref()?;
    let connected = said(f).and_then(|s| s.get("tenure_bus_connected"));
    let count = |result: &str| {
        said(f).and_then(|s| s.get(&format!("tenure_wire_total{{result=\"{result}\"}}")))
    };
    let numbers = |d: Diagnosis| {
        d.number("connected", connected)
            .number("published", count("published"))
            .number("failed", count("failed"))
            .number("refused", count("refused"))
    };
    let trouble = match (from_here, connected) {
        (_, Some(0.0)) => "the server is not connected to it".to_owned(),
        (Err(why), _) => format!("it does not answer this doctor: {why}"),
        (Ok(()), _) => {
            let at = f.settings.text("bus.url");
            return Some(numbers(Diagnosis::ok("bus", format!("{at} answers"))));
        }
    };
    let events = match f.settings.bus() {
        Some(BusKind::Redis) => "",
        Some(BusKind::Nats) | None => "events wait in the outbox, and ",
    };
    let says = format!("{trouble}: {events}work on other servers begins up to one tick later");
    let d = Diagnosis::warning("bus", says)
        .remedy("see whether NATS, or Redis, runs at bus.url and lets these credentials in; nothing is lost, and everything goes on when it is back")
        .remedy("the server's log says `the bus does not work` with the reason");
    Some(numbers(d.page("the-bus-is-away")))
}

/// Every consequence of silence is counted; decisions that fail are not normal.
pub(super) fn rules(f: &Findings) -> Diagnosis {
    let mut numbers = Map::new();
    let mut fired = Vec::new();
    for (rule, t) in &f.tallies {
        numbers.insert(rule.clone(), json!({ "fired": t.fired, "failed": t.failed, "last_at": t.last_at.map(|at| at.to_string()) }));
        if t.fired > 0 {
            fired.push(format!("{rule} {}", t.fired));
        }
    }
    let failing: Vec<String> = said(f)
        .map(|s| {
            s.all("tenure_rule_failed_total")
                .filter(|(_, n)| *n > 0.0)
                .map(|(labels, n)| format!("{labels}: {n}"))
                .collect()
        })
        .unwrap_or_default();
    let outage = f
        .tallies
        .get("outage")
        .and_then(|t| t.last_at)
        .filter(|at| f.health.now.since(*at) < RECENT);
    let lost = f.tallies.get(HISTORY_LOST).and_then(|t| Some((t.last_at?, t.lag_max)));
    let lost = lost.filter(|(at, _)| f.health.now.since(*at) < LOSS_IS_NEWS);
    let mut d = if let Some((until, span)) = lost {
        let from = until - span;
        Diagnosis::wrong("rules", format!("acknowledged history is missing: what was written after {from}, until {until}, is not in the database ({} ago a failover or a restored copy lacked it); the store has a new incarnation", ago(f, until)))
            .remedy("submit again, with the same keys, what clients submitted in that time; a key that is there is answered with its job")
            .remedy("the server's log says `acknowledged history is missing` with entities of it; use a synchronous standby (synchronous_standby_names), so that a failover loses nothing")
            .page("acknowledged-history-is-missing")
    } else if !failing.is_empty() {
        Diagnosis::warning(
            "rules",
            format!("decisions failed since the server started: {}", failing.join("; ")),
        )
        .remedy("its log says `a decision failed` with the entity and why; see also `attention`")
        .page("rules-fail")
    } else if let Some(at) = outage {
        Diagnosis::warning("rules", format!("until {} ago no pulse was left for longer than server.pulse_gap_seconds: the store was silent, or no server ran; no holder was judged for one lease after it", ago(f, at)))
            .remedy("if nobody restarted a server then, find out what the store, or the way to it, did")
            .page("the-store-is-down")
    } else {
        let what = if fired.is_empty() {
            "none has fired yet".to_owned()
        } else {
            format!("since the store was created: {}", fired.join(", "))
        };
        Diagnosis::ok("rules", what)
    };
    d.numbers = numbers;
    d
}

/// Takeovers, and sessions that are late.
pub(super) fn workers(f: &Findings, times: &Times) -> Diagnosis {
    let workers: Vec<_> = f.sessions.iter().filter(|s| s.role == "worker").collect();
    let holds: usize = workers.iter().map(|w| w.holds).sum();
    let numbers = |d: Diagnosis| {
        d.number("workers", workers.len())
            .number("holds", holds)
            .number("taken_over", f.jobs.taken_over.len())
    };
    let spent: Vec<_> =
        f.jobs.taken_over.iter().filter(|(_, n, max)| n + 1 >= *max && *n > 0).collect();
    if let Some((id, n, max)) = spent.first() {
        let says = format!(
            "{} near the end of its takeovers: {id} has lost {n} of {max} workers. A job that kills its workers, or workers that are killed",
            plural(spent.len(), "job")
        );
        let d = Diagnosis::warning("workers", says).remedy(format!(
            "`tenure job show {id}` says at which step; look for OOM kills and restarts of workers"
        ));
        return numbers(d.page("workers-are-lost"));
    }
    let late: Vec<_> = workers
        .iter()
        .filter(|w| w.renewed_ago > times.renewal * 2 && w.renewed_ago < w.lease)
        .collect();
    if let Some(w) = late.first() {
        let says = format!(
            "{} renewed {} ago, of a lease of {}: {}",
            w.name,
            long(w.renewed_ago),
            long(w.lease),
            "one more miss and its work is taken from it"
        );
        let d = Diagnosis::warning("workers", says)
            .remedy("a worker without processor time, or a slow way to the store");
        return numbers(d.page("workers-are-lost"));
    }
    let taken = match f.jobs.taken_over.len() {
        0 => String::new(),
        n => {
            format!("; {} among those looked at went on after a lost worker", plural(n, "open job"))
        }
    };
    numbers(Diagnosis::ok(
        "workers",
        format!("{} alive, holding {holds}{taken}", plural(workers.len(), "worker")),
    ))
}

/// What starts a worker that serves a ready queue.
fn worker_for(ready: &str) -> String {
    let mut command = "tenure worker".to_owned();
    if let Some(Parts { queue, needs }) = parts(ready, flow_of(ready)) {
        command.extend(queue.map(|name| format!(" --queue {name}")));
        command.extend(needs.iter().map(|need| format!(" --can {need}")));
    }
    command
}

/// Work that nobody takes.
pub(super) fn queues(f: &Findings) -> Diagnosis {
    let waiting: u64 = f.health.ready.iter().map(|r| r.count).sum();
    let oldest = f.health.ready.iter().min_by_key(|r| r.oldest);
    let age = oldest.map_or(Duration::ZERO, |r| f.health.now.since(r.oldest));
    let numbers =
        |d: Diagnosis| d.number("waiting", waiting).number("oldest_seconds", age.as_secs_f64());
    let workers = f.sessions.iter().filter(|s| s.role == "worker").count();
    match oldest {
        Some(first) if age > QUEUED_LONG => {
            let says = format!(
                "{} waits in queue {} for {}; {} alive",
                first.count,
                first.queue,
                long(age),
                plural(workers, "worker")
            );
            let d = Diagnosis::warning("queues", says)
                .remedy(format!(
                    "a worker that knows this flow and version is needed: `{}`; versions live side by side",
                    worker_for(&first.queue)
                ))
                .remedy("if there are some, they are full: more workers, or worker.slots");
            numbers(d.page("work-waits-in-a-queue"))
        }
        Some(_) => numbers(Diagnosis::ok(
            "queues",
            format!("{waiting} wait for a worker, the first for {}", long(age)),
        )),
        None => numbers(Diagnosis::ok("queues", "nothing waits for a worker")),
    }
}
