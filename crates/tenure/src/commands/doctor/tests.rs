//! A healthy deployment, made ill in one place at a time.

use super::{
    chains::Chains,
    diagnose::{Diagnosis, Verdict, diagnose},
    findings::{Alive, Asking, Findings, Jobs, Late, Marked, Tasks, Turns, Unknown},
    places::Place,
    server::ServerSays,
};
use crate::config::Settings;
use std::{path::PathBuf, time::Duration};
use tenure_kernel::{
    blocks::{Block, BlockKind},
    health::{Health, HoldsBack, IntakeCount, OpenCount, OutboxCount, ReadyCount},
    ids::EntityId,
    rules::{Tallies, Tally},
    time::Timestamp,
};

const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

fn ago(seconds: u64) -> Timestamp {
    NOW - Duration::from_secs(seconds)
}

fn id(n: u16) -> EntityId {
    EntityId::fixed(9, n)
}

fn settings(flags: &[&str]) -> Settings {
    let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
    Settings::load(None, std::iter::empty(), &flags).unwrap()
}

fn session(role: &str) -> Alive {
    Alive {
        name: format!("{role}, pid 7"),
        role: role.to_owned(),
        machine: Some("m".repeat(32)),
        lease: Duration::from_secs(15),
        renewed_ago: Duration::from_secs(2),
        holds: 3,
    }
}

fn healthy() -> Findings {
    let open =
        OpenCount { kind: "job".into(), status: "running".into(), count: 4, oldest_change: ago(9) };
    Findings {
        store: "postgres://me@db/t".into(),
        settings: settings(&[]),
        stuck_after: Duration::from_secs(10),
        health: Health {
            now: NOW,
            pulse_at: Some(ago(2)),
            open: vec![open],
            open_is_all: true,
            sessions: vec![("server".into(), 1), ("worker".into(), 1)],
            bells_listening: Some(1),
            database: [
                ("server_version", "17"),
                ("fsync", "on"),
                ("full_page_writes", "on"),
                ("synchronous_commit", "on"),
            ]
            .map(|(n, v)| (n.to_owned(), v.to_owned()))
            .to_vec(),
            ..Health::default()
        },
        skew_us: Some(1_500),
        tallies: Tallies::new(),
        sessions: vec![session("server"), session("worker")],
        late: Vec::new(),
        late_is_all: true,
        chains: Chains { checked: 300, jobs: 200, all: false, problems: Vec::new() },
        marked: Vec::new(),
        blocks: Vec::new(),
        jobs: Jobs::default(),
        turns: Turns::default(),
        tasks: Tasks::default(),
        keys: 0,
        key_tenants: Default::default(),
        accounts: 1,
        confines_files: true,
        server: None,
        bus: None,
        places: Vec::new(),
    }
}

/// What is not fine, after one change.
fn after(change: impl FnOnce(&mut Findings)) -> Vec<Diagnosis> {
    let mut findings = healthy();
    change(&mut findings);
    diagnose(&findings).into_iter().filter(|d| d.verdict != Verdict::Ok).collect()
}

/// The one thing that is not fine, with its verdict, the words it must have, and a page that exists.
#[track_caller]
fn ill(check: &str, verdict: Verdict, words: &[&str], change: impl FnOnce(&mut Findings)) {
    let found = after(change);
    let [d] = &found[..] else { panic!("one thing is wrong, not {found:#?}") };
    assert_eq!((d.check, d.verdict), (check, verdict), "{d:#?}");
    let all = format!("{} {}", d.says, d.remedy.join(" "));
    for word in words {
        assert!(all.contains(word), "{word:?} in {all}");
    }
    assert!(!d.remedy.is_empty(), "what to do: {d:#?}");
    if let Some(page) = d.page {
        let text = include_str!("../../../../../docs/operations.md");
        let anchors: Vec<String> = text
            .lines()
            .filter_map(|l| {
                Some(
                    l.strip_prefix("## ")?.to_lowercase().replace(' ', "-").replace([',', ':'], ""),
                )
            })
            .collect();
        assert!(anchors.iter().any(|a| a == page), "{page} in {anchors:?}");
    }
}

