//! Batches: every submission in exactly one job, whatever the order of mail, duplicates and timers.

use crate::support::{Outside, World};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{collections::BTreeMap, time::Duration};
use tenure_jobs::{
    drive::JobOptions,
    model::NewJob,
    shared::batch::{
        Batch, Event, Mode, State,
        decide::{self, CLOSE, IDLE, ITEM},
        desk::{BatchError, Batches, check, id_of},
        model::{Item, Overtaken, Wanted, limits},
    },
};
use tenure_kernel::{
    ids::{EntityId, MailId},
    machine::{Cx, Decision, Input, Machine},
    mail::Mail,
    outbox::Target,
    stream::Body,
    table::{Status, VACANT},
    time::Timestamp,
    timers::{TimerChange, Timers},
};
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::Tools,
};

fn at(ms: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000) + Duration::from_millis(ms)
}

fn item(n: u32, size: usize, mode: Mode) -> Item {
    let job = Wanted { version: 1, must_end_in_ms: 60_000, takeovers_max: 5, ..Wanted::default() };
    Item { input: json!({ "n": n, "fill": "x".repeat(size) }), mode, job }
}

/// The box and the head of a batch: mail is idempotent by id, the loop reads some of it at a time.
struct World1 {
    id: EntityId,
    state: State,
    status: Option<Status>,
    timers: Timers,
    mail: Vec<Mail>,
    read: usize,
    jobs: BTreeMap<EntityId, NewJob>,
}

impl World1 {
    fn new(mode: Mode) -> Self {
        let id = id_of("t", "f", mode, "k");
        let mut state = State::default();
        Batch::apply(&mut state, &Event::BatchOpened { flow: "f".into(), key: "k".into() });
        let status = Batch::TABLE.status("collecting");
        let (timers, mail, jobs) = (Timers::default(), Vec::new(), BTreeMap::new());
        World1 { id, state, status, timers, mail, read: 0, jobs }
    }

    fn post(&mut self, n: u32, item: &Item, now: Timestamp) {
        let id = MailId(format!("item/{n}"));
        if self.mail.iter().all(|m| m.id != id) {
            let seq = self.mail.len() as u64 + 1;
            self.mail.push(Mail { seq, id, kind: ITEM.into(), body: Body::json(item), at: now });
        }
    }

    fn decide(&self, input: &Input<'_>, now: Timestamp) -> Decision<Event> {
        Batch::decide(
            Some(&self.state),
            input,
            &Cx { id: self.id, now, version: 0, status: self.status, changed_at: None },
        )
        .unwrap()
    }

    fn commit(&mut self, decision: Decision<Event>, now: Timestamp) {
        assert!(!decision.events.is_empty(), "mail is covered and timers are cleared by events");
        for event in &decision.events {
            Batch::apply(&mut self.state, event);
            let next = Batch::TABLE.step(self.status, Batch::name(event));
            self.status = Some(next.expect("a move of the table"));
        }
        assert!(serde_json::to_vec(&self.state).unwrap().len() < 16 * 1024, "the head is small");
        decision.timers.iter().for_each(|t| self.timers.change(t, now));
        for message in decision.messages {
            let Target::Create { id, .. } = message.to else { panic!("a batch only creates") };
            let new = serde_json::from_slice(message.body.inline().unwrap()).unwrap();
            assert!(self.jobs.insert(id, new).is_none(), "two jobs of one id");
        }
        let idle = self.state.items == 0 && !self.is_vacant();
        assert_eq!(self.timers.get(IDLE).is_some(), idle, "{:?}: {:?}", self.status, self.timers);
        assert_eq!(self.timers.get(CLOSE).is_some(), self.state.items > 0);
    }

    fn take_in(&mut self, upto: usize, now: Timestamp, lost: bool) {
        let end = (self.read + upto).min(self.mail.len());
        if end == self.read {
            return;
        }
        let mail = self.mail[self.read..end].to_vec();
        let decision = self.decide(&Input::Mail(&mail), now);
        if !lost {
            self.read = end;
            self.commit(decision, now);
        }
    }

    fn is_vacant(&self) -> bool {
        self.status.is_some_and(|s| s.name() == VACANT)
    }

    fn fire(&mut self, now: Timestamp, lost: bool) {
        let fired = self.timers.fired(now).first().map(|t| t.name.clone());
        if let Some(name) = fired {
            let decision = self.decide(&Input::Timer(&name), now);
            if !lost {
                self.timers.change(&TimerChange::clear(name), now);
                self.commit(decision, now);
            }
        }
    }

    /// Nothing comes any more, and every timer fires.
    fn rest(&mut self, now: Timestamp) {
        let mut now = now;
        while self.read < self.mail.len() || !self.timers.is_empty() {
            now = self.timers.earliest().map_or(now, |t| t.max(now));
            self.take_in(256, now, false);
            self.fire(now, false);
        }
    }
}

