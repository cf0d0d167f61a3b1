//! Which metrics there are. The names, and the alerts of `deploy/alerts.yaml` that use them, are part of the product:
//! a test reads the file and asks for each of them.

use super::{Look, Seen, text::Page};
use crate::App;
use std::time::Duration;
use tenure_engine::meter::Meter;
use tenure_kernel::{quota::QuotaPart, time::Timestamp};

/// Queues that are shown by name; a store may have more.
const QUEUES_MAX: usize = 100;

pub(super) fn page(app: &App, look: &Look) -> String {
    let mut page = Page::default();
    let meter = app.pipeline().meter();
    process(&mut page, app);
    sign_ins(&mut page, app);
    carried(&mut page, meter);
    jobs(&mut page, meter);
    turns(&mut page, meter);
    super::tasks::counted(&mut page, meter);
    rules(&mut page, meter);
    bells(&mut page, app, meter);
    bus(&mut page, app, meter);
    quotas(&mut page, app);
    page.gauge("tenure_store_up", "1 if the store answered the last look at it, else 0.")
        .is(u8::from(look.is_ok()));
    if let Ok(seen) = look {
        store(&mut page, seen);
        open(&mut page, seen);
        waiting(&mut page, seen);
        super::tasks::stored(&mut page, &seen.tasks);
        clock(&mut page, seen);
    }
    let more = app.options().about.more.iter();
    let page = page.done() + &app.connections().numbers();
    more.fold(page, |page, ask| page + &(ask.0)())
}

/// Tenants that are shown by name.
const TENANTS_MAX: usize = 100;

fn quotas(page: &mut Page, app: &App) {
    let Some(quotas) = app.pipeline().quotas() else { return };
    let mut usage = quotas.known_usage(None);
    usage.truncate(TENANTS_MAX * QuotaPart::ALL.len());
    page.gauge("tenure_quota_limit", "What a tenant may have, by part of its quota.");
    for u in &usage {
        page.with(&[("tenant", &u.tenant), ("quota", u.part.as_str())], u.limit);
    }
    page.gauge("tenure_quota_used", "What it has, as of the last count.");
    for u in &usage {
        if let Some(used) = u.used {
            page.with(&[("tenant", &u.tenant), ("quota", u.part.as_str())], used);
        }
    }
    page.counter("tenure_quota_refused_total", "What this server did not create for want of room.");
    for u in &usage {
        page.with(&[("tenant", &u.tenant), ("quota", u.part.as_str())], u.refused);
    }
}

fn seconds(d: Duration) -> f64 {
    d.as_secs_f64()
}

fn process(page: &mut Page, app: &App) {
    let about = &app.options().about;
    page.gauge("tenure_build_info", "1, with the version of the program.")
        .with(&[("version", &about.version)], 1);
    page.gauge("tenure_setting", "Settings that are numbers, by key; times in seconds.");
    for (key, value) in &about.settings {
        page.with(&[("key", key)], value);
    }
    if let Some(at) = about.started_at {
        page.gauge("process_start_time_seconds", "When the process started, since 1970.")
            .is(at.as_micros() as f64 / 1e6);
    }
    let vitals = about.vitals.map(|ask| ask()).unwrap_or_default();
    if let Some(bytes) = vitals.resident_bytes {
        page.gauge("process_resident_memory_bytes", "Memory in use.").is(bytes);
    }
    if let Some(cpu) = vitals.cpu {
        page.counter("process_cpu_seconds_total", "Processor time spent.").is(seconds(cpu));
    }
    if let Some(files) = vitals.open_files {
        page.gauge("process_open_fds", "Open files and sockets.").is(files);
    }
}

fn sign_ins(page: &mut Page, app: &App) {
    let (not_valid, limited) = app.auth().failed_sign_ins();
    page.counter(
        "tenure_sign_in_failures_total",
        "Keys and sessions of the console that were refused; limited: unseen, because their address had failed too often.",
    )
    .with(&[("reason", "not_valid")], not_valid)
    .with(&[("reason", "limited")], limited);
}