fn late(due: u64, end: Option<u64>) -> Late {
    Late {
        id: id(1),
        kind: "job".into(),
        status: "waiting".into(),
        due: ago(due),
        must_end_by: end.map(ago),
        faults: 0,
    }
}

#[test]
fn nothing_is_wrong_with_a_healthy_one() {
    let found = after(|_| {});
    assert!(found.is_empty(), "{found:#?}");
    let all = diagnose(&healthy());
    assert!(all.len() >= 15, "each check says that it looked: {all:#?}");
}

#[test]
fn an_entity_past_its_bound_is_wrong_and_named() {
    let two = |f: &mut Findings| f.late.push(late(20, Some(20)));
    let found = after(two);
    assert!(found.iter().any(|d| d.check == "bounds" && d.verdict == Verdict::Wrong), "{found:#?}");
    let bounds = found.iter().find(|d| d.check == "bounds").unwrap();
    assert!(
        bounds.says.contains(&id(1).to_string()) && bounds.says.contains("1 open entity past"),
        "{bounds:#?}"
    );
    // Within two ticks it is about to be ended.
    assert!(after(|f| f.late.push(late(10, Some(10)))).is_empty());
}

#[test]
fn what_is_overdue_is_a_warning_first_and_wrong_after_a_minute() {
    ill("due", Verdict::Warning, &["overdue", "servers"], |f| f.late.push(late(30, None)));
    ill("due", Verdict::Wrong, &["2 min 0 s"], |f| f.late.push(late(120, None)));
    ill("due", Verdict::Wrong, &["decisions about 1 of them fail"], |f| {
        f.late.push(Late { faults: 3, ..late(30, None) });
    });
}

#[test]
fn without_a_server_what_is_open_hangs() {
    let gone = |f: &mut Findings| {
        f.sessions.retain(|s| s.role != "server");
        f.health.bells_listening = Some(0);
        f.health.pulse_at = Some(ago(600));
    };
    ill("servers", Verdict::Wrong, &["no server is alive", "10 min", "tenure server"], gone);
    ill("servers", Verdict::Warning, &["nothing is open"], |f| {
        gone(f);
        f.health.open.clear();
    });
    ill("servers", Verdict::Wrong, &["claims to be alive"], |f| f.health.pulse_at = Some(ago(90)));
    ill("servers", Verdict::Warning, &["20.0 s"], |f| f.health.pulse_at = Some(ago(20)));
    ill("servers", Verdict::Warning, &["ever"], |f| f.health.pulse_at = None);
}

#[test]
fn a_broken_chain_is_wrong() {
    let broken =
        |f: &mut Findings| f.chains.problems.push((id(3), "hash differs at version 2".into()));
    ill("chains", Verdict::Wrong, &["sample of 300", "hash differs", "do not write"], broken);
}

#[test]
fn messages_that_wait_are_told_apart_by_where_they_go() {
    let stuck = |wire, seconds| OutboxCount { lane: 5, wire, count: 2, oldest: ago(seconds) };
    ill("outbox", Verdict::Wrong, &["2 messages wait", "lane 5", "2 min"], |f| {
        f.health.outbox.push(stuck(false, 120))
    });
    ill("outbox", Verdict::Warning, &["30.0 s"], |f| f.health.outbox.push(stuck(false, 30)));
    ill("bus", Verdict::Warning, &["no route", "bus.url"], |f| {
        f.bus = Some(Err("no route".into()));
    });
    ill("wire", Verdict::Warning, &["broker"], |f| f.health.outbox.push(stuck(true, 3_600)));
    assert!(after(|f| f.health.outbox.push(stuck(false, 3))).is_empty(), "under way");
}

#[test]
fn rows_of_the_intake_are_owed_a_job() {
    let waits = |seconds| Some(IntakeCount { count: 2, oldest: Some(ago(seconds)) });
    ill("intake", Verdict::Warning, &["2 rows wait", "30.0 s"], |f| f.health.intake = waits(30));
    ill("intake", Verdict::Wrong, &["2 min", "no server takes them"], |f| {
        f.health.intake = waits(120);
    });
    assert!(after(|f| f.health.intake = waits(3)).is_empty(), "under way");
}

