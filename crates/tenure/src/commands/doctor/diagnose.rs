//! Findings in, diagnoses out. Pure: each of these functions looks at one promise, and says in words whether it is
//! kept, what that means and what to do. Every threshold is in this file or in `settings`.

use super::{findings::Findings, plural, server::ServerSays, settings, waits};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::{health::HoldsBack, time::Timestamp};

/// How it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// Nothing is broken yet, or only a person can say.
    Warning,
    /// A promise is not kept.
    Wrong,
}

/// What was looked at, how it stands, and what to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// What was looked at.
    pub check: &'static str,
    /// How it stands.
    pub verdict: Verdict,
    /// In words.
    pub says: String,
    /// What to do, step by step.
    #[serde(rename = "do")]
    pub remedy: Vec<String>,
    /// The numbers behind it.
    pub numbers: Map<String, Value>,
    /// A section of `docs/operations.md`.
    pub page: Option<&'static str>,
}

impl Diagnosis {
    fn new(check: &'static str, verdict: Verdict, says: impl Into<String>) -> Self {
        let (says, remedy, numbers) = (says.into(), Vec::new(), Map::new());
        Diagnosis { check, verdict, says, remedy, numbers, page: None }
    }

    pub(super) fn ok(check: &'static str, says: impl Into<String>) -> Self {
        Diagnosis::new(check, Verdict::Ok, says)
    }

    pub(super) fn warning(check: &'static str, says: impl Into<String>) -> Self {
        Diagnosis::new(check, Verdict::Warning, says)
    }

    pub(super) fn wrong(check: &'static str, says: impl Into<String>) -> Self {
        Diagnosis::new(check, Verdict::Wrong, says)
    }

    pub(super) fn remedy(mut self, step: impl Into<String>) -> Self {
        self.remedy.push(step.into());
        self
    }

    pub(super) fn number(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.numbers.insert(name.to_owned(), value.into());
        self
    }

    pub(super) fn page(mut self, section: &'static str) -> Self {
        self.page = Some(section);
        self
    }
}

/// The times that a deployment runs by: those of the server where it was asked, else those of this doctor.
pub(super) struct Times {
    pub(super) lease: Duration,
    pub(super) renewal: Duration,
    pub(super) tick: Duration,
    pub(super) gap: Duration,
}

impl Times {
    fn of(f: &Findings) -> Self {
        let said = f.server.as_ref().and_then(|s| s.as_ref().ok());
        let time = |key: &str| match said.and_then(|s| s.setting(key)) {
            Some(seconds) if seconds > 0.0 => Duration::from_secs_f64(seconds),
            _ => f.settings.seconds(key),
        };
        Times {
            lease: time("worker.lease_seconds"),
            renewal: time("worker.renewal_seconds"),
            tick: time("server.tick_seconds"),
            gap: time("server.pulse_gap_seconds"),
        }
    }

    /// What is overdue by more than this is served by nobody: a server takes what others leave after two ticks.
    fn late(&self) -> Duration {
        self.tick * 3 + Duration::from_secs(2)
    }
}

/// A message, or a record of the feed, that waits for longer than this is stuck, not under way.
const STUCK: Duration = Duration::from_secs(10);
/// The same, past doubt.
const STUCK_FOR_LONG: Duration = Duration::from_secs(60);
/// Clocks that differ by more than this make times of two machines hard to compare.
const SKEW: Duration = Duration::from_secs(2);
/// Work that has waited in a queue for longer than this finds no worker.
const QUEUED_LONG: Duration = Duration::from_secs(300);
/// Ids that are named in a sentence.
const NAMED_MAX: usize = 3;

/// Everything there is to say.
pub fn diagnose(f: &Findings) -> Vec<Diagnosis> {
    let times = Times::of(f);
    let mut all = Vec::new();
    all.push(servers(f, &times));
    all.push(bounds(f, &times));
    all.push(due(f, &times));
    all.push(chains(f));
    all.extend(outbox(f));
    all.extend(feed(f));
    all.push(clocks(f));
    all.extend(server(f));
    all.push(bells(f));
    all.push(rules(f));
    all.push(workers(f, &times));
    all.push(queues(f));
    all.push(attention(f));
    all.push(effects(f));
    all.push(dead_letters(f));
    all.extend(settings::database(f));
    all.extend(settings::places(f));
    all.extend(settings::settings(f, &times));
    all
}