fn carried(page: &mut Page, meter: &Meter) {
    let c = &meter.commits;
    let commits = [
        ("committed", &c.committed),
        ("stale_epoch", &c.stale_epoch),
        ("version_conflict", &c.version_conflict),
        ("final", &c.is_final),
        ("more_mail", &c.more_mail),
        ("exists", &c.exists),
        ("refused", &c.refused),
    ];
    page.counter(
        "tenure_commits_total",
        "Commits by what became of them; stale_epoch: somebody who had lost tenure tried to write.",
    );
    for (result, count) in commits {
        page.with(&[("result", result)], count.get());
    }
    page.histogram(
        "tenure_batch_operations",
        "Operations per database transaction.",
        meter.batch_ops.read(),
        1.0,
    );
    page.histogram(
        "tenure_batch_seconds",
        "From sending a batch to its answer, tries included.",
        meter.batch_micros.read(),
        1e6,
    );
    let counters = [
        ("tenure_claims_total", "Entities claimed through this process.", &meter.claims),
        ("tenure_claims_lost_total", "Claims by name that were refused.", &meter.claims_lost),
        ("tenure_mail_total", "Mail accepted.", &meter.mail),
        ("tenure_evidence_total", "Evidence recorded.", &meter.evidence),
        ("tenure_busy_total", "Operations sent again because their row was locked.", &meter.busy),
        ("tenure_holds_lost_total", "Tenures that a renewal found ended.", &meter.holds_lost),
        (
            "tenure_store_errors_total",
            "Batches the store did not take, each try.",
            &meter.store_errors,
        ),
        ("tenure_store_gave_up_total", "Batches that were given up.", &meter.store_gave_up),
    ];
    for (name, help, count) in counters {
        page.counter(name, help).is(count.get());
    }
    page.counter(
        "tenure_renewals_total",
        "Renewals of sessions; ended: it had lapsed and was told so.",
    )
    .with(&[("result", "renewed")], meter.renewals.get())
    .with(&[("result", "ended")], meter.renewals_refused.get());
    page.counter("tenure_deliveries_total", "Messages taken from the outbox.")
        .with(&[("result", "delivered")], meter.delivered.get())
        .with(&[("result", "stale_lane")], meter.stale_lane.get());
    page.counter("tenure_pulses_total", "Pulses of this server's due loop.")
        .with(&[("result", "left")], meter.pulses.get())
        .with(&[("result", "failed")], meter.pulses_failed.get());
}

fn jobs(page: &mut Page, meter: &Meter) {
    let counters = [
        ("tenure_jobs_submitted_total", "Jobs created.", "job_created"),
        (
            "tenure_job_takeovers_total",
            "Jobs whose worker was lost and that go on elsewhere.",
            "job_requeued",
        ),
        ("tenure_job_attention_total", "Jobs that began to wait for a person.", "job_attention"),
        (
            "tenure_effects_unknown_total",
            "Calls of which nobody knew how they ended.",
            "effect_unknown",
        ),
        ("tenure_effects_settled_total", "Such calls that were settled.", "effect_settled"),
        ("tenure_tool_calls_started_total", "Calls of tools begun.", "tool_invocation_started"),
        (
            "tenure_tool_calls_finished_total",
            "Calls of tools that ended.",
            "tool_invocation_finished",
        ),
    ];
    for (name, help, event) in counters {
        page.counter(name, help).is(meter.events(event));
    }
    page.counter("tenure_jobs_ended_total", "Jobs that ended, by how.")
        .with(&[("outcome", "completed")], meter.events("job_completed"))
        .with(&[("outcome", "failed")], meter.events("job_failed"))
        .with(&[("outcome", "cancelled")], meter.events("job_cancelled"));
}