fn transaction(pid: Option<i32>, prepared: Option<&str>, seconds: Option<u64>) -> HoldsBack {
    HoldsBack {
        pid,
        prepared: prepared.map(str::to_owned),
        database: "other".into(),
        user: "somebody".into(),
        application: "psql".into(),
        state: "idle in transaction".into(),
        since: seconds.map(ago),
        query: "UPDATE\n  things".into(),
    }
}

#[test]
fn a_transaction_that_holds_the_feed_back_is_named_by_its_pid() {
    let words = [
        "pid 4711",
        "psql",
        "idle in transaction",
        "UPDATE things",
        "SELECT pg_terminate_backend(4711);",
    ];
    ill("feed", Verdict::Wrong, &words, |f| {
        f.health.feed_held_since = Some(ago(290));
        f.health.holding_back.push(transaction(Some(4711), None, Some(300)));
    });
    ill("feed", Verdict::Warning, &["pid 4711"], |f| {
        f.health.holding_back.push(transaction(Some(4711), None, Some(300)));
    });
    ill("feed", Verdict::Warning, &["ROLLBACK PREPARED 'it''s'"], |f| {
        f.health.holding_back.push(transaction(None, Some("it's"), Some(300)));
    });
    assert!(
        after(|f| f.health.holding_back.push(transaction(Some(1), None, None))).is_empty(),
        "no harm yet"
    );
    ill("feed", Verdict::Wrong, &["pid 1 ", "an unknown time"], |f| {
        f.health.feed_held_since = Some(ago(60));
        f.health.holding_back.push(transaction(Some(1), None, None));
    });
    ill("feed", Verdict::Warning, &["pg_monitor"], |f| f.health.feed_held_since = Some(ago(60)));
    assert!(
        after(|f| f.health.holding_back.push(transaction(Some(1), None, Some(1)))).is_empty(),
        "a batch under way"
    );
}

#[test]
fn clocks_that_differ_are_said_and_one_that_was_set_back_is_wrong() {
    ill("clocks", Verdict::Warning, &["this machine is 5.0 s behind"], |f| {
        f.skew_us = Some(-5_000_000)
    });
    ill("clocks", Verdict::Wrong, &["in the future"], |f| {
        f.health.pulse_at = Some(NOW + Duration::from_secs(60))
    });
    ill("clocks", Verdict::Warning, &["the server is 3.0 s ahead"], |f| {
        f.server = Some(Ok(ServerSays::read("http://s", "tenure_clock_skew_seconds 3\n")));
    });
}

#[test]
fn a_server_that_was_asked_says_what_only_it_knows() {
    ill("server", Verdict::Wrong, &["refused"], |f| {
        f.server = Some(Err("connection refused".into()))
    });
    let says = |text: &'static str| {
        move |f: &mut Findings| f.server = Some(Ok(ServerSays::read("http://s", text)))
    };
    ill("server", Verdict::Wrong, &["does not reach its store"], says("tenure_store_up 0\n"));
    ill(
        "server",
        Verdict::Warning,
        &["worker.lease_seconds = 30 there, 15 here"],
        says("tenure_setting{key=\"worker.lease_seconds\"} 30\n"),
    );
    ill(
        "bells",
        Verdict::Warning,
        &["500"],
        says("tenure_bells_missed_total 500\ntenure_due_wakeups_total{by=\"bell\"} 20\n"),
    );
    ill(
        "rules",
        Verdict::Warning,
        &["a decision failed"],
        says("tenure_rule_failed_total{rule=\"timer\",kind=\"job\"} 2\n"),
    );
}

