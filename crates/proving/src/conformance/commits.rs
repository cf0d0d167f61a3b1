//! Commits: what is written reads back, what is not allowed leaves no trace, and repetition is safe.

use super::world::{LONG, World, expect_now, judge};
use std::time::Duration;
use tenure_kernel::{
    commit::{CommitAnswer, Expect, MailStance, Refusal, TenureChange, UniqueKey},
    evidence::{EvidenceAnswer, NewEvidence},
    ids::{EntityId, MailId},
    limits,
    mail::{MailAnswer, NewMail},
    outbox::Message,
    store::{Answer, KeyRange, Op},
    stream::{Body, Hash, NewEvent, rehash},
    table::{Class, kernel_events as ke},
    timers::TimerChange,
};

/// Born into a session's hands: the store has the head that the judge makes of the commit at the time it gave,
/// which is what lets the holder go on without reading it. Nobody can claim it.
pub async fn what_is_born_held_has_the_head_that_its_holder_can_compute(world: &World) {
    let session = world.session(LONG).await;
    let mut birth = world.birth_in("made_running", "tenant", "queue", 3);
    birth.tenure = TenureChange::Take { session, lease: LONG };
    birth.state = Some(b"{\"n\":1}".to_vec());
    birth.timers = vec![TimerChange::set("tea", Duration::from_secs(60))];
    let id = birth.entity;
    let first = world.commit_ok(birth.clone()).await;
    let computed = judge().commit(None, &birth, first.at).expect("a legal birth").head;
    assert_eq!(world.head(id).await, computed);
    assert_eq!((computed.holder, computed.epoch), (Some(session), 1));
    assert_eq!((first.chain, first.ready_in), (computed.chain, None));
    let (commit, lease) = (world.commit_id(), LONG);
    let claim = Op::Claim { id: commit, entity: id, session: world.session(LONG).await, lease };
    assert!(matches!(world.one(claim).await, Answer::Claim(Err(_))));
    let again = world.commit_ok(birth).await;
    assert!(again.repeated);
    assert_eq!((again.chain, again.at, again.epoch), (first.chain, first.at, first.epoch));
    let note =
        world.says(id, Expect::Holder { epoch: first.epoch, version: first.version }, "noted");
    world.commit_ok(note).await;
}

/// A NUL in a name is refused by every store, in the same words, and leaves no trace. One database cannot keep it.
pub async fn a_nul_in_a_name_is_refused(world: &World) {
    let refused = |answer: CommitAnswer, what: &str| {
        let CommitAnswer::Refused(why) = &answer else { panic!("{what}: {answer:?}") };
        assert_eq!(why.to_string(), format!("the {what} has a NUL character: leave it out"));
    };
    for (what, tenant, queue) in [("tenant", "a\0b", "queue"), ("queue", "tenant", "a\0b")] {
        let birth = world.birth_in("made_blocked", tenant, queue, 0);
        let id = birth.entity;
        refused(world.commit(birth).await, what);
        assert!(world.store().head(id).await.unwrap().is_none());
    }
    let mut keyed = world.birth_in("made_blocked", "tenant", "queue", 0);
    keyed.keys = vec![UniqueKey { key: "a\0b".into(), digest: Hash::of(b"") }];
    refused(world.commit(keyed).await, "unique key");
    let there = world.birth_in("made_blocked", "tenant", "queue", 0);
    let to = there.entity;
    world.commit_ok(there).await;
    let (id, kind, body) = (MailId("a\0b".into()), "note".into(), Body::Inline(Vec::new()));
    let answer = world.one(Op::Mail(NewMail { to, id, kind, body: body.clone() })).await;
    assert!(matches!(answer, Answer::Mail(MailAnswer::Refused(_))), "{answer:?}");
    let (key, who) = ("a\0b".to_owned(), "ann".to_owned());
    let evidence = NewEvidence { entity: to, key, epoch: 0, call: 0, who, body };
    let answer = world.one(Op::Evidence(evidence)).await;
    assert!(matches!(answer, Answer::Evidence(EvidenceAnswer::Refused(_))), "{answer:?}");
}

