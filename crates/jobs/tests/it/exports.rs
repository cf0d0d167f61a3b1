//! An export is everything of a job, and nobody can change a byte of it unnoticed.

use crate::support::{Outside, World, killed_after, machines, store};
use serde_json::{Value, json};
use std::sync::Arc;
use tenure_jobs::{
    decide::{SignalMail, mail},
    drive::{JobOptions, Shop},
    export::{
        self, Ask, EXPORT_BYTES_MAX, Export, GatherError, LeftOut, NOTES_MAX, PROBLEMS_MAX, Report,
        Signature, SigningKey, Trust, gather,
    },
};
use tenure_kernel::{
    evidence::NewEvidence,
    ids::{CommitId, EntityId, MailId},
    limits::EVENTS_PER_COMMIT_MAX,
    mail::NewMail,
    store::{Answer, Op},
    stream::{Body, Hash, Joint, NewEvent, Record, pack},
    time::Timestamp,
};
use tenure_steps::{
    Ctx, canonical,
    effects::{Directory, EffectName, Effects},
    events::WaitOutcome,
    flow::{FlowSpec, Flows},
    tool::{ToolError, ToolSpec, Tools},
};

fn key() -> SigningKey {
    SigningKey::from_seed(&[42; 32])
}

fn trusting(key: &SigningKey) -> Trust {
    Trust { key: Some(key.public()), allow_unsigned: false }
}

const UNSIGNED: Trust = Trust { key: None, allow_unsigned: true };

fn verify(bytes: &[u8], trust: &Trust) -> Report {
    export::verify(bytes, &machines().tables(), trust)
}

fn flows() -> Flows {
    Flows::default()
        .with(FlowSpec::new("one", |ctx: Ctx, v: Value| async move {
            let did: Value = ctx.tool("act", v).await?;
            Ok(did)
        }))
        .with(FlowSpec::new("large", |ctx: Ctx, v: Value| async move {
            let did: Value = ctx.tool("echo", v).await?;
            Ok(did)
        }))
        .with(FlowSpec::new("family", |ctx: Ctx, _: Value| async move {
            let a: Value = ctx.child("one", json!(1)).await?;
            let b: Value = ctx.child("one", json!(2)).await?;
            Ok(json!([a, b]))
        }))
        .with(FlowSpec::new("waits", |ctx: Ctx, _: Value| async move {
            let a: Value = ctx.wait_signal("a").await?;
            Ok(a)
        }))
}

async fn world() -> World {
    let echo = ToolSpec::new("echo", |_, v: Value| async move { Ok(v) }).idempotent();
    let tools = Tools::default().with(Outside::default().tool("act")).with(echo);
    World::start(flows(), tools, JobOptions::default()).await
}

fn ask(signed: bool) -> Ask {
    Ask {
        by: "ada".into(),
        program: "test".into(),
        signed_by: signed.then(|| key().public().id()),
        ..Ask::default()
    }
}

async fn export(world: &World, job: EntityId, ask: Ask) -> Export {
    gather(&world.store, job, ask, None).await.unwrap().unwrap()
}

async fn done(world: &World, flow: &str, input: Value) -> EntityId {
    let job = world.submit(flow, input).await;
    world.until(job, "completed").await;
    job
}

async fn late(world: &World, job: EntityId) {
    let evidence = NewEvidence {
        entity: job,
        key: "late".into(),
        epoch: 1,
        call: 1,
        who: "a worker that woke up".into(),
        body: Body::json(&json!({ "heard": "too late" })),
    };
    let answers = world.store.apply(vec![Op::Evidence(evidence)]).await.unwrap();
    assert!(matches!(answers[..], [Answer::Evidence(_)]));
}

fn problems(report: &Report) -> String {
    report.problems.iter().map(|p| format!("{p}\n")).collect()
}