/// The numbers are somebody else's: whatever they are, there is a diagnosis.
#[test]
fn a_server_that_says_impossible_numbers_is_diagnosed_all_the_same() {
    let settings = ["worker.lease_seconds", "server.tick_seconds", "server.pulse_gap_seconds"];
    for number in ["1e300", "inf", "-inf", "NaN", "315360001", "-1", "0", "18446744073709551615"] {
        let text: String =
            settings.map(|key| format!("tenure_setting{{key=\"{key}\"}} {number}\n")).concat()
                + &["tenure_clock_skew_seconds", "tenure_bells_missed_total", "tenure_store_up"]
                    .map(|name| format!("{name} {number}\n"))
                    .concat();
        let mut findings = healthy();
        findings.server = Some(Ok(ServerSays::read("http://s", &text)));
        assert!(!diagnose(&findings).is_empty(), "{number}");
    }
}

#[test]
fn a_server_that_does_not_listen_for_bells_is_only_slower() {
    ill("bells", Verdict::Warning, &["0 of 1 server", "only later", "pooler"], |f| {
        f.health.bells_listening = Some(0)
    });
}

#[test]
fn a_recent_outage_is_remembered() {
    let tally = |at| Tally { fired: 2, last_at: Some(at), ..Tally::default() };
    ill("rules", Verdict::Warning, &["silent", "5 min"], |f| {
        f.tallies.insert("outage".into(), tally(ago(300)));
    });
    let long_ago = |f: &mut Findings| {
        f.tallies.insert("outage".into(), tally(ago(90_000)));
    };
    assert!(after(long_ago).is_empty());
}

#[test]
fn history_that_is_missing_is_said_with_its_time_for_a_week() {
    let lost = |at| Tally {
        fired: 1,
        last_at: Some(at),
        lag_max: Duration::from_secs(90),
        ..Tally::default()
    };
    ill("rules", Verdict::Wrong, &["acknowledged history is missing", "5 min"], |f| {
        f.tallies.insert("history_lost".into(), lost(ago(300)));
    });
    let long_ago = |f: &mut Findings| {
        f.tallies.insert("history_lost".into(), lost(ago(8 * 86_400)));
    };
    assert!(after(long_ago).is_empty());
}

#[test]
fn lost_and_late_workers_are_said() {
    ill("workers", Verdict::Warning, &["lost 4 of 5 workers", "OOM"], |f| {
        f.jobs.taken_over.push((id(1), 4, 5))
    });
    ill("workers", Verdict::Warning, &["renewed 12.0 s ago"], |f| {
        f.sessions[1].renewed_ago = Duration::from_secs(12)
    });
    assert!(
        after(|f| f.jobs.taken_over.push((id(1), 1, 5))).is_empty(),
        "one is what leases are for"
    );
}

#[test]
fn work_that_nobody_takes_is_said() {
    let ready = |seconds| ReadyCount { queue: "order@2".into(), count: 12, oldest: ago(seconds) };
    ill("queues", Verdict::Warning, &["order@2", "tenure worker"], |f| {
        f.health.ready.push(ready(900))
    });
    assert!(after(|f| f.health.ready.push(ready(20))).is_empty());
    let named = |queue: &str| ReadyCount { queue: queue.into(), ..ready(900) };
    for (queue, command) in [
        ("order@2", "`tenure worker`"),
        ("order@2/night", "`tenure worker --queue night`"),
        ("order@2/night+big+gpu", "`tenure worker --queue night --can big --can gpu`"),
        ("order@2+gpu", "`tenure worker --can gpu`"),
    ] {
        ill("queues", Verdict::Warning, &[command], |f| f.health.ready.push(named(queue)));
    }
}

