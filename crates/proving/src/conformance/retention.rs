//! What leaves a store and what keeps it there: blobs, seals, retirement, pulse and tallies.

use super::world::{LONG, World, expect_now};
use std::time::Duration;
use tenure_kernel::{
    commit::MailStance,
    error::StoreError,
    head::lane_of,
    housekeeping::{PulseRequest, Retired, seal},
    ids::EntityId,
    limits,
    mail::NewMail,
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Message},
    quota::TenantCount,
    rules::{Tallies, Tally},
    sessions::lane_id,
    stream::{Body, Hash, NewEvent},
    time::Timestamp,
    verify,
};

async fn retire(world: &World) -> Retired {
    let now = world.now().await;
    world.until_after(now).await;
    world.store().retire(world.now().await, 100).await.expect("retire")
}

/// Large bodies are blobs: durable, the same bytes once, kept while an entity names them.
pub async fn a_blob_lives_as_long_as_an_entity_names_it(world: &World) {
    let big = vec![7u8; limits::BODY_INLINE_BYTES_MAX + 1];
    let digest = world.store().put_blob(big.clone()).await.expect("put");
    assert_eq!(digest, Hash::of(&big));
    assert_eq!(world.store().put_blob(big.clone()).await, Ok(digest), "the same bytes twice");
    let body = Body::Blob { digest, len: big.len() as u64 };
    let mut birth = world.birth("made_queued");
    birth.events.push(NewEvent::new("noted", body.clone()));
    let (first, second) = (birth.entity, world.specimen("made_blocked").await);
    world.commit_ok(birth).await;
    world.send(NewMail { body: body.clone(), ..world.mail(second, "with a blob") }).await;
    assert_eq!(world.records(first).await[0].events().expect("events")[1].body, body);
    world.verify(first).await;
    let mail = world.store().mail(second, 0, 1).await.expect("mail");
    assert_eq!(mail[0].body, body);

    world.end(first).await;
    let gone = retire(world).await;
    assert_eq!((gone.entities, gone.blobs), (1, 0), "the mail still names it");
    assert_eq!(world.store().blob(digest).await, Ok(Some(big)));
    world.end(second).await;
    let gone = retire(world).await;
    assert_eq!((gone.entities, gone.blobs), (1, 1));
    assert_eq!(world.store().blob(digest).await, Ok(None));
    assert_eq!(world.store().blob(Hash::of(b"never")).await, Ok(None));
}

/// Blobs that no commit ever named leave, however many there are, in rounds that are bounded; those that are named stay.
pub async fn blobs_that_nothing_names_leave_in_rounds(world: &World) {
    let blob = |n: u8| vec![n; limits::BODY_INLINE_BYTES_MAX + 1];
    let many = 3 * limits::BLOBS_PER_RETIRED;
    let mut digests = Vec::new();
    for n in 0..many {
        digests.push(world.store().put_blob(blob(n as u8)).await.expect("put"));
    }
    let kept = digests[many / 2];
    let mut birth = world.birth("made_queued");
    let body = Body::Blob { digest: kept, len: blob(0).len() as u64 };
    birth.events.push(NewEvent::new("noted", body));
    world.commit_ok(birth).await;
    world.until_after(world.now().await).await;
    let mut left = Vec::new();
    // One more round than needed: a round may end in the middle of the list.
    for _ in 0..5 {
        let gone = world.store().retire(world.now().await, 1).await.expect("retire");
        left.push(gone.blobs);
    }
    assert_eq!(left.iter().sum::<u64>(), many as u64 - 1, "{left:?}");
    for digest in digests {
        let there = world.store().blob(digest).await.expect("read").is_some();
        assert_eq!(there, digest == kept);
    }
}

