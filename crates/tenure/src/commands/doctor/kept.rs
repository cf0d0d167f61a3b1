//! Whether what was said is kept and passed on: histories, messages, and the feed.

use super::{
    diagnose::{Diagnosis, STUCK_FOR_LONG, long, named},
    findings::Findings,
    plural, waits,
};
use serde_json::json;
use std::time::Duration;
use tenure_kernel::health::HoldsBack;

/// Law 2: history is the truth.
pub(super) fn chains(f: &Findings) -> Diagnosis {
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
            "{how}: chains are intact, heads are what their history gives, the rules of the ledger hold in {}",
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
pub(super) fn outbox(f: &Findings) -> Vec<Diagnosis> {
    let side = |wire: bool| {
        let check = if wire { "wire" } else { "outbox" };
        let rows = f.health.outbox.iter().filter(|o| o.wire == wire);
        let (mut count, mut stuck_lanes) = (0, Vec::new());
        for lane in rows {
            count += lane.count;
            if f.health.now.since(lane.oldest) > f.stuck_after {
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

/// Wishes of applications: each is owed a job.
pub(super) fn intake(f: &Findings) -> Option<Diagnosis> {
    let intake = f.health.intake.as_ref()?;
    let lag = intake.oldest.map(|at| f.health.now.since(at)).unwrap_or_default();
    let numbers =
        |d: Diagnosis| d.number("rows", intake.count).number("lag_seconds", lag.as_secs_f64());
    if lag <= f.stuck_after {
        let says = match intake.count {
            0 => "no row of an application waits to become a job".to_owned(),
            n => format!(
                "{} on the way to become jobs, the oldest for {}",
                plural(n, "row"),
                long(lag)
            ),
        };
        return Some(numbers(Diagnosis::ok("intake", says)));
    }
    let says = format!(
        "{} in the table intake to become jobs, the oldest for {}: no server takes them",
        waits(intake.count, "row"),
        long(lag)
    );
    let d = match lag < STUCK_FOR_LONG {
        true => Diagnosis::warning("intake", says),
        false => Diagnosis::wrong("intake", says),
    };
    Some(numbers(
        d.remedy("a server has to run on this store: see `servers`, then its log for `intake`")
            .remedy("nothing is lost, and restarting the server is safe: a job is made once under the id of its row")
            .page("rows-wait-in-the-intake"),
    ))
}

/// Postgres: the feed is read below the oldest running transaction, whoever runs it.
pub(super) fn feed(f: &Findings) -> Vec<Diagnosis> {
    let h = &f.health;
    let held = h.feed_held_since.map(|at| h.now.since(at)).unwrap_or_default();
    let age = |b: &HoldsBack| b.since.map(|at| h.now.since(at));
    // Of a transaction whose age may not be seen, only the harm tells whether it is old.
    let is_old = |b: &&HoldsBack| age(b).unwrap_or(held) > f.stuck_after;
    let old: Vec<_> = h.holding_back.iter().filter(is_old).collect();
    let numbers = |d: Diagnosis| d.number("held_seconds", held.as_secs_f64());
    if old.is_empty() {
        let says = match held > f.stuck_after {
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
    old.iter().map(|b| numbers(held_by(b, age(b), held, f.stuck_after))).collect()
}

fn held_by(
    b: &HoldsBack,
    age: Option<Duration>,
    held: Duration,
    stuck_after: Duration,
) -> Diagnosis {
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
    let d = match held > stuck_after {
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