/// Everything in a commit reads back with equal bytes, and its chain can be recomputed from them.
pub async fn what_is_committed_reads_back_with_equal_bytes_and_chain(world: &World) {
    let bytes: Vec<u8> = (0..=255).collect();
    let mut birth = world.birth_in("made_blocked", "tenant", "queue", -7);
    birth.events.push(NewEvent::new("noted", Body::Inline(bytes.clone())));
    birth.events.push(NewEvent::new("noted", Body::Inline(Vec::new())));
    birth.state = Some(b"{\"n\":1}".to_vec());
    birth.timers = vec![
        TimerChange::set("tea", Duration::from_secs(60)),
        TimerChange::guard("gate", Duration::from_micros(90_000_001)),
    ];
    birth.attention = Some(Some("look \u{1F440}".into()));
    let id = birth.entity;
    let first = world.commit_ok(birth.clone()).await;
    assert_eq!((first.version, first.epoch, first.repeated), (3, 0, false));

    let head = world.head(id).await;
    assert_eq!(head.status.name(), "blocked");
    assert_eq!((head.tenant.as_str(), head.queue.as_str(), head.priority), ("tenant", "queue", -7));
    assert_eq!((head.version, head.epoch, head.holder), (3, 0, None));
    assert_eq!((head.chain, head.created_at, head.changed_at), (first.chain, first.at, first.at));
    assert_eq!(head.state, b"{\"n\":1}");
    assert_eq!(head.attention.as_deref(), Some("look \u{1F440}"));
    assert_eq!(head.must_end_by, Some(first.at + LONG));
    assert_eq!(head.timers.len(), 2);
    let gate = head.timers.get("gate").expect("the guard is there");
    assert!(gate.guard && gate.at == first.at + Duration::from_micros(90_000_001));
    assert_eq!(head.due, Some(first.at + Duration::from_secs(60)));

    let second = world.commit_ok(world.note(id).await).await;
    assert_eq!(second.version, 4);
    let records = world.records(id).await;
    assert_eq!(records.len(), 2);
    assert_eq!((records[0].first, records[0].count, records[0].commit), (1, 3, birth.id));
    assert_eq!((records[0].at, records[0].hash), (first.at, first.chain));
    let events = records[0].events().expect("events can be read");
    assert_eq!(events[1].body, Body::Inline(bytes));
    assert_eq!(events[2].body, Body::Inline(Vec::new()));
    assert_eq!(rehash(Hash::ZERO, &records[0]), Ok(first.chain));
    assert_eq!(rehash(first.chain, &records[1]), Ok(second.chain));
    let from_two = world.store().stream(id, 4, 10).await.expect("stream");
    assert_eq!(from_two, records[1..], "a stream is read from a version on");
    let only_one = world.store().stream(id, 1, 1).await.expect("stream");
    assert_eq!(only_one, records[..1], "a stream is read up to a limit");
    world.verify(id).await;
}

/// Law 4: an open entity without a deadline is refused and leaves no row.
pub async fn an_open_entity_without_a_deadline_is_refused(world: &World) {
    let mut commit = world.birth("made_blocked");
    commit.must_end_in = None;
    let id = commit.entity;
    let answer = world.commit(commit).await;
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::Deadline(_))), "{answer:?}");
    assert_eq!(world.store().head(id).await, Ok(None));
    assert!(world.records(id).await.is_empty());

    // A resting entity that opens needs one as well, and keeps its row as it was.
    let idle = world.specimen("made_idle").await;
    let before = world.head(idle).await;
    assert_eq!(before.must_end_by, None);
    let answer = world.commit(world.says(idle, expect_now(&before), "woke")).await;
    assert!(matches!(answer, CommitAnswer::Refused(Refusal::Deadline(_))), "{answer:?}");
    assert_eq!(world.head(idle).await, before);
    let mut wakes = world.says(idle, expect_now(&before), "woke");
    wakes.must_end_in = Some(LONG);
    let woken = world.commit_ok(wakes).await;
    let head = world.head(idle).await;
    assert_eq!(head.must_end_by, Some(woken.at + LONG));
    assert!(head.due.is_some_and(|due| due <= woken.at + LONG));
}