fn assert_fine(report: &Report) {
    assert!(report.ok, "{}", problems(report));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_with_late_evidence_is_exported_whole_and_told_in_words() {
    let world = world().await;
    let job = done(&world, "one", json!({ "amount": 12 })).await;
    late(&world, job).await;
    let file = export(&world, job, ask(true)).await.to_bytes(Some(&key()));
    let report = verify(&file, &trusting(&key()));
    assert_fine(&report);
    assert_eq!(report.signature, Signature::Good { key_id: key().public().id() });
    assert!(report.notes.is_empty(), "{:?}", report.notes);
    let tables = machines().tables();
    let online = tenure_jobs::view::verify(&world.store, &tables, job, None);
    let online = online.await.unwrap().unwrap();
    assert_eq!(report.jobs[0].chain_root, online.chain_root);
    assert_eq!(report.jobs[0].execution_hash, online.execution_hash);
    let account = report.account.unwrap();
    for part in ["one@1 is completed", "amount", "tool act: ok", "too late", "by ada", "crew"] {
        assert!(account.contains(part), "{part}\n{account}");
    }
    assert!(std::str::from_utf8(&file).unwrap().lines().all(|l| l.starts_with('{')));
    assert_eq!(gather(&world.store, EntityId::fixed(7, 7), ask(true), None).await.unwrap(), None);
}

/// Every byte once, in two ways; every byte removed; every line dropped, doubled, swapped; every truncation.
#[tokio::test(flavor = "multi_thread")]
async fn any_change_of_a_file_is_noticed_with_the_key_and_without() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    late(&world, job).await;
    let signed = export(&world, job, ask(true)).await.to_bytes(Some(&key()));
    let unsigned = export(&world, job, ask(false)).await.to_bytes(None);
    let without_a_key = Trust { key: None, allow_unsigned: false };
    // One bit; the case of a letter.
    let jobs = [
        (signed.clone(), trusting(&key()), &[1, 32][..]),
        (signed, without_a_key, &[32]),
        (unsigned, UNSIGNED, &[1]),
    ];
    std::thread::scope(|scope| {
        for (file, trust, flips) in &jobs {
            scope.spawn(move || attack(file, trust, flips));
        }
    });
}

fn attack(file: &[u8], trust: &Trust, flips: &[u8]) {
    let tables = machines().tables();
    let good = |bytes: &[u8]| export::verify(bytes, &tables, trust).ok;
    assert!(good(file), "{}", problems(&verify(file, trust)));
    let mut bytes = file.to_vec();
    for i in 0..bytes.len() {
        for flip in flips {
            bytes[i] ^= flip;
            assert!(!good(&bytes), "byte {i} was changed by {flip}");
            bytes[i] ^= flip;
        }
        let mut shorter = file.to_vec();
        shorter.remove(i);
        assert!(!good(&shorter), "byte {i} was removed");
    }
    let lines: Vec<&[u8]> = file.split_inclusive(|b| *b == b'\n').collect();
    for i in 0..lines.len() {
        let mut dropped = lines.clone();
        dropped.remove(i);
        assert!(!good(&dropped.concat()), "line {} was dropped", i + 1);
        let mut doubled = lines.clone();
        doubled.insert(i, lines[i]);
        assert!(!good(&doubled.concat()), "line {} was doubled", i + 1);
        assert!(!good(&lines[..i].concat()), "cut off behind line {i}");
        for j in 0..i {
            let mut swapped = lines.clone();
            swapped.swap(i, j);
            assert!(!good(&swapped.concat()), "lines {} and {} were swapped", i + 1, j + 1);
        }
    }
    for more in [&b"\n"[..], b"{}\n", b" ", b"\0"] {
        assert!(!good(&[file, more].concat()), "{more:?} was added");
    }
}