/// The values of an entity leave in the call that removes it: nobody looks for them among those of all others.
pub async fn the_values_of_an_entity_leave_with_it_however_many_others_there_are(world: &World) {
    let blob = |n: u8| vec![n; limits::BODY_INLINE_BYTES_MAX + 1];
    let named = async |numbers: std::ops::Range<u8>| {
        let mut birth = world.birth("made_queued");
        for n in numbers {
            let digest = world.store().put_blob(blob(n)).await.expect("put");
            let body = Body::Blob { digest, len: blob(n).len() as u64 };
            birth.events.push(NewEvent::new("noted", body));
        }
        let id = birth.entity;
        world.commit_ok(birth).await;
        id
    };
    // Ten of the values are named by both.
    let (over, open) = (named(0..30).await, named(20..80).await);
    world.end(over).await;
    world.until_after(world.now().await).await;
    let gone = world.store().retire(world.now().await, 1).await.expect("retire");
    assert_eq!((gone.entities, gone.blobs), (1, 20));
    for n in 0..80 {
        let there = world.store().blob(Hash::of(&blob(n))).await.expect("read").is_some();
        assert_eq!(there, n >= 20, "{n}");
    }
    world.verify(open).await;
}

/// What tenants use: open entities by kind, and bytes of everything that an entity has.
pub async fn what_a_tenant_uses_is_counted(world: &World) {
    let before = world.store().open_by_tenant().await.expect("count");
    let mut birth = world.birth("made_blocked");
    let big = vec![3u8; limits::BODY_INLINE_BYTES_MAX + 1];
    let digest = world.store().put_blob(big.clone()).await.expect("put");
    birth.events.push(NewEvent::new("noted", Body::Blob { digest, len: big.len() as u64 }));
    let id = birth.entity;
    world.commit_ok(birth).await;
    let head = world.head(id).await;
    let open = |counts: &[TenantCount]| {
        let mine = counts.iter().filter(|c| c.tenant == head.tenant && c.kind == head.kind());
        mine.map(|c| c.count).sum::<u64>()
    };
    let counts = world.store().open_by_tenant().await.expect("count");
    assert_eq!(open(&counts), open(&before) + 1);
    let size = async || {
        let (mut sizes, mut after) = (Vec::new(), None);
        loop {
            let page = world.store().sizes(after, 1).await.expect("sizes");
            let Some(last) = page.last() else { break };
            assert!(after.is_none_or(|after| after < last.id), "in the order of ids");
            after = Some(last.id);
            sizes.extend(page);
        }
        let mine: Vec<_> = sizes.into_iter().filter(|s| s.id == id).collect();
        assert_eq!(mine.len(), 1, "each entity once");
        assert_eq!(mine[0].tenant, head.tenant);
        mine[0].bytes
    };
    let first = size().await;
    assert!(first > big.len() as u64 && first < 2 * big.len() as u64, "{first}");
    let mail = NewMail { body: Body::Inline(vec![b'x'; 5_000]), ..world.mail(id, "large") };
    world.send(mail).await;
    let second = size().await;
    assert!((first + 5_000..first + 6_000).contains(&second), "{first} {second}");
    world.end(id).await;
    let counts = world.store().open_by_tenant().await.expect("count");
    assert_eq!(open(&counts), open(&before), "what has ended is not open");
    assert!(size().await >= second, "and is stored until it is retired");
}

/// The largest blob fits; one byte more does not.
pub async fn a_blob_keeps_its_limit(world: &World) {
    let mut bytes = vec![1u8; limits::BLOB_BYTES_MAX];
    let digest = world.store().put_blob(bytes.clone()).await.expect("at the limit");
    let back = world.store().blob(digest).await.expect("read").expect("it is there");
    assert!(back == bytes);
    bytes.push(1);
    let too_large = world.store().put_blob(bytes.clone()).await;
    assert!(matches!(too_large, Err(StoreError::Limit { .. })), "{too_large:?}");
    assert_eq!(world.store().blob(Hash::of(&bytes)).await, Ok(None));
}

/// Whole final entities leave, older than the moment, no more than asked; open and resting ones stay.
pub async fn only_final_entities_older_than_the_moment_leave(world: &World) {
    let mut ended = Vec::new();
    for _ in 0..3 {
        ended.push(world.specimen("made_done").await);
    }
    let (open, idle) = (world.specimen("made_queued").await, world.specimen("made_idle").await);
    let nothing = world.store().retire(Timestamp::from_micros(1), 100).await.expect("retire");
    assert_eq!(nothing, Retired::default());
    world.until_after(world.head(ended[2]).await.changed_at).await;
    let later = world.now().await;
    world.until_after(later).await;
    let young = world.specimen("made_done").await;
    let some = world.store().retire(later, 2).await.expect("retire");
    assert_eq!((some.entities, some.records), (2, 0));
    let rest = world.store().retire(later, 100).await.expect("retire");
    assert_eq!(rest.entities, 1);
    for id in ended {
        assert_eq!(world.store().head(id).await, Ok(None));
        assert!(world.records(id).await.is_empty());
    }
    for id in [open, idle, young] {
        world.verify(id).await;
    }
}

