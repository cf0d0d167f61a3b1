//! Worker sessions: one row that vouches for everything a worker holds.

use super::world::{LONG, SHORT, World};
use tenure_kernel::{
    commit::CommitAnswer,
    ids::{EntityId, SessionId},
    sessions::{Hold, Renewal, RenewalAnswer, Session},
    store::{Answer, Op, Touch},
    table::Class,
    time::Timestamp,
};

async fn row(world: &World, id: SessionId) -> Session {
    world.store().session(id).await.expect("session").expect("the row is there")
}

async fn renew(world: &World, session: SessionId, holds: Vec<Hold>) -> RenewalAnswer {
    match world.one(Op::Renew(Renewal { session, holds })).await {
        Answer::Renew(answer) => answer,
        other => panic!("{other:?}"),
    }
}

fn hold(entity: EntityId, epoch: u64) -> Hold {
    Hold { entity, epoch, mark: 3 }
}

/// A session opens alive, holds itself, and is listed.
pub async fn a_session_opens_alive_and_holds_itself(world: &World) {
    let id = world.session(LONG).await;
    let head = world.head(id).await;
    assert_eq!((head.kind(), head.status.name(), head.holder), ("worker", "alive", Some(id)));
    assert_eq!((head.class(), head.must_end_by), (Class::Resting, None));
    let row = row(world, id).await;
    assert_eq!((row.id, row.name.as_str(), row.role.as_str()), (id, "a worker", "worker"));
    assert_eq!((row.lease, row.renewed_at), (LONG, head.created_at));
    assert_eq!((row.expires_at, row.ended), (head.created_at + LONG, false));
    assert!(row.vouches_for(id, head.epoch, world.now().await));
    let live = world.store().live_sessions().await.expect("sessions");
    assert!(live.iter().any(|s| s.id == id));
    assert_eq!(world.store().session(world.id()).await, Ok(None));
}

/// A renewal moves only the soft row: it keeps what is still held, and says what is lost and what has
/// mail.
pub async fn a_renewal_says_what_is_lost_and_what_has_mail(world: &World) {
    let session = world.session(LONG).await;
    let mut held = Vec::new();
    for _ in 0..4 {
        let id = world.specimen("made_queued").await;
        held.push(world.claim(id, session, LONG).await);
    }
    world.send(world.mail(held[1].id, "m")).await;
    world.reclaim(held[2].id).await;
    let before = (world.head(session).await, world.head(held[0].id).await);
    let at = world.now().await;
    let holds = vec![
        hold(held[0].id, held[0].epoch),
        hold(held[1].id, held[1].epoch),
        hold(held[2].id, held[2].epoch),
        hold(held[3].id, held[3].epoch + 1),
        hold(world.id(), 1),
    ];
    match renew(world, session, holds.clone()).await {
        RenewalAnswer::Renewed { expires_at, lost, mail } => {
            assert!(expires_at >= at + LONG && expires_at <= world.now().await + LONG);
            assert_eq!(lost, [held[2].id, held[3].id, holds[4].entity]);
            assert_eq!(mail, [held[1].id]);
        }
        RenewalAnswer::Ended => panic!("it lives"),
    }
    let row = row(world, session).await;
    assert_eq!(row.holds, holds[..2]);
    let now = world.now().await;
    assert!(row.renewed_at >= at && row.renewed_at <= now);
    assert!(row.vouches_for(held[0].id, held[0].epoch, now));
    assert!(!row.vouches_for(held[0].id, held[0].epoch + 1, now), "of another epoch");
    assert!(!row.vouches_for(held[2].id, held[2].epoch, now), "of what was lost");
    assert_eq!((world.head(session).await, world.head(held[0].id).await), before, "heads stay");
    // The next renewal replaces the holds.
    renew(world, session, vec![hold(held[1].id, held[1].epoch)]).await;
    let row = self::row(world, session).await;
    assert_eq!(row.holds.len(), 1);
    assert!(!row.vouches_for(held[0].id, held[0].epoch, now));
}