/// Whoever changes a file and writes a fitting digest under it meets the chain.
#[tokio::test(flavor = "multi_thread")]
async fn a_changed_record_breaks_the_chain_even_where_the_file_was_sealed_again() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    let export = export(&world, job, ask(false)).await;
    assert_fine(&verify(&export.to_bytes(None), &UNSIGNED));
    let records = export.jobs[0].records.len();
    assert!(records > 0);
    for r in 0..records {
        for i in 0..export.jobs[0].records[r].bytes.len() {
            let mut forged = export.clone();
            forged.jobs[0].records[r].bytes[i] ^= 1;
            let report = verify(&forged.to_bytes(None), &UNSIGNED);
            assert!(!report.ok, "byte {i} of record {r}");
        }
        let mut forged = export.clone();
        forged.jobs[0].records.remove(r);
        let report = verify(&forged.to_bytes(None), &UNSIGNED);
        assert!(!report.ok, "record {r} is gone");
    }
    let mut forged = export.clone();
    forged.jobs[0].head.tenant = "eve".into();
    let report = verify(&forged.to_bytes(None), &UNSIGNED);
    assert!(problems(&report).contains("line 2: "), "{}", problems(&report));
    let mut forged = export;
    forged.jobs[0].head.state = b"{}".to_vec();
    assert!(!verify(&forged.to_bytes(None), &UNSIGNED).ok);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_in_the_file_by_its_digest_and_an_erased_one_stays_a_digest() {
    let world = world().await;
    let text = "x".repeat(40 * 1024);
    let job = done(&world, "large", json!(text)).await;
    let whole = export(&world, job, ask(false)).await;
    assert!(!whole.blobs.is_empty());
    let report = verify(&whole.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    // Other content under the same digest.
    let mut forged = whole.clone();
    let first = *forged.blobs.keys().next().unwrap();
    forged.blobs.insert(first, b"something else".to_vec());
    assert!(problems(&verify(&forged.to_bytes(None), &UNSIGNED)).contains("has other content"));
    // Gone without a word; a stranger; gone with a word.
    let mut forged = whole.clone();
    forged.blobs.remove(&first);
    let report = verify(&forged.to_bytes(None), &UNSIGNED);
    assert!(problems(&report).contains("does not say why"), "{}", problems(&report));
    let mut forged = whole.clone();
    forged.blobs.insert(Hash::of(b"stranger"), b"stranger".to_vec());
    assert!(problems(&verify(&forged.to_bytes(None), &UNSIGNED)).contains("belongs to nothing"));
    let mut erased = whole.clone();
    erased.blobs.remove(&first);
    let why = "erased".to_owned();
    erased.left_out.push(LeftOut { what: "blob".into(), name: first.to_string(), why });
    let report = verify(&erased.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes.iter().any(|n| n.contains("was erased")), "{:?}", report.notes);
    assert_eq!(report.jobs[0].chain_root, whole.jobs[0].head.chain.to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn children_come_whole_or_as_their_roots() {
    let world = world().await;
    let job = done(&world, "family", Value::Null).await;
    let short = export(&world, job, ask(false)).await;
    assert_eq!((short.jobs.len(), short.jobs[0].children.len()), (1, 2));
    let report = verify(&short.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes.iter().any(|n| n.contains("not asked for")), "{:?}", report.notes);
    let child = &short.jobs[0].children[0];
    let root = child.root.clone().unwrap();
    assert_eq!(root.chain, world.head(child.id).await.chain.to_string());
    let with = Ask { with_children: true, ..ask(false) };
    let whole = export(&world, job, with).await;
    assert_eq!(whole.jobs.len(), 3);
    let report = verify(&whole.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert_eq!(report.jobs[1].chain_root, root.chain);
    let mut forged = whole.clone();
    forged.jobs.remove(2);
    assert!(problems(&verify(&forged.to_bytes(None), &UNSIGNED)).contains("is missing"));
    let mut forged = whole;
    forged.jobs[0].children.remove(1);
    assert!(problems(&verify(&forged.to_bytes(None), &UNSIGNED)).contains("no child of another"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signature_counts_for_one_key_and_its_absence_is_said() {
    let world = world().await;
    let job = done(&world, "one", json!(1)).await;
    let signed = export(&world, job, ask(true)).await.to_bytes(Some(&key()));
    let report = verify(&signed, &Trust::default());
    assert_fine(&report);
    assert_eq!(report.signature, Signature::Unvouched { key_id: key().public().id() });
    let other = SigningKey::from_seed(&[43; 32]);
    let report = verify(&signed, &trusting(&other));
    assert_eq!(report.signature, Signature::Bad);
    assert!(problems(&report).contains("not with"), "{}", problems(&report));
    // Signed again by somebody else, in the name of the first.
    let forged = export(&world, job, ask(true)).await.to_bytes(Some(&other));
    assert!(!verify(&forged, &Trust::default()).ok);
    let unsigned = export(&world, job, ask(false)).await.to_bytes(None);
    assert!(problems(&verify(&unsigned, &Trust::default())).contains("--allow-unsigned"));
    assert!(!verify(&unsigned, &trusting(&key())).ok);
    let both = Trust { allow_unsigned: true, ..trusting(&key()) };
    assert!(!verify(&unsigned, &both).ok, "a key was asked for");
    let report = verify(&unsigned, &UNSIGNED);
    assert_fine(&report);
    assert_eq!(report.signature, Signature::None);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_export_of_a_running_job_says_so() {
    let world = world().await;
    let job = world.submit("waits", Value::Null).await;
    world.until_seen(job, "wait_opened").await;
    let file = export(&world, job, ask(false)).await;
    let report = verify(&file.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes[0].contains("history that goes on"), "{:?}", report.notes);
    assert!(report.account.unwrap().contains("it had not ended"));
    let mut forged = file;
    forged.opening.is_final = true;
    assert!(!verify(&forged.to_bytes(None), &UNSIGNED).ok);
}

/// One line of ours, whatever is in it.
fn assert_plain(text: &str, beginnings: &[&str]) {
    for line in text.lines() {
        assert!(beginnings.iter().any(|b| line.starts_with(b)), "{line:?}");
        assert!(line.chars().count() <= 1_020, "{line:?}");
    }
    let plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
    assert!(text.chars().all(plain), "{text:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_in_a_file_looks_like_a_line_of_ours() {
    let forged = "x\n\u{1b}[2Jintact, and signed with the key you gave\u{202e}";
    let fails = FlowSpec::new("fails", move |_: Ctx, _: Value| async move {
        Err::<Value, _>(tenure_steps::FlowError::failed(forged.repeat(100)))
    });
    let world = World::start(flows().with(fails), Tools::default(), JobOptions::default()).await;
    let submission = tenure_jobs::submit::Submission {
        flow: "fails".into(),
        by: Some(forged.into()),
        ..Default::default()
    };
    let job = world.jobs.submit(submission).await.unwrap().id;
    world.until(job, "failed").await;
    let ask = Ask { by: forged.into(), program: forged.into(), ..ask(false) };
    let mut file = export(&world, job, ask).await;
    let account = verify(&file.to_bytes(None), &UNSIGNED).account.unwrap();
    assert!(account.contains("signed with"), "{account:?}");
    assert_plain(&account, &["job ", "  "]);

    // Whatever else a stranger can write, in all that is printed; and the last word is ours.
    let left_out =
        |what: &str| LeftOut { what: what.into(), name: forged.repeat(100), why: forged.into() };
    file.left_out.push(left_out("records"));
    let report = verify(&file.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes[0].contains("left out: records"), "{:?}", report.notes);
    let ours = ["job ", "  ", "note: ", "WRONG: "];
    let says = |report: &Report| {
        let text = report.to_string();
        let (lines, verdict) = text.trim_end().rsplit_once('\n').unwrap();
        assert_plain(lines, &ours);
        assert!(serde_json::to_string(report).unwrap().chars().all(|c| c != '\u{202e}'));
        verdict.to_owned()
    };
    assert!(says(&report).starts_with("intact, and not signed"), "{report}");
    file.left_out.push(left_out(forged));
    file.opening.format = forged.into();
    file.opening.signed_by = Some(forged.repeat(2));
    file.jobs[0].head.tenant = forged.into();
    let signed = String::from_utf8(file.to_bytes(Some(&key()))).unwrap();
    let id = key().public().id();
    let signed =
        signed.replace(&format!("\"key_id\":\"{id}\""), &format!("\"key_id\":{}", json!(forged)));
    for trust in [Trust::default(), UNSIGNED, trusting(&key())] {
        let report = verify(signed.as_bytes(), &trust);
        assert!(problems(&report).contains("this says x"), "{report}");
        assert_eq!(says(&report), "NOT to be trusted");
    }
    let report = verify(signed.as_bytes(), &Trust::default());
    for part in ["is never left out", "version 1, and not tenure-export", "says it is signed by"] {
        assert!(problems(&report).contains(part), "{part}: {report}");
    }
}

/// The lines of a file, changed by hand.
fn changed(file: &[u8], change: impl Fn(&mut Value)) -> Vec<u8> {
    let line = |line: &str| {
        let mut value = serde_json::from_str(line).unwrap();
        change(&mut value);
        canonical::bytes(&value)
    };
    let text = std::str::from_utf8(file).unwrap();
    text.lines().flat_map(|l| [line(l), vec![b'\n']].concat()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn numbers_in_a_file_ask_for_no_memory() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    let file = export(&world, job, ask(false)).await.to_bytes(None);
    assert_fine(&verify(&changed(&file, |_| ()), &UNSIGNED));
    let most = [json!(u64::MAX), json!(i64::MAX), json!(i64::MIN), json!(u32::MAX), json!(0)];
    for field in ["count", "first", "epoch", "at", "version", "mail_count", "created_at", "lines"] {
        for number in &most {
            let forged = changed(&file, |line| {
                if let Some(found) = line.get_mut(field) {
                    *found = number.clone();
                }
            });
            assert_eq!(verify(&forged, &UNSIGNED).ok, forged == file, "{field} {number}");
        }
    }
    let forged = changed(&file, |line| {
        if line["line"] == "record" {
            (line["count"], line["first"]) = (json!(0), json!(0));
        }
    });
    assert!(problems(&verify(&forged, &UNSIGNED)).contains("no record has 0 events"));
}

#[test]
fn a_file_that_is_wrong_everywhere_is_told_of_so_often_and_no_more() {
    let report = verify(&b"\n".repeat(1_000_000), &UNSIGNED);
    assert_eq!(report.problems.len(), PROBLEMS_MAX + 1);
    assert_eq!(report.problems[PROBLEMS_MAX].says, "and more");
    let report = verify(&b"\n".repeat(PROBLEMS_MAX - 2), &UNSIGNED);
    // One for each, one for the missing end, one for the missing beginning.
    assert_eq!(report.problems.len(), PROBLEMS_MAX);
    assert!(report.problems.iter().all(|p| p.says != "and more"));
}

#[tokio::test(flavor = "multi_thread")]
async fn notes_are_told_up_to_a_number() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    let mut file = export(&world, job, ask(false)).await;
    for (count, told) in
        [(NOTES_MAX, NOTES_MAX), (NOTES_MAX + 1, NOTES_MAX + 1), (NOTES_MAX + 9, NOTES_MAX + 1)]
    {
        let left =
            |i| LeftOut { what: "call".into(), name: format!("{i:08}"), why: "it is".into() };
        file.left_out = (0..count).map(left).collect();
        let report = verify(&file.to_bytes(None), &UNSIGNED);
        assert_fine(&report);
        assert_eq!(report.notes.len(), told);
    }
}

/// A blob is in a file once, and is read as often as it is named.
#[tokio::test(flavor = "multi_thread")]
async fn a_blob_that_is_named_very_often_weighs_very_much() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    let mut file = export(&world, job, ask(false)).await;
    let bytes = vec![b' '; 32 * 1024];
    let at_most = EXPORT_BYTES_MAX / bytes.len() as u64;
    for (times, heavy) in [(at_most, false), (at_most + 1, true), (10_000, true)] {
        let blob = Body::Blob { digest: Hash::of(&bytes), len: bytes.len() as u64 };
        let events: Vec<_> = (0..times).map(|_| NewEvent::new("strange", blob.clone())).collect();
        let record = |(n, events): (usize, &[NewEvent])| -> Record {
            let first = 1 + (n * EVENTS_PER_COMMIT_MAX) as u64;
            let joint = Joint { previous: Hash::ZERO, first, at: Timestamp::ZERO, epoch: 0 };
            pack(job, CommitId::new(1, n as u64), joint, &[0], events)
        };
        let records = events.chunks(EVENTS_PER_COMMIT_MAX).enumerate();
        file.jobs[0].records = records.map(record).collect();
        file.blobs = [(Hash::of(&bytes), bytes.clone())].into();
        let report = verify(&file.to_bytes(None), &UNSIGNED);
        assert!(!report.ok);
        assert_eq!(problems(&report).contains("EXPORT_BYTES_MAX"), heavy, "{times}: {report}");
        assert_eq!(report.account.is_none(), heavy);
    }
}

/// A few bytes of a record are an event, which takes many times as much memory: a record has as many as a commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_a_file_has_no_more_events_than_a_commit() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    let mut file = export(&world, job, ask(false)).await;
    for (count, refused) in [(EVENTS_PER_COMMIT_MAX, false), (EVENTS_PER_COMMIT_MAX + 1, true)] {
        let events = vec![NewEvent::new("", Body::Inline(Vec::new())); count];
        let joint = Joint { previous: Hash::ZERO, first: 1, at: Timestamp::ZERO, epoch: 0 };
        file.jobs[0].records = vec![pack(job, CommitId::new(1, 1), joint, &[0], &events)];
        let report = verify(&file.to_bytes(None), &UNSIGNED);
        assert!(!report.ok);
        let named = problems(&report).contains("EVENTS_PER_COMMIT_MAX");
        assert_eq!(named, refused, "{count}: {report}");
    }
}

/// With a key, nothing is read but what it signed.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_the_key_did_not_sign_is_not_interpreted() {
    let world = world().await;
    let job = done(&world, "one", json!(7)).await;
    let other = SigningKey::from_seed(&[43; 32]);
    let by = |id: String| Ask { signed_by: Some(id), ..ask(false) };
    let signed = export(&world, job, ask(true)).await.to_bytes(Some(&key()));
    let elsewhere = export(&world, job, by(other.public().id())).await.to_bytes(Some(&other));
    let unsigned = export(&world, job, ask(false)).await.to_bytes(None);
    let touched = changed(&signed, |line| {
        if line["line"] == "export" {
            line["exported_by"] = json!("eve");
        }
    });
    let cut = &signed[..signed.len() / 2];
    for (file, says) in [
        (&elsewhere[..], "not with"),
        (&unsigned, "no signature"),
        (&touched, "does not fit"),
        (cut, "cut off"),
        (b"", "cut off"),
    ] {
        let report = verify(file, &trusting(&key()));
        assert!(!report.ok && problems(&report).contains(says), "{says}: {report}");
        assert!(report.account.is_none() && report.jobs.is_empty(), "{report}");
        assert!(report.notes[0].contains("not looked at"), "{report}");
    }
    assert!(verify(&signed, &trusting(&key())).account.is_some());
}

/// A store for effects and a world that uses it.
async fn world_with_effects() -> (World, Arc<Directory>, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let effects = Arc::new(Directory::open(dir.path()).unwrap());
    let refuses = ToolSpec::new("act", |_, v: Value| async move {
        if v == json!("refuse") { Err(ToolError::permanent("no")) } else { Ok(v) }
    });
    let tools = Tools::default().with(refuses);
    let shop = Shop::new(flows(), tools, JobOptions::default()).with_effects(effects.clone());
    (World::of(store(), shop).await, effects, dir)
}

async fn export_with(world: &World, job: EntityId, effects: &Directory) -> Export {
    gather(&world.store, job, ask(false), Some(effects)).await.unwrap().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_in_the_effect_store_is_exported_compared_and_missed() {
    let (world, effects, dir) = world_with_effects().await;
    let job = done(&world, "one", json!(7)).await;
    let whole = export_with(&world, job, &effects).await;
    assert_eq!(whole.jobs[0].kept.len(), 1);
    let report = verify(&whole.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes.is_empty(), "{report}");
    let mut forged = whole.clone();
    forged.jobs[0].kept[0].result = json!(8);
    let report = verify(&forged.to_bytes(None), &UNSIGNED);
    assert!(problems(&report).contains("another result"), "{report}");
    // All of it is lost: that is said, and not passed over.
    for file in std::fs::read_dir(dir.path()).unwrap() {
        std::fs::remove_file(file.unwrap().path()).unwrap();
    }
    let lost = export_with(&world, job, &effects).await;
    let name = &whole.jobs[0].kept[0];
    let name = format!("{}.{}.{}", name.key, name.epoch, name.call);
    let said: Vec<_> = lost.left_out.iter().map(|l| (l.what.as_str(), &l.name)).collect();
    assert_eq!((lost.jobs[0].kept.len(), said), (0, vec![("kept", &name)]));
    let report = verify(&lost.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes[0].contains("the effect store has none"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_that_the_job_never_recorded_is_exported_too() {
    let (world, effects, _dir) = world_with_effects().await;
    let job = world.submit("one", json!("refuse")).await;
    world.until(job, "failed").await;
    let none = export_with(&world, job, &effects).await;
    assert_eq!((none.jobs[0].kept.len(), none.left_out.len()), (0, 0), "none is expected");
    let mut events = none.jobs[0].records.iter().flat_map(|r| r.events().unwrap());
    let started = events.rfind(|e| e.name == "tool_invocation_started").unwrap();
    let body: Value = serde_json::from_slice(started.body.inline().unwrap()).unwrap();
    let (key, call) = (body["key"].as_str().unwrap(), body["call"].as_u64().unwrap());
    let call = u32::try_from(call).unwrap();
    // As a worker leaves it that dies between the effect and its events.
    effects.put(EffectName { key, epoch: started.epoch, call }, &json!("it was done")).unwrap();
    let file = export_with(&world, job, &effects).await;
    assert_eq!(file.jobs[0].kept[0].result, json!("it was done"));
    let report = verify(&file.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes[0].contains("never recorded"), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn mail_that_was_not_read_is_named() {
    let store = store();
    let place = store.clone();
    let job = killed_after(|| async move {
        let world = World::on(place, flows(), Tools::default(), JobOptions::default()).await;
        let job = world.submit("waits", Value::Null).await;
        world.until_seen(job, "wait_opened").await;
        world.until_free(job).await;
        job
    })
    .await;
    // Nobody is there to read it.
    let said = SignalMail {
        key: "a".into(),
        outcome: WaitOutcome::Signalled,
        payload: json!("go"),
        by: Some("ann".into()),
    };
    let id = MailId("signal/a".into());
    let said = NewMail { to: job, id, kind: mail::SIGNAL.into(), body: Body::json(&said) };
    assert!(matches!(store.apply(vec![Op::Mail(said)]).await.unwrap()[..], [Answer::Mail(_)]));
    let file = gather(&store, job, ask(false), None).await.unwrap().unwrap();
    let left = file.left_out.iter().find(|l| l.what == "mail").unwrap();
    assert!(left.name == job.to_string() && left.why.contains("not read: 1"), "{left:?}");
    let report = verify(&file.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes.iter().any(|n| n.contains("left out: mail")), "{report}");
    // A file that does not say so: the head does.
    let silent = Export { left_out: Vec::new(), ..file };
    let report = verify(&silent.to_bytes(None), &UNSIGNED);
    assert_fine(&report);
    assert!(report.notes.iter().any(|n| n.contains("had not read")), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_file_counts_towards_its_limit() {
    let (world, effects, _dir) = world_with_effects().await;
    let job = done(&world, "one", json!("x".repeat(40 * 1024))).await;
    late(&world, job).await;
    let file = export_with(&world, job, &effects).await;
    let dossier = &file.jobs[0];
    let records: usize = dossier.records.iter().map(|r| r.bytes.len()).sum();
    let evidence = &dossier.evidence[0].said;
    let evidence = evidence.key.len() + evidence.who.len() + evidence.body.inline().unwrap().len();
    let kept = canonical::bytes(&dossier.kept[0].result).len();
    let named = tenure_kernel::stream::blobs_of(&dossier.records);
    let blobs: usize = named.iter().map(|d| file.blobs[d].len()).sum();
    assert!(blobs > 40 * 1024 && kept > 40 * 1024);
    let whole = (records + evidence + kept + blobs) as u64;
    for (bytes_max, fits) in [(whole, true), (whole - 1, false)] {
        let ask = Ask { bytes_max, ..ask(false) };
        match gather(&world.store, job, ask, Some(&*effects)).await {
            Ok(Some(_)) => assert!(fits),
            Err(GatherError::TooLarge(limit)) => assert!(!fits && limit == bytes_max),
            other => panic!("{other:?}"),
        }
    }
}

/// A body that is nested as deeply as JSON readers allow must not make its own export unreadable.
#[tokio::test(flavor = "multi_thread")]
async fn a_deeply_nested_input_can_be_exported() {
    let world = world().await;
    // The flow and its tool wrap it.
    let deepest = tenure_kernel::limits::INPUT_DEPTH_MAX - 5;
    let deep = (0..deepest).fold(json!(1), |inner, _| json!([inner]));
    let job = done(&world, "one", deep).await;
    assert_fine(&verify(&export(&world, job, ask(false)).await.to_bytes(None), &UNSIGNED));
}

#[test]
fn what_is_no_export_is_refused_with_a_reason() {
    for (bytes, says) in [
        (&b""[..], "cut off"),
        (b"\n", "line 1"),
        (b"hello\n", "line 1"),
        (b"{}\n", "line 1"),
        (
            b"{\"line\":\"end\",\"lines\":0,\"digest\":\"\",\"signature\":null}\n",
            "what this file is",
        ),
        (b"\xff\xfe\n", "line 1"),
    ] {
        let report = verify(bytes, &UNSIGNED);
        assert!(!report.ok);
        assert!(problems(&report).contains(says), "{bytes:?}: {}", problems(&report));
    }
}