/// Everything that belongs to a retired entity leaves with it, and its mail id and key are free again.
pub async fn a_retired_entity_leaves_nothing_behind(world: &World) {
    let mut birth = world.birth("made_blocked");
    let key = tenure_kernel::commit::UniqueKey { key: "gone with it".into(), digest: Hash::ZERO };
    birth.keys = vec![key.clone()];
    let id = birth.entity;
    world.commit_ok(birth.clone()).await;
    world.send(world.mail(id, "m")).await;
    let evidence = tenure_kernel::evidence::NewEvidence {
        entity: id,
        key: "e".into(),
        epoch: 0,
        call: 0,
        who: "w".into(),
        body: Body::Inline(vec![1]),
    };
    world.one(tenure_kernel::store::Op::Evidence(evidence)).await;
    world.end(id).await;
    assert_eq!(retire(world).await.entities, 1);
    assert!(world.store().mail(id, 0, 10).await.expect("mail").is_empty());
    assert!(world.store().evidence(id).await.expect("evidence").is_empty());
    let mut again = world.birth("made_queued");
    again.keys = vec![key];
    world.commit_ok(again).await;
}

/// An entity with messages that have not left stays, so that its announcement is never lost.
pub async fn an_entity_with_undelivered_messages_stays(world: &World) {
    let target = world.specimen("made_idle").await;
    let source = world.specimen("made_blocked").await;
    let head = world.head(source).await;
    let mut end = world.says(source, expect_now(&head), "ended");
    end.mail = tenure_kernel::commit::MailStance::ReadAll(0);
    end.messages = vec![Message::mail(target, "over", Body::Inline(Vec::new()))];
    world.commit_ok(end).await;
    assert_eq!(retire(world).await.entities, 0);
    let lane = lane_of(source);
    let session = world.session(LONG).await;
    let epoch = world.claim(lane_id(lane), session, LONG).await.epoch;
    let posted = world.store().outbox(vec![lane], false, 10).await.expect("outbox").remove(0);
    let with = Handover::Mail { to: target, kind: "over".into(), body: Body::Inline(Vec::new()) };
    let delivery = Delivery { id: posted.id, by: Carrier::Lane(epoch), with };
    assert_eq!(
        world.deliver(delivery).await,
        DeliveryAnswer::Delivered { holder: None, due: true }
    );
    assert_eq!(retire(world).await.entities, 1);
    assert_eq!(world.head(target).await.mail_count, 1, "what it said has arrived");
}

/// Records below a seal leave; the rest can still be checked, and the entity lives on.
pub async fn records_below_a_seal_leave_and_the_rest_verifies(world: &World) {
    let id = world.specimen("made_idle").await;
    for _ in 0..4 {
        world.commit_ok(world.note(id).await).await;
    }
    let head = world.head(id).await;
    let mut sealing = world.note(id).await;
    sealing.events = vec![seal(&head)];
    world.commit_ok(sealing).await;
    assert_eq!(world.head(id).await.sealed, 6);
    world.commit_ok(world.note(id).await).await;
    world.verify(id).await;
    let gone = retire(world).await;
    assert_eq!((gone.entities, gone.records), (0, 5));
    let records = world.records(id).await;
    assert_eq!(records.iter().map(|r| r.first).collect::<Vec<_>>(), [6, 7]);
    world.verify(id).await;
    let mut forged = records.clone();
    forged[1].bytes[3] ^= 1;
    let head = world.head(id).await;
    assert!(verify::verify(&head, &forged, &world.judge.tables).is_err());
    world.commit_ok(world.note(id).await).await;
    world.verify(id).await;
    assert_eq!(retire(world).await.records, 0, "nothing is left to remove");
}

/// Sends one mail to an idle entity and reads it.
async fn read_mail(world: &World, id: EntityId, name: &str) {
    world.send(world.mail(id, name)).await;
    let mut reading = world.note(id).await;
    reading.mail = MailStance::ReadAll(world.head(id).await.mail_count);
    world.commit_ok(reading).await;
}