/// Law 3: nothing changes a final entity, whatever the writer believes.
pub async fn a_final_entity_never_changes(world: &World) {
    let id = world.specimen("made_queued").await;
    let session = world.session(LONG).await;
    let held = world.claim(id, session, LONG).await;
    world.end(id).await;
    let (head, records) = (world.head(id).await, world.records(id).await);
    assert_eq!((head.class(), head.holder, head.due), (Class::Final, None, None));
    assert_eq!(head.epoch, held.epoch + 1, "the end of a held entity ends its tenure");
    let (epoch, version) = (head.epoch, head.version);
    let beliefs = [
        Expect::Nobody { epoch, version },
        Expect::Holder { epoch, version },
        Expect::Holder { epoch: held.epoch, version: held.version },
        Expect::Overrule { epoch, version },
        Expect::EndTenure { epoch },
    ];
    for expect in beliefs {
        for event in ["noted", "ended", "woke", ke::TENURE_ENDED, ke::FORCE_ENDED, ke::SEALED] {
            let mut commit = world.says(id, expect.clone(), event);
            commit.mail = MailStance::Regardless;
            let answer = world.commit(commit).await;
            assert_eq!(answer, CommitAnswer::Final { status: "done" }, "{expect:?} {event}");
        }
    }
    let claim = Op::Claim { id: world.commit_id(), entity: id, session, lease: LONG };
    let answer = world.one(claim).await;
    assert_eq!(answer, Answer::Claim(Err(CommitAnswer::Final { status: "done" })));
    assert_eq!(world.head(id).await, head);
    assert_eq!(world.records(id).await, records);
}

/// A version that is too low or too high is refused, and versions stay dense.
pub async fn a_version_gap_or_overlap_is_refused(world: &World) {
    let id = world.specimen("made_blocked").await;
    for _ in 0..3 {
        world.commit_ok(world.note(id).await).await;
    }
    let before = world.head(id).await;
    assert_eq!(before.version, 4);
    for version in [0, 1, 3, 5, u64::MAX >> 1] {
        let answer =
            world.commit(world.says(id, Expect::Nobody { epoch: 0, version }, "noted")).await;
        assert_eq!(answer, CommitAnswer::VersionConflict { current: 4 }, "version {version}");
    }
    assert_eq!(world.head(id).await, before);
    let versions: Vec<u64> = world.records(id).await.iter().map(|r| r.first).collect();
    assert_eq!(versions, [1, 2, 3, 4]);
}

/// Asking again with the same commit id gives the first answer: at once, after later commits, after a
/// takeover, and after the end. It changes nothing.
pub async fn a_repeated_commit_id_gets_the_first_answer(world: &World) {
    let birth = world.birth("made_queued");
    let id = birth.entity;
    let session = world.session(LONG).await;
    let mut said = vec![(birth.clone(), world.commit_ok(birth).await)];
    let held = world.claim(id, session, LONG).await;
    let mut note = world.says(id, expect_now(&held), "noted");
    note.messages = vec![Message::mail(id, "echo", Body::Inline(b"x".to_vec()))];
    said.push((note.clone(), world.commit_ok(note).await));
    let head = world.head(id).await;
    let mut release = world.says(id, expect_now(&head), ke::TENURE_ENDED);
    release.tenure = TenureChange::End;
    release.mail = MailStance::Regardless;
    said.push((release.clone(), world.commit_ok(release).await));
    let other = world.session(LONG).await;
    world.claim(id, other, LONG).await;
    let same = async || {
        for (commit, first) in &said {
            let again = world.commit(commit.clone()).await;
            let CommitAnswer::Committed(again) = again else { panic!("{again:?}") };
            assert!(again.repeated);
            assert_eq!(
                (again.version, again.epoch, again.chain, again.at),
                (first.version, first.epoch, first.chain, first.at),
                "a repetition gets the answer of the first time"
            );
        }
    };
    let before = (world.head(id).await, world.records(id).await);
    same().await;
    assert_eq!((world.head(id).await, world.records(id).await), before);
    world.end(id).await;
    let before = (world.head(id).await, world.records(id).await);
    same().await;
    assert_eq!((world.head(id).await, world.records(id).await), before);
    // The same place in the stream with another id is not a repetition.
    let mut impostor = said[1].0.clone();
    impostor.id = world.commit_id();
    assert_eq!(world.commit(impostor).await, CommitAnswer::Final { status: "done" });
}