#[test]
fn what_waits_for_a_person_is_listed() {
    let asking = Asking {
        id: id(1),
        reason: "diverged".into(),
        since: ago(7_200),
        must_end_by: Some(NOW + Duration::from_secs(3_600)),
    };
    ill(
        "attention",
        Verdict::Warning,
        &["1 job waits", "1 diverged", "2 h 0 min", "ends failed in 1 h"],
        |f| f.jobs.attention.push(asking),
    );
    ill("attention", Verdict::Warning, &["keep failing", "boom"], |f| {
        f.marked.push(Marked { id: id(2), kind: "job".into(), why: "boom".into() });
    });
    let block = |name: &str, since| Block {
        kind: BlockKind::Flow,
        name: name.into(),
        why: "it kills workers".into(),
        by: "ada".into(),
        since,
    };
    ill(
        "blocks",
        Verdict::Warning,
        &["2 things", "flow pay, flow send", "the oldest, the flow send, for 2 h", "by ada"],
        |f| f.blocks = vec![block("pay", ago(60)), block("send", ago(7_200))],
    );
    let unknown = Unknown { job: id(1), step: "3".into(), since: ago(600), ended: true };
    ill(
        "effects",
        Verdict::Warning,
        &["1 effect", "step 3", "tenure job resolve", "1 of jobs that have ended"],
        |f| f.jobs.unknown.push(unknown),
    );
    ill("failed", Verdict::Warning, &["at least 200 failed jobs"], |f| {
        (f.jobs.dead_letters, f.jobs.more_dead_letters) = (200, true);
        f.jobs.newest_dead_letter = Some(ago(5));
    });
}

#[test]
fn tasks_that_wait_for_a_person_or_in_vain_are_named() {
    ill("tasks", Verdict::Warning, &["2 failed tasks", "tenure task dead-letters"], |f| {
        (f.tasks.dead_letters, f.tasks.newest_dead) = (2, Some(id(4)));
    });
    ill("tasks", Verdict::Warning, &["1 pod waits", "tenure executor"], |f| {
        (f.tasks.unclaimed, f.tasks.longest) = (1, Some(("pods".into(), id(4), ago(60))));
    });
}

#[test]
fn turns_that_wait_for_a_person_or_in_vain_are_named() {
    ill("turns", Verdict::Warning, &["2 dead letters", "tenure inbox list"], |f| {
        (f.turns.dead_letters, f.turns.with_letters) = (2, Some(id(4)));
    });
    let waits = |seconds| {
        move |f: &mut Findings| {
            (f.turns.waiting, f.turns.longest) = (1, Some(("pool".into(), id(4), ago(seconds))));
        }
    };
    ill("turns", Verdict::Warning, &["1 turn waits", "worker --target pool"], waits(60));
    assert!(after(waits(2)).is_empty(), "it has only just begun to wait");
}

#[test]
fn a_database_that_forgets_is_wrong() {
    let set = |name: &'static str, value: &'static str| {
        move |f: &mut Findings| {
            f.health.database.retain(|(n, _)| n != name);
            f.health.database.push((name.into(), value.into()));
        }
    };
    ill("database", Verdict::Wrong, &["ALTER SYSTEM SET fsync = on"], set("fsync", "off"));
    ill("database", Verdict::Wrong, &["full_page_writes"], set("full_page_writes", "off"));
    ill("database", Verdict::Wrong, &["zero_damaged_pages"], set("zero_damaged_pages", "on"));
    ill(
        "database",
        Verdict::Wrong,
        &["ignore_checksum_failure"],
        set("ignore_checksum_failure", "on"),
    );
    ill("database", Verdict::Wrong, &["standby", "primary"], set("in_recovery", "true"));
    ill("database", Verdict::Warning, &["1 standby copies", "failover"], set("standbys", "1"));
    ill("database", Verdict::Wrong, &["delete"], set("journal_mode", "delete"));
    let fine = diagnose(&{
        let mut f = healthy();
        set("synchronous_commit", "off")(&mut f);
        f
    });
    let said = fine.iter().find(|d| d.check == "database").unwrap();
    assert_eq!(said.verdict, Verdict::Ok);
    assert!(said.says.contains("set it on"), "{said:?}");
}