async fn sealed(world: &World) -> EntityId {
    let id = world.specimen("made_idle").await;
    world.commit_ok(world.note(id).await).await;
    let head = world.head(id).await;
    let mut sealing = world.note(id).await;
    sealing.events = vec![seal(&head)];
    world.commit_ok(sealing).await;
    id
}

/// Of an entity that is sealed and not over, mail that was read and is older than the moment leaves
/// with the records below the seal. Unread mail, young mail, mail of what was never sealed and
/// everything of what is over (it leaves as a whole, later) stay.
pub async fn read_mail_of_what_is_sealed_leaves_when_it_is_old(world: &World) {
    let (old, young, over) = (sealed(world).await, sealed(world).await, sealed(world).await);
    let never = world.specimen("made_idle").await;
    for id in [old, over, never] {
        read_mail(world, id, "read").await;
    }
    world.send(world.mail(old, "unread")).await;
    let moment = world.now().await;
    world.until_after(moment).await;
    read_mail(world, young, "young").await;
    world.end(over).await;
    let before = world.store().retire(Timestamp::from_micros(1), 100).await.expect("retire");
    assert_eq!(before, Retired::default(), "everything is younger than that");
    world.until_after(world.now().await).await;
    let gone = world.store().retire(moment, 100).await.expect("retire");
    assert_eq!((gone.entities, gone.records), (0, 4), "two each of `old` and `young`");
    let mail = |id| async move {
        let all = world.store().mail(id, 0, 10).await.expect("mail");
        all.into_iter().map(|m| m.id.0).collect::<Vec<_>>()
    };
    assert_eq!(mail(old).await, ["unread"]);
    assert_eq!(mail(young).await, ["young"]);
    assert_eq!(mail(never).await, ["read"]);
    assert_eq!(mail(over).await, ["read"]);
    assert_eq!(world.records(over).await[0].first, 1, "it leaves as a whole");
    for id in [old, young, over, never] {
        world.verify(id).await;
    }
}

/// A silence of the pulse longer than the gap is an outage, and puts judgement off by one lease.
pub async fn a_silent_pulse_is_an_outage_and_defers_judgement(world: &World) {
    let lease = Duration::from_secs(15);
    let ask = |gap| PulseRequest { gap, lease, tallies: Tallies::new() };
    let first = world.store().pulse(ask(LONG)).await.expect("pulse");
    assert_eq!(first.outage, None, "the first pulse ever is no outage");
    let steady = world.store().pulse(ask(LONG)).await.expect("pulse");
    assert_eq!((steady.outage, steady.judge_after), (None, first.judge_after));
    world.until_after(steady.now + Duration::from_millis(5)).await;
    let late = world.store().pulse(ask(Duration::from_millis(5))).await.expect("pulse");
    assert!(late.outage.is_some_and(|silence| silence > Duration::from_millis(5)));
    assert_eq!(late.judge_after, late.now + lease);
    let next = world.handle(1).pulse(ask(LONG)).await.expect("pulse");
    assert_eq!((next.outage, next.judge_after), (None, late.judge_after), "it is remembered");
}

/// What the rules did adds up over pulses, servers and handles.
pub async fn tallies_add_up_over_pulses(world: &World) {
    let at = |s: i64| Timestamp::from_micros(1_700_000_000_000_000 + s);
    let told = |name: &str, fired, lag, last| {
        let tally = Tally {
            fired,
            failed: 1,
            lag_max: Duration::from_micros(lag),
            last_at: Some(at(last)),
        };
        PulseRequest { gap: LONG, lease: LONG, tallies: [(name.to_owned(), tally)].into() }
    };
    let told = [
        told("timer", 3, 1_500, 9),
        told("timer", 4, 700, 12),
        told("guard", 1, 1, 1),
        told("timer", 1, 1_000, 2),
    ];
    for (i, request) in told.into_iter().enumerate() {
        world.handle(i).pulse(request).await.expect("pulse");
    }
    let all = world.store().tallies().await.expect("tallies");
    let timer =
        Tally { fired: 8, failed: 3, lag_max: Duration::from_micros(1_500), last_at: Some(at(12)) };
    assert_eq!(all.get("timer"), Some(&timer));
    assert_eq!(all.get("guard").map(|t| t.fired), Some(1));
    assert_eq!(all.len(), 2);
}