/// (what, number or count, size, milliseconds, lost)
type Step = (u8, u32, usize, u64, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0u8..6, 0u32..60, 0usize..3_500, 0u64..4_000, prop::bool::weighted(0.15));
    prop::collection::vec(step, 1..150)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn every_submission_is_in_exactly_one_job_in_order(steps in steps(), max in 1u32..8, within in 1u64..20) {
        let mode = Mode::Batch { max, within_ms: within * 1_000 };
        let mut world = World1::new(mode);
        let (mut now, mut sent) = (0, Vec::new());
        for (what, n, size, ms, lost) in steps {
            now += ms;
            match what {
                0..=2 => {
                    if !sent.contains(&n) {
                        sent.push(n);
                    }
                    world.post(n, &item(n, size, mode), at(now));
                }
                3 | 4 => world.take_in(n as usize % 9 + 1, at(now), lost),
                _ => world.fire(at(now), lost),
            }
        }
        world.rest(at(now));
        prop_assert!(world.mail.is_empty() || world.is_vacant());
        let mut found = Vec::new();
        for new in world.jobs.values() {
            let items = new.input["items"].as_array().unwrap();
            prop_assert!(!items.is_empty() && items.len() <= max as usize);
            let bytes: usize = items.iter().map(|i| i.to_string().len()).sum();
            prop_assert!(bytes <= limits::OPEN_BYTES_MAX || items.len() == 1);
            found.extend(items.iter().map(|i| i["n"].as_u64().unwrap() as u32));
        }
        found.sort_unstable();
        sent.sort_unstable();
        prop_assert_eq!(found, sent);
        prop_assert_eq!(world.state.items, 0);
    }

    #[test]
    fn of_a_debounce_the_last_one_counts_and_nobody_waits_longer_than_within(steps in steps(), quiet in 1u64..6, more in 0u64..10) {
        let within = quiet + more;
        let mode = Mode::Debounce { quiet_ms: quiet * 1_000, within_ms: within * 1_000 };
        let mut world = World1::new(mode);
        // The loop is never late here, so that every job can be told in advance.
        let (mut now, mut serial) = (0u64, 0u32);
        let mut expected: Vec<(u32, u32)> = Vec::new();
        let mut open: Option<(u64, u64, u32, u32)> = None;
        let mut posts: Vec<(u64, u32)> = Vec::new();
        for (what, _, _, ms, _) in steps {
            now += ms + 1;
            if what < 4 {
                serial += 1;
                posts.push((now, serial));
            }
        }
        for (when, n) in &posts {
            if let Some((_, closes, count, last)) = open.filter(|o| o.1 <= *when) {
                let _ = closes;
                expected.push((count, last));
                open = None;
            }
            let first = open.map_or(*when, |o| o.0);
            let count = open.map_or(0, |o| o.2) + 1;
            open = Some((first, (when + quiet * 1_000).min(first + within * 1_000), count, *n));
        }
        expected.extend(open.map(|o| (o.2, o.3)));
        for (when, n) in &posts {
            while let Some(timer) = world.timers.earliest().filter(|t| *t <= at(*when)) {
                world.fire(timer, false);
            }
            world.post(*n, &item(*n, 10, mode), at(*when));
            world.take_in(256, at(*when), false);
        }
        while let Some(timer) = world.timers.earliest() {
            world.fire(timer, false);
        }
        let mut found: Vec<(u32, u32)> = world.jobs.iter().map(|(id, new)| {
            let made = world.state.made.iter().find(|m| m.job == *id);
            (made.map_or(0, |m| m.items), new.input["n"].as_u64().unwrap() as u32)
        }).collect();
        found.sort_by_key(|f| f.1);
        let kept = expected.len().min(limits::MADE_KEPT);
        prop_assert_eq!(found.len(), expected.len());
        prop_assert_eq!(&found[found.len() - kept..], &expected[expected.len() - kept..]);
    }
}

