//! Law 2: history is the truth, and nobody touches it unnoticed.

use super::{
    model::Model,
    subject::{HOUR, born, cid, claim, event, id, model, ok, says, session},
};
use proptest::prelude::*;
use tenure_kernel::{
    commit::{MailStance, TenureChange},
    housekeeping::seal,
    ids::CommitId,
    stream::{Body, Hash, NewEvent, Record},
    table::kernel_events as ke,
    time::Timestamp,
    timers::TimerChange,
    verify::{Fault, fold_stream, verify},
};

/// A history with everything in it that a record can hold.
fn history() -> Model {
    let mut model = model();
    let s = session(&mut model, 0, 1_000);
    let mut birth = born(id(0), "made_queued", cid(1));
    birth.attention = Some(Some("why".into()));
    birth.timers = vec![TimerChange::set("t", HOUR), TimerChange::guard("g", HOUR)];
    let digest = Hash::of(b"a large body");
    birth.events.push(NewEvent::new("noted", Body::Blob { digest, len: 12 }));
    ok(model.commit(&birth));
    claim(&mut model, id(0), s, 1);
    model.apply(&[super::subject::mail(id(0), "m")]);
    model.now = model.now + HOUR;
    let mut read = says(&model, id(0), &["noted", "noted"], cid(2));
    read.mail = MailStance::Read(1);
    read.events.push(NewEvent::new("noted", Body::Inline(Vec::new())));
    ok(model.commit(&read));
    let mut release = says(&model, id(0), &[ke::TENURE_ENDED], cid(3));
    release.tenure = TenureChange::End;
    release.mail = MailStance::Regardless;
    ok(model.commit(&release));
    let mut end = says(&model, id(0), &["ended"], cid(4));
    end.mail = MailStance::ReadAll(1);
    ok(model.commit(&end));
    model
}

fn noticed(model: &Model, records: &[Record]) -> bool {
    verify(&model.heads[&id(0)], records, &model.judge.tables).is_err()
}

#[test]
fn the_untouched_history_folds_into_its_head() {
    let model = history();
    let records = &model.streams[&id(0)];
    assert!(records.len() == 5 && !noticed(&model, records));
    let fold = fold_stream(records, &model.judge.tables).unwrap().unwrap();
    let head = &model.heads[&id(0)];
    assert_eq!((fold.status, fold.epoch, fold.version), (head.status, head.epoch, head.version));
    assert_eq!((fold.chain, fold.created_at), (head.chain, head.created_at));
}

#[test]
fn every_altered_byte_of_every_record_is_noticed() {
    let model = history();
    let records = &model.streams[&id(0)];
    for (r, record) in records.iter().enumerate() {
        for at in 0..record.bytes.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut forged = records.clone();
                forged[r].bytes[at] ^= flip;
                assert!(noticed(&model, &forged), "record {r}, byte {at}, flip {flip:#x}");
            }
        }
    }
}

