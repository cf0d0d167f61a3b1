//! An export is everything of a job, and nobody can change a byte of it unnoticed.

use crate::support::{Outside, World, machines};
use serde_json::{Value, json};
use tenure_jobs::{
    drive::JobOptions,
    export::{self, Ask, Export, LeftOut, Report, Signature, SigningKey, Trust, gather},
};
use tenure_kernel::{
    evidence::NewEvidence,
    ids::EntityId,
    store::{Answer, Op},
    stream::{Body, Hash},
};
use tenure_steps::{
    Ctx,
    flow::{FlowSpec, Flows},
    tool::{ToolSpec, Tools},
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
    let file = export(&world, job, ask).await.to_bytes(None);
    let account = verify(&file, &UNSIGNED).account.unwrap();
    for line in account.lines() {
        assert!(line.starts_with("job ") || line.starts_with("  "), "{line:?}");
        assert!(line.chars().count() <= 1_001, "{line:?}");
    }
    let plain = |c: char| c == '\n' || !(c.is_control() || c == '\u{202e}');
    assert!(account.contains("signed with") && account.chars().all(plain), "{account:?}");
}

/// A body that is nested as deeply as JSON readers allow must not make its own export unreadable.
#[tokio::test(flavor = "multi_thread")]
async fn a_deeply_nested_input_can_be_exported() {
    let world = world().await;
    let deep = (0..110).fold(json!(1), |inner, _| json!([inner]));
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