fn turns(page: &mut Page, meter: &Meter) {
    let counters = [
        ("tenure_turns_sent_total", "Turns of agents created.", "turn_created"),
        ("tenure_turns_resumed_total", "Suspended turns that went on.", "turn_resumed"),
        (
            "tenure_turn_takeovers_total",
            "Turns that their worker lost or gave back.",
            "turn_left_by_worker",
        ),
        ("tenure_inbox_dead_letters_total", "Mail that no turn could use.", "item_dead"),
        ("tenure_inbox_settled_total", "Dead letters that a person dealt with.", "item_settled"),
    ];
    for (name, help, event) in counters {
        page.counter(name, help).is(meter.events(event));
    }
    page.counter("tenure_turns_ended_total", "Turns that ended, by how.")
        .with(&[("outcome", "success")], meter.events("turn_succeeded"))
        .with(&[("outcome", "partial")], meter.events("turn_partly_succeeded"))
        .with(&[("outcome", "failed")], meter.events("turn_failed"))
        .with(&[("outcome", "timeout")], meter.events("turn_timed_out"))
        .with(&[("outcome", "canceled")], meter.events("turn_canceled"));
}

fn rules(page: &mut Page, meter: &Meter) {
    let rules = meter.rules();
    page.counter(
        "tenure_rule_fired_total",
        "Rules by which silence has consequences, fired by this server; see `tenure rules`.",
    );
    for (rule, kind, fired) in &rules {
        page.with(&[("rule", rule), ("kind", kind)], fired.fired);
    }
    page.counter("tenure_rule_failed_total", "Decisions of these rules that failed.");
    for (rule, kind, fired) in &rules {
        page.with(&[("rule", rule), ("kind", kind)], fired.failed);
    }
}

fn bells(page: &mut Page, app: &App, meter: &Meter) {
    page.counter("tenure_bell_rings_total", "Rings of this process.").is(meter.rings.get());
    page.counter("tenure_due_wakeups_total", "What woke the due loop.")
        .with(&[("by", "bell")], meter.woken_by_bell.get())
        .with(&[("by", "time")], meter.woken_by_time.get());
    page.counter(
        "tenure_bells_missed_total",
        "Entities that became due while the due loop slept, without a bell: late by up to one tick.",
    )
    .is(meter.bells_missed.get());
    // A bell within one process is never away.
    let others = app.pipeline().bell().others();
    page.gauge("tenure_bell_connected", "1 if rings of other processes would be heard.")
        .is(u8::from(others.is_none_or(|o| o.connected)));
    page.counter("tenure_bell_heard_total", "Rings of other processes that were heard.")
        .is(others.map_or(0, |o| o.heard));
}

fn bus(page: &mut Page, app: &App, meter: &Meter) {
    page.counter("tenure_wire_total", "Messages for outside by what became of them; failed: each try; refused: can never be published, dropped.")
        .with(&[("result", "published")], meter.published.get())
        .with(&[("result", "failed")], meter.publish_failed.get())
        .with(&[("result", "refused")], meter.publish_refused.get());
    let vitals = app.options().about.bus.as_ref().map(|ask| (ask.0)());
    page.gauge(
        "tenure_bus_connected",
        "1 if the bus (NATS, or Redis) would take what is for it now, or if none is set.",
    )
    .is(u8::from(vitals.is_none_or(|v| v.connected)));
    page.counter(
        "tenure_bus_connections_total",
        "Connections to the bus; each after the first means that one was lost.",
    )
    .is(vitals.map_or(0, |v| v.connections));
}

fn store(page: &mut Page, seen: &Seen) {
    let (health, now) = (&seen.health, seen.health.now);
    page.gauge("tenure_store_look_seconds", "How long the last look at the store took.")
        .is(seconds(seen.took));
    if let Some(at) = health.pulse_at {
        page.gauge("tenure_pulse_age_seconds", "Since a server last left a pulse in the store.")
            .is(seconds(now.since(at)));
    }
    page.gauge("tenure_sessions", "Sessions that are alive, by role.");
    let of = |role: &str| health.sessions.iter().find(|(r, _)| r == role).map_or(0, |(_, n)| *n);
    for role in ["server", "worker"] {
        page.with(&[("role", role)], of(role));
    }
    page.gauge(
        "tenure_feed_held_seconds",
        "How long the oldest record has been written that the feed can not show yet.",
    )
    .is(health.feed_held_since.map_or(0.0, |at| seconds(now.since(at))));
    page.gauge("tenure_feed_holders", "Open transactions that the feed waits for.")
        .is(health.holding_back.len());
    page.counter(
        "tenure_history_lost_total",
        "How often the database was found without history that had been acknowledged, since the store was created.",
    )
    .is(seen.tallies.get(tenure_kernel::rules::HISTORY_LOST).map_or(0, |t| t.fired));
    page.counter(
        "tenure_rule_ever_fired_total",
        "What the rules did since the store was created, by all servers.",
    );
    for (rule, tally) in &seen.tallies {
        page.with(&[("rule", rule)], tally.fired);
    }
}