#[test]
fn a_place_that_forgets_is_said() {
    let place = |change: fn(&mut Place)| {
        move |f: &mut Findings| {
            let mut place = Place {
                mode: Some(0o700),
                key: "store.url",
                path: PathBuf::from("/var/lib/tenure"),
                exists: true,
                file_system: Some("ext4".into()),
                temporary: false,
                room: Some((50 << 30, 100 << 30)),
            };
            change(&mut place);
            f.places.push(place);
        }
    };
    assert!(after(place(|_| {})).is_empty());
    ill("disk", Verdict::Wrong, &["memory"], place(|p| p.file_system = Some("tmpfs".into())));
    ill(
        "disk",
        Verdict::Wrong,
        &["network", "Postgres"],
        place(|p| p.file_system = Some("nfs4".into())),
    );
    ill("disk", Verdict::Warning, &["temporary"], place(|p| p.temporary = true));
    ill("disk", Verdict::Warning, &["100 MiB"], place(|p| p.room = Some((100 << 20, 100 << 30))));
    ill("disk", Verdict::Wrong, &["no directory"], place(|p| p.exists = false));
    ill("disk", Verdict::Warning, &["2 machines", "share"], |f| {
        place(|p| p.key = "effects.directory")(f);
        f.sessions[1].machine = Some("other".into());
    });
}

#[test]
fn every_setting_that_weakens_a_guarantee_is_said() {
    let weak: [(&[&str], &str); 16] = [
        (&["worker.renewal_seconds=6"], "a third"),
        (
            &[
                "worker.lease_seconds=1",
                "worker.renewal_seconds=0.2",
                "server.tick_seconds=0.2",
                "server.pulse_gap_seconds=0.5",
            ],
            "drills",
        ),
        (&["worker.lease_seconds=600"], "died on another machine"),
        (
            &["worker.lease_seconds=120", "server.tick_seconds=40", "server.pulse_gap_seconds=60"],
            "bells silent",
        ),
        (&["job.takeovers_max=0"], "first worker"),
        (&["job.takeovers_max=500"], "kill 500"),
        (&["job.must_end_by_seconds=31536000"], "hangs"),
        (&["job.must_end_by_seconds=200"], "fraction"),
        (&["server.retention_days=1"], "idempotency key"),
        (&["executor.retry_max=0"], "first failure"),
        (&["executor.backoff=0"], "at once"),
        (&["executor.stop_grace=0"], "cut off"),
        (&["worker.drain_seconds=0"], "deployment"),
        (&["server.patience_seconds=0"], "restart of the database"),
        (&["log.filter=off"], "nowhere"),
        (&["store.url=postgres://u:s3cret@db.example/t"], "clear text"),
    ];
    for (flags, words) in weak {
        // A pulse that fits the shorter ticks.
        let quick = |f: &mut Findings| {
            f.settings = settings(flags);
            f.health.pulse_at = Some(NOW);
            f.sessions.iter_mut().for_each(|s| s.renewed_ago = Duration::ZERO);
        };
        ill("settings", Verdict::Warning, &[words], quick);
    }
    ill("settings", Verdict::Warning, &["renews and does nothing"], |f| {
        f.settings = settings(&["executor.step_timeout=172800"])
    });
    ill("settings", Verdict::Warning, &["hidden"], |f| {
        f.settings = settings(&["server.faults_before_attention=100"])
    });
    let outside = "server.listen=0.0.0.0:7777";
    let tls = [outside, "server.tls_certificate_file=c", "server.tls_key_file=k"];
    ill("settings", Verdict::Wrong, &["tenure key create"], |f| f.settings = settings(&tls));
    ill("settings", Verdict::Wrong, &["no certificate", "server.tls_certificate_file"], |f| {
        (f.settings, f.keys) = (settings(&[outside]), 1);
    });
    ill("settings", Verdict::Warning, &["can be read on their way"], |f| {
        (f.settings, f.keys) = (settings(&[outside, "server.plain_http=anywhere"]), 1);
    });
    assert!(after(|f| (f.settings, f.keys) = (settings(&tls), 1)).is_empty());
}

#[test]
fn the_worst_is_told_first() {
    let mut all = diagnose(&healthy());
    all.push(Diagnosis::warning("w", "w"));
    all.push(Diagnosis::wrong("x", "x"));
    all.sort_by_key(|d| std::cmp::Reverse(d.verdict));
    assert_eq!((all[0].check, all[1].check), ("x", "w"));
    let text = super::text::report(&healthy(), &all);
    assert!(text.contains("WRONG    x") && text.contains("1 wrong, 1 warning"), "{text}");
}