#[test]
fn what_can_not_be_collected_is_said_with_its_field() {
    let field = |key: &str, mode| match check(key, mode) {
        Err(BatchError::Bad { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let good = Mode::Batch { max: 10, within_ms: 1_000 };
    assert!(check("k", good).is_ok());
    assert_eq!(field("", good), "key");
    assert_eq!(field(&"k".repeat(201), good), "key");
    assert_eq!(field("k", Mode::Batch { max: 0, within_ms: 1_000 }), "max");
    assert_eq!(field("k", Mode::Batch { max: 1_001, within_ms: 1_000 }), "max");
    assert_eq!(field("k", Mode::Batch { max: 1, within_ms: 0 }), "within_seconds");
    assert_eq!(field("k", Mode::Debounce { quiet_ms: 2_000, within_ms: 1_000 }), "quiet_seconds");
}

/// The head is at most 16 KiB, timers included; every field at its longest.
#[test]
fn the_head_of_a_batch_never_grows_past_its_bound() {
    // A control character is one byte, and six as JSON.
    let worst = |bytes: usize| "\u{1}".repeat(bytes);
    let terms = tenure_jobs::terms::Terms {
        start_in_ms: Some(1),
        gate: Some(Box::new(tenure_jobs::terms::GateTerm {
            name: "g".repeat(40),
            limit: Some(150),
            id: None,
        })),
        queue: Some("q".repeat(40)),
        needs: vec!["n".repeat(40)],
        tell: Some(EntityId::fixed(1, 1)),
        // What is collected has neither.
        key: None,
        labels: Default::default(),
    };
    let wanted = Wanted {
        version: u32::MAX,
        priority: i16::MIN,
        must_end_in_ms: u64::MAX,
        takeovers_max: u32::MAX,
        terms: terms.of_tenant("t").unwrap(),
        by: Some(worst(limits::BY_BYTES_MAX)),
    };
    let long = limits::WITHIN_MAX.as_millis() as u64;
    for size in [1usize, 8, 100, 1_000, limits::ITEM_BYTES_MAX] {
        let mode = Mode::Batch { max: limits::ITEMS_MAX, within_ms: long };
        let mut world = World1::new(mode);
        let (flow, key) = ("f".repeat(128), worst(limits::KEY_BYTES_MAX));
        Batch::apply(&mut world.state, &Event::BatchOpened { flow, key });
        world.state.generation = u64::MAX / 2;
        let input = if size == 1 { json!(1) } else { json!("x".repeat(size - 2)) };
        let item = Item { input, mode, job: wanted.clone() };
        assert!(serde_json::to_vec(&item).unwrap().len() <= limits::WHOLE_BYTES_MAX, "{size}");
        let mut n = 0;
        while world.state.made.len() < limits::MADE_KEPT || world.state.items < 2 {
            n += 1;
            world.post(n, &item, at(0));
            world.take_in(1, at(0), false);
        }
        for _ in 0..limits::ITEMS_MAX {
            n += 1;
            world.post(n, &item, at(0));
            world.take_in(1, at(0), false);
        }
    }
}

#[test]
fn a_batch_that_is_not_used_is_vacant_and_wakes_with_the_next_submission() {
    let mode = Mode::Batch { max: 1, within_ms: 1_000 };
    let mut world = World1::new(mode);
    world.post(1, &item(1, 10, mode), at(0));
    world.take_in(1, at(0), false);
    assert_eq!(world.timers.earliest(), Some(at(0) + limits::IDLE));
    world.fire(at(0) + limits::IDLE, false);
    assert!(world.is_vacant() && world.timers.is_empty());
    let later = at(0) + limits::IDLE * 2;
    world.post(2, &item(2, 10, mode), later);
    world.take_in(1, later, false);
    assert_eq!((world.is_vacant(), world.jobs.len(), world.state.generation), (false, 2, 2));
    // A clock that fires late finds what has come since.
    let long = Mode::Batch { max: 9, within_ms: 1_000_000_000 };
    world.post(3, &item(3, 10, long), later);
    world.take_in(1, later, false);
    let decision = world.decide(&Input::Timer(IDLE), later);
    assert!(matches!(decision.events[..], [Event::BatchMailNoted { .. }]), "{decision:?}");
}

#[test]
fn a_submission_that_can_not_be_read_is_not_passed_over_in_silence() {
    let mode = Mode::Debounce { quiet_ms: 1_000, within_ms: 5_000 };
    let world = World1::new(mode);
    let blob = Body::Blob { digest: tenure_kernel::stream::Hash::ZERO, len: 40_000 };
    for body in [blob, Body::Inline(b"{}".to_vec())] {
        let id = MailId("item/1".into());
        let mail = [Mail { seq: 1, id, kind: ITEM.into(), body, at: at(0) }];
        let decision = world.decide(&Input::Mail(&mail), at(0));
        let said = decision.attention.flatten().unwrap();
        assert!(said.contains("item/1"), "{said}");
    }
}

#[test]
fn a_larger_submission_that_became_a_job_at_once_supersedes_what_is_collected() {
    let mode = Mode::Debounce { quiet_ms: 1_000, within_ms: 5_000 };
    let mut world = World1::new(mode);
    world.post(1, &item(1, 10, mode), at(0));
    world.take_in(1, at(0), false);
    let job = EntityId::fixed(9, 9);
    let body = Body::json(&Overtaken { job });
    let id = MailId(format!("overtaken/{job}"));
    world.mail.push(Mail { seq: 2, id, kind: decide::OVERTAKEN.into(), body, at: at(1) });
    world.take_in(1, at(1), false);
    assert!(world.jobs.is_empty() && world.timers.get(CLOSE).is_none(), "the older one never runs");
    let made = world.state.made.last().unwrap();
    assert_eq!((made.job, made.items, made.why.as_str()), (job, 2, "overtaken"));
    world.post(3, &item(3, 10, mode), at(2));
    world.take_in(1, at(2), false);
    world.fire(at(1_002), false);
    assert_eq!(world.jobs.len(), 1, "one that comes later does");
}

#[test]
fn what_comes_after_the_time_is_up_does_not_hold_the_others_back() {
    let mode = Mode::Debounce { quiet_ms: 1_000, within_ms: 5_000 };
    let mut world = World1::new(mode);
    world.post(1, &item(1, 10, mode), at(0));
    world.take_in(1, at(0), false);
    // The loop is late, and mail is served first.
    world.post(2, &item(2, 10, mode), at(1_500));
    world.take_in(1, at(1_500), false);
    assert_eq!(world.jobs.len(), 1);
    assert_eq!(world.jobs.values().next().unwrap().input["n"], 1);
    assert_eq!(world.timers.earliest(), Some(at(2_500)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_is_small_when_it_is_taken_in_or_it_is_refused() {
    let flows = Flows::default().with(FlowSpec::new("count", count));
    let tools = Tools::default().with(Outside::default().tool("raise"));
    let world = World::start(flows, tools, JobOptions::default()).await;
    let batches = Batches(world.node.pipeline.clone());
    let mode = Mode::Batch { max: 1, within_ms: 3_600_000 };
    let large = item(1, limits::ITEM_BYTES_MAX + 1, mode);
    let refused = batches.add("t", "count", "k", large, None).await.unwrap_err();
    assert!(matches!(refused, BatchError::Bad { field: "input", .. }), "{refused}");
    // Whoever asked has a long name: it is cut, and the item is collected.
    let mut named = item(1, 10, mode);
    named.job.by = Some("n".repeat(100_000));
    let batch = batches.add("t", "count", "k", named, None).await.unwrap().batch;
    let made = async || !batches.show(batch).await.unwrap().unwrap().made.is_empty();
    world.place.until("a job is made of it", made).await;
    let mut long = item(1, 10, mode);
    long.job.terms.needs = (0..4).map(|n| format!("{n}{}", "x".repeat(39))).collect();
    let refused = batches.add("t", "count", "k", long, None).await.unwrap_err();
    assert!(matches!(refused, BatchError::Bad { field: "terms", .. }), "{refused}");
    world.check().await;
}

async fn count(_ctx: Ctx, input: Value) -> Result<Value, FlowError> {
    Ok(json!(input["items"].as_array().map_or(0, Vec::len)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_becomes_one_job_on_the_real_loops() {
    let flows = Flows::default().with(FlowSpec::new("count", count));
    let outside = Outside::default();
    let tools = Tools::default().with(outside.tool("raise"));
    let world = World::start(flows, tools, JobOptions::default()).await;
    let batches = Batches(world.node.pipeline.clone());
    let mode = Mode::Batch { max: 5, within_ms: 3_600_000 };
    let mut batch = None;
    for n in [1, 2, 3, 3, 4, 2, 5] {
        let key = format!("n{n}");
        let added = batches.add("t", "count", "k", item(n, 5, mode), Some(&key)).await.unwrap();
        batch = Some(added.batch);
    }
    let batch = batch.unwrap();
    let made = async || {
        let shown = batches.show(batch).await.unwrap().unwrap();
        Some(shown).filter(|s| !s.made.is_empty())
    };
    let shown = world.place.find(made).await.expect("a job is made of it");
    let made = &shown.made[0];
    assert_eq!((made.items, made.why.as_str(), shown.open), (5, "full", 0));
    assert_eq!(made.job, decide::job_of(batch, 1, made_at(&world, batch).await));
    let job = made.job;
    let there = async || world.store.head(job).await.unwrap().is_some();
    world.place.until("the job is there", there).await;
    assert_eq!(world.until(job, "completed").await.output, Some(json!(5)));
    world.check().await;
}

/// When the first item came, from the batch's own stream.
async fn made_at(world: &World, batch: EntityId) -> Timestamp {
    for record in world.store.stream(batch, 1, 100).await.unwrap() {
        for event in record.events().unwrap() {
            if event.name == "item_collected" {
                let body: Value = serde_json::from_slice(event.body.inline().unwrap()).unwrap();
                return serde_json::from_value(body["at"].clone()).unwrap();
            }
        }
    }
    panic!("nothing was collected")
}