/// A unique key belongs to the first entity that took it, and tells the same input from another.
pub async fn a_taken_key_names_its_entity_and_says_whether_the_input_was_the_same(world: &World) {
    let key = |digest: &[u8]| UniqueKey { key: format!("job/t/{}", "k"), digest: Hash::of(digest) };
    let mut first = world.birth("made_queued");
    first.keys = vec![key(b"one")];
    world.commit_ok(first.clone()).await;
    let mut again = world.birth("made_queued");
    again.keys = vec![key(b"one")];
    let answer = world.commit(again.clone()).await;
    assert_eq!(answer, CommitAnswer::Exists { entity: first.entity, same: true });
    assert_eq!(world.store().head(again.entity).await, Ok(None), "no second entity appears");
    let mut other = world.birth("made_queued");
    other.keys = vec![UniqueKey { key: "free".into(), digest: Hash::ZERO }, key(b"two")];
    let answer = world.commit(other).await;
    assert_eq!(answer, CommitAnswer::Exists { entity: first.entity, same: false });
    // All or nothing: the free key of a refused birth is still free.
    let mut later = world.birth("made_queued");
    later.keys = vec![UniqueKey { key: "free".into(), digest: Hash::ZERO }];
    world.commit_ok(later).await;
    // Keys outlive the end: a submission that is repeated late finds what it became.
    world.end(first.entity).await;
    let mut late = world.birth("made_queued");
    late.keys = vec![key(b"one")];
    let answer = world.commit(late).await;
    assert_eq!(answer, CommitAnswer::Exists { entity: first.entity, same: true });
}

/// Keys are found by range, whatever the language of the database: in the order of their bytes, from either end, up to the limit.
pub async fn keys_are_found_by_range_in_the_order_of_their_bytes(world: &World) {
    let names = ["a", "a/B", "a/b", "a/b/1", "a/b/2", "a/b/3", "a/b0", "a/ä", "b"];
    let mut entities = Vec::new();
    for name in names {
        let mut birth = world.birth("made_queued");
        birth.keys = vec![UniqueKey { key: name.into(), digest: Hash::of(b"k") }];
        entities.push(birth.entity);
        world.commit_ok(birth).await;
    }
    let found = async |from: &str, to: &str, highest_first: bool, limit: usize| {
        let range = KeyRange { from: from.into(), to: to.into(), highest_first };
        world.store().keys(range, limit).await.expect("keys")
    };
    let rows = |numbers: &[usize]| -> Vec<(String, EntityId)> {
        numbers.iter().map(|n| (names[*n].to_owned(), entities[*n])).collect()
    };
    assert_eq!(found("a/b/", "a/b0", false, 10).await, rows(&[3, 4, 5]));
    assert_eq!(found("a/b/", "a/b0", true, 2).await, rows(&[5, 4]), "from the other end");
    assert_eq!(found("a/b/", "a/b/3", true, 10).await, rows(&[4, 3]), "the end is not part of it");
    assert_eq!(found("a/b", "a/b\u{1}", true, 10).await, rows(&[2]), "one alone");
    assert_eq!(found("a", "b", false, 10).await, rows(&[0, 1, 2, 3, 4, 5, 6, 7]), "by bytes");
    assert_eq!(found("c", "d", false, 10).await, []);
}