/// A time as people say it.
pub(super) fn long(d: Duration) -> String {
    let s = d.as_secs_f64();
    match s {
        _ if s < 60.0 => format!("{s:.1} s"),
        _ if s < 3_600.0 => format!("{:.0} min {:.0} s", (s / 60.0).floor(), s % 60.0),
        _ if s < 86_400.0 => {
            format!("{:.0} h {:.0} min", (s / 3_600.0).floor(), s % 3_600.0 / 60.0)
        }
        _ => format!("{:.0} days", (s / 86_400.0).floor()),
    }
}

fn ago(f: &Findings, at: Timestamp) -> String {
    long(f.health.now.since(at))
}

/// The first few, and how many more.
fn named<T: ToString>(all: impl IntoIterator<Item = T>) -> String {
    let all: Vec<String> = all.into_iter().map(|t| t.to_string()).collect();
    let shown = all[..all.len().min(NAMED_MAX)].join(", ");
    match all.len().saturating_sub(NAMED_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

fn open_entities(f: &Findings) -> u64 {
    f.health.open.iter().map(|o| o.count).sum()
}

fn said(f: &Findings) -> Option<&ServerSays> {
    f.server.as_ref().and_then(|s| s.as_ref().ok())
}

/// Whether anybody serves what is due.
fn servers(f: &Findings, times: &Times) -> Diagnosis {
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
fn bounds(f: &Findings, times: &Times) -> Diagnosis {
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
fn due(f: &Findings, times: &Times) -> Diagnosis {
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

/// Law 2: history is the truth.
fn chains(f: &Findings) -> Diagnosis {
    let c = &f.chains;
    let how = match c.all {
        true => format!("all {}", plural(c.checked, "stream")),
        false => format!(
            "a sample of {} (the newest, the longest due, and some at random; --all checks every one)",
            plural(c.checked, "stream")
        ),
    };
    let numbers = |d: Diagnosis| {
        d.number("checked", c.checked)
            .number("jobs", c.jobs)
            .number("all", c.all)
            .number("problems", c.problems.len())
    };
    let Some((id, what)) = c.problems.first() else {
        let says = format!(
            "{how}: chains are intact, heads are what their history gives, {} keep the rules of the ledger",
            plural(c.jobs, "job")
        );
        return numbers(Diagnosis::ok("chains", says));
    };
    let d = Diagnosis::wrong("chains", format!("{how}: {} found. {id}: {what}", plural(c.problems.len(), "problem")))
        .remedy("do not write to this store before you know why: stop workers, keep a copy of the database")
        .remedy("`tenure verify` on the copy lists everything; `tenure job verify ID` tells the rest about one job")
        .number("found", c.problems.iter().map(|(id, what)| json!({ "id": id.to_string(), "what": what })).collect::<Vec<_>>());
    numbers(d.page("a-chain-is-broken"))
}

/// What is said between entities, and to the outside; apart, because a wire that is down is somebody else's.
fn outbox(f: &Findings) -> Vec<Diagnosis> {
    let side = |wire: bool| {
        let check = if wire { "wire" } else { "outbox" };
        let rows = f.health.outbox.iter().filter(|o| o.wire == wire);
        let (mut count, mut stuck_lanes) = (0, Vec::new());
        for lane in rows {
            count += lane.count;
            if f.health.now.since(lane.oldest) > STUCK {
                stuck_lanes.push(lane.lane);
            }
        }
        let lag =
            f.health.oldest_message(wire).map_or(Duration::ZERO, |o| f.health.now.since(o.oldest));
        let numbers = |d: Diagnosis| {
            d.number("messages", count)
                .number("lag_seconds", lag.as_secs_f64())
                .number("stuck_lanes", stuck_lanes.clone())
        };
        if stuck_lanes.is_empty() {
            let says = match count {
                0 => "no message waits to be delivered".to_owned(),
                n => format!("{} under way, the oldest for {}", plural(n, "message"), long(lag)),
            };
            return numbers(Diagnosis::ok(check, says));
        }
        let says = format!(
            "{} to {}, the oldest for {} ({} {}): {}",
            waits(count, "message"),
            if wire { "leave on a wire" } else { "be delivered" },
            long(lag),
            if stuck_lanes.len() == 1 { "lane" } else { "lanes" },
            named(&stuck_lanes),
            match wire {
                true => "whoever listens outside does not hear of ends",
                false =>
                    "parents do not hear of children, cancels and signals between jobs do not arrive",
            }
        );
        let d = match wire || lag < STUCK_FOR_LONG {
            true => Diagnosis::warning(check, says),
            false => Diagnosis::wrong(check, says),
        };
        let d = match wire {
            true => d.remedy("look at the broker behind the wire; nothing is lost, and delivery goes on when it is back"),
            false => d
                .remedy("no server holds these lanes, or it can not deliver: see `servers`, then its log for `outbox`")
                .remedy("restarting the server is safe: a message is delivered once, however often it is tried"),
        };
        numbers(d.page("messages-are-not-delivered"))
    };
    vec![side(false), side(true)]
}

/// Postgres: the feed is read below the oldest running transaction, whoever runs it.
fn feed(f: &Findings) -> Vec<Diagnosis> {
    let h = &f.health;
    let held = h.feed_held_since.map(|at| h.now.since(at)).unwrap_or_default();
    let age = |b: &HoldsBack| b.since.map(|at| h.now.since(at));
    let old: Vec<_> = h.holding_back.iter().filter(|b| age(b).is_none_or(|a| a > STUCK)).collect();
    let numbers = |d: Diagnosis| d.number("held_seconds", held.as_secs_f64());
    if old.is_empty() {
        let says = match held > STUCK {
            // Nobody who may be seen holds it: a role that may see all would name them.
            true => {
                let says = format!(
                    "the feed shows nothing of the last {}, and no transaction that does it may be seen",
                    long(held)
                );
                let d = Diagnosis::warning("feed", says)
                    .remedy("run doctor as a role with pg_monitor: `GRANT pg_monitor TO the role of the store`");
                return vec![numbers(d.page("the-feed-is-held-back"))];
            }
            false => "no transaction holds the feed back",
        };
        return vec![numbers(Diagnosis::ok("feed", says))];
    }
    old.iter().map(|b| numbers(held_by(b, age(b), held))).collect()
}

fn held_by(b: &HoldsBack, age: Option<Duration>, held: Duration) -> Diagnosis {
    let who = match (&b.prepared, b.pid) {
        (Some(gid), _) => format!("the prepared transaction {gid:?}"),
        (None, Some(pid)) => format!("a transaction of pid {pid}"),
        (None, None) => "a transaction".to_owned(),
    };
    let application = if b.application.is_empty() { "no application name" } else { &b.application };
    let age = age.map_or_else(|| "for an unknown time".to_owned(), |a| format!("for {}", long(a)));
    let mut says = format!(
        "{who} (user {}, database {}, {application}, {}) has been open {age}: until it ends, followers of the feed see nothing newer",
        b.user,
        b.database,
        if b.state.is_empty() { "state not visible" } else { &b.state }
    );
    if !held.is_zero() {
        says += &format!("; the oldest record they miss is {} old", long(held));
    }
    if !b.query.is_empty() {
        says += &format!(
            "; its last statement: {}",
            b.query.split_whitespace().collect::<Vec<_>>().join(" ")
        );
    }
    let d = match held > STUCK {
        true => Diagnosis::wrong("feed", says),
        false => Diagnosis::warning("feed", says),
    };
    let d = match (&b.prepared, b.pid) {
        (Some(gid), _) => d.remedy(format!(
            "finish it where it belongs, or in database {}: ROLLBACK PREPARED '{}';",
            b.database,
            gid.replace('\'', "''")
        )),
        (None, Some(pid)) => d
            .remedy("find out whose it is; if nobody needs it, end it:")
            .remedy(format!("SELECT pg_terminate_backend({pid});"))
            .remedy("against the next one: SET idle_in_transaction_session_timeout for that role"),
        (None, None) => d,
    };
    d.number("pid", b.pid).number("prepared", b.prepared.clone()).page("the-feed-is-held-back")
}

/// Deadlines are of the store's clock alone; a skew misleads people and whoever compares logs.
fn clocks(f: &Findings) -> Diagnosis {
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
fn server(f: &Findings) -> Vec<Diagnosis> {
    let says = match &f.server {
        None => return Vec::new(),
        Some(Err(why)) => {
            let says = format!("the server that was named does not answer: {why}");
            return vec![Diagnosis::wrong("server", says).page("no-server-pulse")];
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
fn bells(f: &Findings) -> Diagnosis {
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

/// Every consequence of silence is counted; decisions that fail are not normal.
fn rules(f: &Findings) -> Diagnosis {
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
        .filter(|at| f.health.now.since(*at) < Duration::from_secs(3_600));
    let mut d = if !failing.is_empty() {
        Diagnosis::warning(
            "rules",
            format!("decisions failed since the server started: {}", failing.join("; ")),
        )
        .remedy("its log says `a decision failed` with the entity and why; see also `attention`")
        .page("rules-fail")
    } else if let Some(at) = outage {
        Diagnosis::warning("rules", format!("the store was silent for longer than server.pulse_gap_seconds {} ago; no holder was judged for one lease after it", ago(f, at)))
            .remedy("find out what the store, or the way to it, did then")
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
fn workers(f: &Findings, times: &Times) -> Diagnosis {
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

/// Work that nobody takes.
fn queues(f: &Findings) -> Diagnosis {
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
                .remedy("a worker that knows this flow and version is needed: `tenure worker`; versions live side by side")
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

/// What waits for a person.
fn attention(f: &Findings) -> Diagnosis {
    let asking = &f.jobs.attention;
    let numbers = |d: Diagnosis| d.number("jobs", asking.len()).number("marked", f.marked.len());
    if asking.is_empty() && f.marked.is_empty() {
        return numbers(Diagnosis::ok("attention", "nothing waits for a person"));
    }
    let mut parts = Vec::new();
    if let Some(first) = asking.iter().min_by_key(|a| a.since) {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        asking.iter().for_each(|a| *reasons.entry(&a.reason).or_default() += 1);
        let reasons: Vec<String> = reasons.iter().map(|(r, n)| format!("{n} {r}")).collect();
        let ends = first
            .must_end_by
            .map(|end| format!(", and ends failed in {}", long(end.since(f.health.now))))
            .unwrap_or_default();
        parts.push(format!(
            "{} for a person ({}); the oldest, {}, for {}{ends}",
            waits(asking.len() as u64, "job"),
            reasons.join(", "),
            first.id,
            ago(f, first.since)
        ));
    }
    if let Some(first) = f.marked.first() {
        parts.push(format!(
            "decisions about {} keep failing, among them {} ({}): {}",
            plural(f.marked.len(), "entity"),
            first.id,
            first.kind,
            first.why
        ));
    }
    let d = Diagnosis::warning("attention", parts.join("; "))
        .remedy("`tenure job list --attention` lists them; `tenure job show ID` says what each waits for")
        .number("ids", asking.iter().map(|a| a.id.to_string()).collect::<Vec<_>>());
    numbers(d.page("jobs-wait-for-a-person"))
}

/// Law 6: known to be unknown, until somebody says what is true.
fn effects(f: &Findings) -> Diagnosis {
    let unknown = &f.jobs.unknown;
    let Some(first) = unknown.iter().min_by_key(|u| u.since) else {
        return Diagnosis::ok("effects", "no effect is unknown").number("unknown", 0);
    };
    let ended = unknown.iter().filter(|u| u.ended).count();
    let after =
        if ended > 0 { format!(" ({ended} of jobs that have ended)") } else { String::new() };
    let says = format!(
        "{} of which nobody knows whether it happened{after}; the oldest is step {} of {}, for {}",
        plural(unknown.len(), "effect"),
        first.step,
        first.job,
        ago(f, first.since)
    );
    Diagnosis::warning("effects", says)
        .remedy("look outside (the bank, the mail server) whether it happened; then say so:")
        .remedy(format!(
            "tenure job resolve {} --step {} and one of --happened RESULT, --did-not-happen, --abandon",
            first.job, first.step
        ))
        .number("unknown", unknown.len())
        .number("oldest_seconds", f.health.now.since(first.since).as_secs_f64())
        .page("effects-are-unknown")
}

fn dead_letters(f: &Findings) -> Diagnosis {
    let n = f.jobs.dead_letters;
    let Some(newest) = f.jobs.newest_dead_letter else {
        return Diagnosis::ok("failed", "no failed job waits to be looked at")
            .number("dead_letters", 0);
    };
    let more = if f.jobs.more_dead_letters { "at least " } else { "" };
    let says = format!(
        "{more}{} that nobody has put aside; the newest failed {} ago",
        plural(n, "failed job"),
        ago(f, newest)
    );
    Diagnosis::warning("failed", says)
        .remedy("`tenure job list --dead`; then `tenure job retry ID`, or `tenure job discard ID`")
        .number("dead_letters", n)
        .page("jobs-wait-for-a-person")
}