#[test]
fn every_altered_column_of_every_record_is_noticed() {
    let model = history();
    let records = &model.streams[&id(0)];
    type Forgery = (&'static str, fn(&mut Record));
    let forgeries: [Forgery; 8] = [
        ("entity", |r| r.entity = id(9)),
        ("first", |r| r.first += 1),
        ("count up", |r| r.count += 1),
        ("count down", |r| r.count -= 1),
        ("commit id", |r| r.commit = CommitId::new(6, 6)),
        ("time", |r| r.at = Timestamp::from_micros(r.at.as_micros() + 1)),
        ("epoch", |r| r.epoch += 1),
        ("hash", |r| r.hash = Hash::ZERO),
    ];
    for (what, forge) in forgeries {
        for at in 0..records.len() {
            let mut forged = records.clone();
            forge(&mut forged[at]);
            assert!(noticed(&model, &forged), "{what} of record {at}");
        }
    }
}

#[test]
fn a_removed_repeated_or_swapped_record_is_noticed() {
    let model = history();
    let records = &model.streams[&id(0)];
    for at in 0..records.len() {
        let mut removed = records.clone();
        removed.remove(at);
        assert!(noticed(&model, &removed), "without record {at}");
        let mut repeated = records.clone();
        repeated.insert(at, records[at].clone());
        assert!(noticed(&model, &repeated), "record {at} twice");
        for other in at + 1..records.len() {
            let mut swapped = records.clone();
            swapped.swap(at, other);
            assert!(noticed(&model, &swapped), "records {at} and {other} swapped");
        }
    }
    assert!(noticed(&model, &[]));
}

#[test]
fn a_head_that_says_more_than_its_history_is_noticed() {
    let model = history();
    let records = &model.streams[&id(0)];
    let forgeries: [fn(&mut tenure_kernel::head::Head); 9] = [
        |h| h.version += 1,
        |h| h.chain = Hash::ZERO,
        |h| h.status = h.status.table.status("failed").unwrap(),
        |h| h.epoch += 1,
        |h| h.holder = Some(id(7)),
        |h| h.must_end_by = Some(Timestamp::MAX),
        |h| h.timers.change(&TimerChange::set("x", HOUR), Timestamp::ZERO),
        |h| h.mail_read += 1,
        |h| h.attention = None,
    ];
    for (i, forge) in forgeries.into_iter().enumerate() {
        let mut head = model.heads[&id(0)].clone();
        forge(&mut head);
        let verdict = verify(&head, records, &model.judge.tables);
        assert!(matches!(verdict, Err(Fault::HeadDiffers { .. })), "forgery {i}: {verdict:?}");
    }
}

proptest! {
    /// Any text in `attention` folds back as it was set; the empty one too.
    #[test]
    fn attention_folds_back_whatever_it_says(why in prop::option::of(".{0,40}")) {
        let mut model = model();
        let mut birth = born(id(0), "made_blocked", cid(1));
        birth.attention = Some(why.clone());
        ok(model.commit(&birth));
        prop_assert!(!noticed(&model, &model.streams[&id(0)]));
        prop_assert_eq!(&model.heads[&id(0)].attention, &why);
    }

    /// A sealed stream can be checked from its seal on, and only with the right seal.
    #[test]
    fn a_stream_is_checked_from_its_seal_on(before in 0usize..6, after in 0usize..6, flip in 0usize..4_000) {
        let mut model = model();
        let mut birth = born(id(0), "made_idle", cid(1));
        birth.state = Some(b"{\"quotes\":\"\\\"\\\"\"}".to_vec());
        ok(model.commit(&birth));
        let mut n = 10;
        let note = |model: &mut Model, n: &mut u64| {
            *n += 1;
            let commit = says(model, id(0), &["noted"], cid(*n));
            ok(model.commit(&commit));
        };
        (0..before).for_each(|_| note(&mut model, &mut n));
        let mut sealing = says(&model, id(0), &["noted"], cid(2));
        sealing.events = vec![seal(&model.heads[&id(0)])];
        ok(model.commit(&sealing));
        (0..after).for_each(|_| note(&mut model, &mut n));
        let sealed = model.heads[&id(0)].sealed;
        prop_assert_eq!(sealed, before as u64 + 2);
        let rest: Vec<_> =
            model.streams[&id(0)].iter().filter(|r| r.first >= sealed).cloned().collect();
        prop_assert!(!noticed(&model, &rest));
        prop_assert_eq!(fold_stream(&rest, &model.judge.tables), Ok(None));
        let mut forged = rest.clone();
        let at = flip % forged.len();
        let byte = flip % forged[at].bytes.len();
        forged[at].bytes[byte] ^= 1 + (flip % 200) as u8;
        prop_assert!(noticed(&model, &forged));
        // Cut anywhere else, it does not begin with a seal.
        for cut in 1..rest.len() {
            prop_assert!(noticed(&model, &rest[cut..]));
        }
    }
}

#[test]
fn a_seal_is_the_first_event_of_its_record() {
    // Records below a seal go; a seal behind another event would leave a record that nobody can check.
    let mut model = model();
    ok(model.commit(&born(id(0), "made_idle", cid(1))));
    let mut late = says(&model, id(0), &["noted"], cid(2));
    late.events.push(seal(&model.heads[&id(0)]));
    let answer = model.commit(&late);
    assert!(matches!(answer, tenure_kernel::commit::CommitAnswer::Refused(_)), "{answer:?}");
    let mut wrong = says(&model, id(0), &["noted"], cid(3));
    wrong.events = vec![event(ke::SEALED)];
    let answer = model.commit(&wrong);
    assert!(
        matches!(answer, tenure_kernel::commit::CommitAnswer::Refused(_)),
        "a seal that does not repeat the chain: {answer:?}"
    );
}