/// Two births with one key in one batch, and on several handles at once: one wins.
pub async fn of_many_births_with_one_key_one_wins(world: &World) {
    let births: Vec<_> = (0..32)
        .map(|_| {
            let mut birth = world.birth("made_queued");
            birth.keys = vec![UniqueKey { key: "the one".into(), digest: Hash::of(b"d") }];
            birth
        })
        .collect();
    let answers = world
        .together(16, |i, store, rt| {
            let pair = [births[2 * i].clone(), births[2 * i + 1].clone()];
            async move {
                let ops = pair.map(|c| Op::Commit(Box::new(c))).to_vec();
                super::world::settle_all(store.as_ref(), &rt, ops).await
            }
        })
        .await;
    let mut winners = Vec::new();
    let mut named = Vec::new();
    for (birth, answer) in births.iter().zip(answers.iter().flatten()) {
        match answer {
            Answer::Commit(CommitAnswer::Committed(_)) => winners.push(birth.entity),
            Answer::Commit(CommitAnswer::Exists { entity, same: true }) => named.push(*entity),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((winners.len(), named.len()), (1, 31));
    assert!(named.iter().all(|e| *e == winners[0]));
}

/// Moments come back to the microsecond, and an event is never older than the one before it.
pub async fn moments_are_exact_to_the_microsecond(world: &World) {
    let id = world.specimen("made_blocked").await;
    for micros in [1u64, 999, 1_001, 999_999, 86_400_000_001, 1_234_567_891] {
        let mut commit = world.note(id).await;
        let after = Duration::from_micros(micros);
        commit.timers = vec![TimerChange::set("t", after)];
        let done = world.commit_ok(commit).await;
        let head = world.head(id).await;
        assert_eq!(head.timers.get("t").map(|t| t.at), Some(done.at + after));
        assert_eq!(head.changed_at, done.at);
    }
    let records = world.records(id).await;
    assert!(records.windows(2).all(|w| w[0].at <= w[1].at));
    world.verify(id).await;
}

/// Names in any script, and every name and body at its limit, come back as they were; one byte more
/// is refused without a trace.
pub async fn names_and_bodies_come_back_at_their_limits(world: &World) {
    let wide = "\u{00e9}".repeat(limits::NAME_BYTES_MAX / 2);
    let mut birth = world.birth_in("made_queued", &wide, "\u{961f}\u{5217} 'q\" \\ %_", i16::MIN);
    birth.events.push(NewEvent::new("noted", Body::Inline(vec![0; limits::BODY_INLINE_BYTES_MAX])));
    birth.keys = vec![UniqueKey { key: "k".repeat(limits::KEY_BYTES_MAX), digest: Hash::of(b"k") }];
    birth.state = Some(vec![b' '; limits::HEAD_STATE_BYTES_MAX]);
    birth.messages = vec![Message::mail(
        birth.entity,
        "m".repeat(limits::NAME_BYTES_MAX),
        Body::Inline(vec![255; limits::BODY_INLINE_BYTES_MAX]),
    )];
    let id = birth.entity;
    world.commit_ok(birth.clone()).await;
    let head = world.head(id).await;
    assert_eq!((head.tenant.as_str(), head.priority), (wide.as_str(), i16::MIN));
    assert_eq!(head.queue, "\u{961f}\u{5217} 'q\" \\ %_");
    assert_eq!(head.state.len(), limits::HEAD_STATE_BYTES_MAX);
    world.verify(id).await;

    let refused = |what: &'static str, change: &dyn Fn(&mut tenure_kernel::commit::Commit)| {
        let mut commit = world.birth("made_queued");
        change(&mut commit);
        async move {
            let entity = commit.entity;
            let answer = world.commit(commit).await;
            let is_limit = matches!(answer, CommitAnswer::Refused(Refusal::Limit { .. }));
            assert!(is_limit, "{what}: {answer:?}");
            assert_eq!(world.store().head(entity).await, Ok(None), "{what} left a head");
        }
    };
    refused("tenant", &|c| {
        if let Expect::Absent(b) = &mut c.expect {
            b.tenant = "x".repeat(limits::NAME_BYTES_MAX + 1);
        }
    })
    .await;
    refused("body", &|c| {
        c.events[0] =
            NewEvent::new("made_queued", Body::Inline(vec![0; limits::BODY_INLINE_BYTES_MAX + 1]));
    })
    .await;
    refused("state", &|c| c.state = Some(vec![0; limits::HEAD_STATE_BYTES_MAX + 1])).await;
    refused("key", &|c| {
        c.keys = vec![UniqueKey { key: "k".repeat(limits::KEY_BYTES_MAX + 1), digest: Hash::ZERO }];
    })
    .await;
}