fn open(page: &mut Page, seen: &Seen) {
    let health = &seen.health;
    page.gauge(
        "tenure_open_entities",
        "Entities that are owed an outcome, by kind and status; see tenure_open_entities_complete.",
    );
    for open in &health.open {
        page.with(&[("kind", &open.kind), ("status", &open.status)], open.count);
    }
    page.gauge(
        "tenure_open_entities_complete",
        "1 if all open entities were counted; counting stops at ten thousand.",
    )
    .is(u8::from(health.open_is_all));
    page.gauge("tenure_past_bound_entities", "Open entities that are past must_end_by. Must be 0.")
        .is(seen.past_bound);
    page.gauge("tenure_jobs_attention", "Jobs that wait for a person; counting stops at 400.")
        .is(seen.asking.jobs + seen.marked);
    page.gauge(
        "tenure_unknown_effects",
        "Effects that nobody knows about and a person has to settle.",
    )
    .is(seen.asking.unknown_effects + seen.ended.unknown_effects);
    let age = |at: Option<Timestamp>| at.map_or(0.0, |at| seconds(health.now.since(at)));
    page.gauge("tenure_unknown_effects_oldest_seconds", "How long the oldest of them has waited.")
        .is(age([seen.asking.unknown_since, seen.ended.unknown_since].into_iter().flatten().min()));
}

fn waiting(page: &mut Page, seen: &Seen) {
    let (health, now) = (&seen.health, seen.health.now);
    let mut queues: Vec<_> = health.ready.iter().collect();
    queues.sort_by_key(|r| std::cmp::Reverse(r.count));
    queues.truncate(QUEUES_MAX);
    page.gauge(
        "tenure_ready",
        "What waits to be claimed, by queue; counting stops at ten thousand.",
    );
    for ready in &queues {
        page.with(&[("queue", &ready.queue)], ready.count);
    }
    page.gauge("tenure_ready_oldest_seconds", "How long the first in a queue has waited.");
    for ready in &queues {
        page.with(&[("queue", &ready.queue)], seconds(now.since(ready.oldest)));
    }
    page.gauge(
        "tenure_outbox_messages",
        "Messages to be delivered, within the store or on a wire; counting stops at a thousand.",
    );
    let sides = [("inside", false), ("wire", true)];
    for (side, wire) in sides {
        let count: u64 = health.outbox.iter().filter(|o| o.wire == wire).map(|o| o.count).sum();
        page.with(&[("side", side)], count);
    }
    page.gauge("tenure_outbox_oldest_seconds", "How long the oldest of them has waited.");
    for (side, wire) in sides {
        let oldest = health.oldest_message(wire).map_or(0.0, |o| seconds(now.since(o.oldest)));
        page.with(&[("side", side)], oldest);
    }
    // Also on a store without an intake: an alert about a metric that is not there never fires.
    let intake = health.intake.clone().unwrap_or_default();
    page.gauge(
        "tenure_intake_rows",
        "Wishes of applications that are not jobs yet; counting stops at ten thousand.",
    )
    .is(intake.count);
    page.gauge("tenure_intake_oldest_seconds", "How long the oldest of them has waited.")
        .is(intake.oldest.map_or(0.0, |at| seconds(now.since(at))));
    page.gauge(
        "tenure_due_lag_seconds",
        "By how much the entity that is due for longest is overdue.",
    )
    .is(seen.next_due.map_or(0.0, |due| seconds(now.since(due))));
}

fn clock(page: &mut Page, seen: &Seen) {
    if let Some(skew) = seen.skew_us {
        page.gauge("tenure_clock_skew_seconds", "The clock of this machine less the store's.")
            .is(skew as f64 / 1e6);
    }
}