/// A session that is not renewed vouches for nothing, and a lapsed lease fences nothing itself.
pub async fn a_lapsed_session_vouches_for_nothing_and_fences_nothing(world: &World) {
    let session = world.session(SHORT).await;
    let id = world.specimen("made_queued").await;
    let head = world.claim(id, session, SHORT).await;
    let answer = renew(world, session, vec![hold(id, head.epoch)]).await;
    let RenewalAnswer::Renewed { expires_at, .. } = answer else { panic!("it lives") };
    world.until_after(expires_at).await;
    let row = row(world, session).await;
    assert!(!row.ended && !row.vouches_for(id, head.epoch, world.now().await));
    let live = world.store().live_sessions().await.expect("sessions");
    assert!(live.iter().all(|s| s.id != session));
    // The guard is due, so the loop looks.
    let (now, due) =
        world.store().due((0..16).collect(), std::time::Duration::ZERO, 100).await.expect("due");
    let found = due.iter().find(|h| h.id == id).expect("the holder's check is due");
    assert!(found.check_at.is_some_and(|c| c <= now));
    // Until somebody raises the epoch the holder may still write, and may renew.
    world.commit_ok(world.note(id).await).await;
    assert!(
        matches!(renew(world, session, vec![hold(id, head.epoch)]).await, RenewalAnswer::Renewed { lost, .. } if lost.is_empty())
    );
    world.reclaim(id).await;
    assert!(
        matches!(renew(world, session, vec![hold(id, head.epoch)]).await, RenewalAnswer::Renewed { lost, .. } if lost == [id])
    );
}

/// The end of a session is final; renewals are told, and what it held stays held until it is looked at.
pub async fn an_ended_session_is_told_so_and_rings_its_checks(world: &World) {
    let session = world.session(LONG).await;
    let id = world.specimen("made_queued").await;
    let held = world.claim(id, session, LONG).await;
    renew(world, session, vec![hold(id, held.epoch)]).await;
    world.commit_ok(world.goodbye(session).await).await;
    let row = row(world, session).await;
    assert!(row.ended && !row.vouches_for(id, held.epoch, world.now().await));
    assert_eq!(renew(world, session, vec![]).await, RenewalAnswer::Ended);
    assert_eq!(renew(world, world.id(), vec![]).await, RenewalAnswer::Ended);
    assert!(world.store().live_sessions().await.expect("sessions").iter().all(|s| s.id != session));
    let head = world.head(session).await;
    assert_eq!((head.class(), head.holder), (Class::Final, None));
    assert_eq!(world.head(id).await, held, "the end of a session fences nothing itself");
    // Ringing the check moves it to now, for whatever version, but not that of another holder: what a session held once may
    // be somebody else's by now, whose own session does not name it before its next renewal.
    world.commit_ok(world.note(id).await).await;
    let ring = Touch {
        entity: id,
        epoch: held.epoch,
        version: 0,
        due: None,
        check_at: None,
        faults: 0,
        ring_only: true,
    };
    let before = world.head(id).await;
    for epoch in [held.epoch - 1, held.epoch + 1] {
        let other = Touch { epoch, ..ring.clone() };
        assert_eq!(world.one(Op::Touch(other)).await, Answer::Touch(false));
    }
    assert_eq!(world.head(id).await, before);
    assert_eq!(world.one(Op::Touch(ring)).await, Answer::Touch(true));
    let now = world.now().await;
    let rung = world.head(id).await;
    assert!(rung.check_at.is_some_and(|c| c <= now) && rung.due.is_some_and(|d| d <= now));
    assert_eq!((rung.version, rung.epoch), (held.version + 1, held.epoch));
    let answer = world.commit(world.goodbye(session).await).await;
    assert_eq!(answer, CommitAnswer::Final { status: "ended" });
}

/// A session that is renewed and ended in one batch is over.
pub async fn an_end_and_a_renewal_in_one_batch_give_ended(world: &World) {
    let session = world.session(LONG).await;
    let goodbye = world.goodbye(session).await;
    let ops = vec![Op::Renew(Renewal { session, holds: vec![] }), Op::Commit(Box::new(goodbye))];
    let answers = super::world::settle_all(world.store().as_ref(), &world.rt, ops).await;
    assert_eq!(answers[0], Answer::Renew(RenewalAnswer::Ended));
    assert!(row(world, session).await.ended);
    assert!(row(world, session).await.expires_at > Timestamp::ZERO);
}