/// The warnings about security that these settings lead to.
fn weakened(flags: &[&str], change: impl FnOnce(&mut Findings)) -> Vec<String> {
    let found = after(|f| {
        f.settings = settings(flags);
        f.keys = 1;
        change(f);
    });
    assert!(
        found.iter().all(|d| d.check == "security" && d.verdict == Verdict::Warning),
        "{found:#?}"
    );
    assert!(found.iter().all(|d| !d.remedy.is_empty()), "{found:#?}");
    found.into_iter().map(|d| d.says).collect()
}

#[test]
fn every_setting_that_weakens_security_is_named() {
    for (flag, words) in [
        ("tools.command_tenants=acme", &["runs programs", "acme"][..]),
        ("tools.command_tenants=*", &["every tenant"]),
        ("tools.secrets=acme=*", &["acme", "send"]),
        ("tools.secrets=default=*, *=A", &["tools.secrets gives A to *"]),
        ("llm.tenants=*", &["every tenant"]),
        ("egress.allow=acme=0.0.0.0/0", &["acme", "credentials"]),
        ("egress.allow=acme=169.254.169.254", &["credentials"]),
        ("egress.allow=acme=127.0.0.1", &["this machine"]),
        ("egress.allow=acme=::/0", &["this machine"]),
        ("egress.allow=acme=10.0.0.0/8", &["more than one network"]),
        ("llm.base_url=http://models.example/v1", &["llm.base_url", "clear text"]),
        ("bus.url=nats://bus.example:4222", &["bus.url", "clear text"]),
    ] {
        let says = weakened(&[flag], |_| {});
        let [says] = &says[..] else { panic!("{flag}: {says:#?}") };
        assert!(words.iter().all(|word| says.contains(word)), "{flag}: {says}");
    }
    for fine in [
        "egress.allow=acme=10.2.0.0/16+billing.internal:443",
        "tools.secrets=acme=TENURE_SECRET_A",
        "llm.base_url=http://127.0.0.1:9/v1",
        "llm.base_url=https://models.example/v1",
        "bus.url=nats://localhost:4222",
        "server.quotas=*=open:5",
    ] {
        assert_eq!(weakened(&[fine], |_| {}), Vec::<String>::new(), "{fine}");
    }
}

#[test]
fn surroundings_that_weaken_security_are_named() {
    let one = |says: Vec<String>, words: &str| {
        assert!(matches!(&says[..], [one] if one.contains(words)), "{words}: {says:#?}");
    };
    one(weakened(&[], |f| f.accounts = 3), "3 accounts");
    assert!(weakened(&["server.require_keys=true"], |f| f.accounts = 3).is_empty());
    let tenants = |f: &mut Findings| f.key_tenants = ["acme", "globex"].map(str::to_owned).into();
    one(weakened(&["server.require_keys=true"], tenants), "2 tenants have keys");
    one(weakened(&["server.quotas=*=open:5"], tenants), "server.require_keys = false");
    let quiet = ["server.quotas=*=open:5", "server.require_keys=true"];
    assert!(weakened(&quiet, tenants).is_empty());
    let says = weakened(&["tools.command_tenants=acme", "tools.command_writable=*"], |f| {
        f.confines_files = false
    });
    assert_eq!(says.len(), 3, "{says:#?}");
    assert!(says[1].contains("Landlock") && says[2].contains("command_writable"), "{says:#?}");
    let place = |mode| Place {
        key: "store.url",
        path: PathBuf::from("/srv/tenure"),
        exists: true,
        file_system: Some("ext4".into()),
        temporary: false,
        mode: Some(mode),
        room: None,
    };
    one(weakened(&[], |f| f.places.push(place(0o755))), "has the mode 755");
    assert!(weakened(&[], |f| f.places.push(place(0o700))).is_empty());
}
