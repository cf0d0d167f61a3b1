//! What waits for a person.

use super::{
    diagnose::{Diagnosis, ago, long},
    findings::Findings,
    plural, waits,
};
use std::collections::BTreeMap;

/// What waits for a person.
pub(super) fn attention(f: &Findings) -> Diagnosis {
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

/// What operators keep from running.
pub(super) fn blocks(f: &Findings) -> Diagnosis {
    let Some(oldest) = f.blocks.iter().min_by_key(|block| block.since) else {
        return Diagnosis::ok("blocks", "nothing is blocked").number("blocks", 0);
    };
    let all: Vec<String> = f.blocks.iter().map(|b| format!("{} {}", b.kind, b.name)).collect();
    let says = format!(
        "operators have blocked {}: {}; the oldest, the {} {}, for {} ({}, by {})",
        plural(f.blocks.len(), "thing"),
        all.join(", "),
        oldest.kind,
        oldest.name,
        ago(f, oldest.since),
        oldest.why,
        oldest.by
    );
    Diagnosis::warning("blocks", says)
        .remedy("`tenure block list` says why each was set; `tenure block remove` ends one")
        .number("blocks", f.blocks.len())
}

/// Law 6: known to be unknown, until somebody says what is true.
pub(super) fn effects(f: &Findings) -> Diagnosis {
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

/// What agents wait for that only a person can give: somebody who reads a letter, or a worker.
pub(super) fn turns(f: &Findings) -> Diagnosis {
    let t = &f.turns;
    let numbers =
        |d: Diagnosis| d.number("dead_letters", t.dead_letters).number("waiting", t.waiting);
    let mut parts = Vec::new();
    let mut d = Diagnosis::warning("turns", "");
    if let Some(turn) = t.with_letters {
        let n = usize::try_from(t.dead_letters).unwrap_or(usize::MAX);
        parts.push(format!("{} that nobody has dealt with, of {turn}", plural(n, "dead letter")));
        d = d.remedy("`tenure inbox list`; then `tenure inbox requeue`, or `tenure inbox skip`");
    }
    // A worker that is there takes a turn at once; the rules ring for a while before they end it.
    if let Some((target, turn, since)) = &t.longest
        && f.health.now.since(*since) > f.stuck_after
    {
        let waits = waits(t.waiting as u64, "turn");
        let long = ago(f, *since);
        parts.push(format!("{waits} for a worker; {turn} of target {target} for {long}"));
        d = d.remedy(format!("start a worker for it: `tenure worker --target {target}`"));
    }
    if parts.is_empty() {
        return numbers(Diagnosis::ok("turns", "no turn waits for a person or in vain"));
    }
    d.says = parts.join("; ");
    numbers(d.page("turns-wait"))
}

/// What tasks wait for that only a person can give: somebody who looks at a failed one, or an executor.
pub(super) fn tasks(f: &Findings) -> Diagnosis {
    let t = &f.tasks;
    let numbers =
        |d: Diagnosis| d.number("dead_letters", t.dead_letters).number("unclaimed", t.unclaimed);
    let mut parts = Vec::new();
    let mut d = Diagnosis::warning("tasks", "");
    if let Some(newest) = t.newest_dead {
        let n = plural(t.dead_letters, "failed task");
        parts.push(format!("{n} that nobody has dealt with, the newest {newest}"));
        d = d.remedy("`tenure task dead-letters`; then `tenure task replay ID`, or `discard`");
    }
    // An executor that is there takes a pod at once.
    if let Some((queue, pod, since)) = &t.longest
        && f.health.now.since(*since) > f.stuck_after
    {
        let waits = waits(t.unclaimed as u64, "pod");
        let long = ago(f, *since);
        parts.push(format!("{waits} for an executor; {pod} in queue {queue:?} for {long}"));
        d = d.remedy("start one where the cluster can be reached: `tenure executor`");
    }
    if parts.is_empty() {
        return numbers(Diagnosis::ok("tasks", "no task waits for a person or in vain"));
    }
    d.says = parts.join("; ");
    numbers(d.page("tasks-fail"))
}

pub(super) fn dead_letters(f: &Findings) -> Diagnosis {
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
