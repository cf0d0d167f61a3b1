//! The gate and its pages against their promises, on random orders of mail: messages of one source stay in order,
//! everything else comes as it likes; jobs end at any moment, also while a grant is on its way. A gate at which nobody
//! stands may leave, and comes again.

use proptest::prelude::*;
use serde_json::json;
use std::collections::{BTreeMap, VecDeque};
use tenure_jobs::gate::{
    Gate, GateEvent, GatePage, GateState, Waiter,
    decide::{IDLE, Said},
    first_page, gate_id,
    limits::{self, LIMIT_MAX, PAGE_MAX, WINDOW_MAX},
    mail, page_id,
};
use tenure_kernel::{
    ids::{EntityId, MailId},
    limits as kernel_limits,
    machine::{Cx, Decision, Input, Machine, Machines, encode_state},
    mail::{Mail, expects_answer, kinds},
    outbox::{Message, Target},
    stream::Body,
    table::{Status, VACANT},
    time::Timestamp,
    timers::{TimerChange, Timers},
};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    Asks,
    Runs,
    Over,
}

/// A store of a few lines: one gate, its pages, jobs that only ask, run and end.
struct World {
    gate: EntityId,
    state: Option<GateState>,
    status: Option<Status>,
    timers: Timers,
    /// How often retention took it.
    left: u32,
    pages: BTreeMap<EntityId, Option<tenure_jobs::gate::page::PageState>>,
    jobs: BTreeMap<EntityId, (Job, i16)>,
    /// In order per source.
    outbox: BTreeMap<EntityId, VecDeque<Message>>,
    /// Mail that the gate has not read.
    inbox: Vec<Mail>,
    now: i64,
    seq: u64,
    /// Who was let through, in that order.
    granted: Vec<EntityId>,
    /// Those of them that were there to hear of it.
    passed: Vec<EntityId>,
    /// In the order in which the gate read their asks.
    asked: Vec<EntityId>,
    deaf: bool,
}

fn job(n: u32) -> EntityId {
    EntityId::derived(EntityId::fixed(9, 9), &format!("job {n}"), Timestamp::ZERO)
}

impl World {
    fn new() -> Self {
        World {
            gate: gate_id("t", "g"),
            state: None,
            status: None,
            timers: Timers::default(),
            left: 0,
            pages: BTreeMap::new(),
            jobs: BTreeMap::new(),
            outbox: BTreeMap::new(),
            inbox: Vec::new(),
            now: 1_000_000,
            seq: 0,
            granted: Vec::new(),
            passed: Vec::new(),
            asked: Vec::new(),
            deaf: false,
        }
    }

    fn cx(&self, id: EntityId) -> Cx {
        let status = self.status.filter(|_| id == self.gate);
        Cx { id, now: Timestamp::from_micros(self.now), version: 1, status, changed_at: None }
    }

    fn post(&mut self, source: EntityId, message: Message) {
        self.outbox.entry(source).or_default().push_back(message);
    }

    fn submit(&mut self, n: u32, priority: i16, limit: Option<u32>) {
        let id = job(n);
        if self.jobs.insert(id, (Job::Asks, priority)).is_some() {
            return;
        }
        let said = Said::Ask { name: "g".into(), job: id, priority, limit };
        let to = Target::Create { id: self.gate, kind: "gate".into() };
        self.post(id, Message { to, kind: mail::ASK.into(), body: Body::json(&said) });
    }

    fn end(&mut self, id: EntityId, forced: bool) {
        let Some(job) = self.jobs.get_mut(&id).filter(|j| j.0 != Job::Over) else { return };
        job.0 = Job::Over;
        // The kernel's forced end has no messages.
        if !forced && !self.deaf {
            let said = Said::Release { job: id, paused: false };
            self.post(id, Message::mail(self.gate, mail::RELEASE, Body::json(&said)));
        }
    }

    fn mail(&mut self, kind: &str, body: Body) {
        self.seq += 1;
        let id = MailId(format!("m{}", self.seq));
        let at = Timestamp::from_micros(self.now);
        self.inbox.push(Mail { seq: self.seq, id, kind: kind.into(), body, at });
    }

    fn gate_did(&mut self, decision: Decision<GateEvent>) {
        assert!(!decision.events.is_empty(), "mail is ticked off by events");
        assert!(decision.events.len() <= kernel_limits::EVENTS_PER_COMMIT_MAX);
        let mut state = self.state.take().unwrap_or_default();
        for event in &decision.events {
            Gate::apply(&mut state, event);
            let next = Gate::TABLE.step(self.status, Gate::name(event));
            self.status = Some(next.expect("a move of the table"));
            match event {
                GateEvent::GateGranted { job, .. } => {
                    self.granted.push(*job);
                    if self.jobs.get(job).is_some_and(|j| j.0 != Job::Over) {
                        self.passed.push(*job);
                    }
                }
                GateEvent::GateAsked { waiter } => self.asked.push(waiter.0),
                GateEvent::GatePaged { waiters, .. } => {
                    self.asked.extend(waiters.iter().map(|w| w.0));
                }
                _ => {}
            }
        }
        let size = encode_state::<Gate>(&state).len();
        assert!(size + 24 <= kernel_limits::HEAD_STATE_BYTES_MAX, "{size} bytes of state");
        let now = Timestamp::from_micros(self.now);
        decision.timers.iter().for_each(|t| self.timers.change(t, now));
        self.state = Some(state);
        decision.messages.into_iter().for_each(|m| self.post(self.gate, m));
    }

    fn serve_gate(&mut self) {
        let n = self.inbox.len().min(kernel_limits::MAIL_PER_DECISION_MAX);
        if n == 0 || self.state.is_none() {
            return;
        }
        let mail: Vec<Mail> = self.inbox.drain(..n).collect();
        let decision =
            Gate::decide(self.state.as_ref(), &Input::Mail(&mail), &self.cx(self.gate)).unwrap();
        self.gate_did(decision);
    }

    fn check_timer(&mut self) {
        let Some(state) = &self.state else { return };
        let Some(at) = state.holders.iter().map(|h| h.check_at()).min() else { return };
        self.now = self.now.max(at.as_micros());
        let input = Input::Timer(tenure_jobs::gate::decide::CHECK);
        let decision = Gate::decide(self.state.as_ref(), &input, &self.cx(self.gate)).unwrap();
        self.gate_did(decision);
    }

    /// The idle clock fires, if it runs.
    fn idle_timer(&mut self) {
        let Some(at) = self.timers.get(IDLE).map(|t| t.at) else { return };
        self.now = self.now.max(at.as_micros());
        self.timers.change(&TimerChange::clear(IDLE), at);
        let input = Input::Timer(IDLE);
        let decision = Gate::decide(self.state.as_ref(), &input, &self.cx(self.gate)).unwrap();
        self.gate_did(decision);
    }

    fn is_vacant(&self) -> bool {
        self.status.is_some_and(|s| s.name() == VACANT)
    }

    /// Retention, as the stores have it: nothing waits for it and nothing of it is on its way.
    fn retire(&mut self) {
        let quiet = self.inbox.is_empty() && !self.outbox.contains_key(&self.gate);
        if self.is_vacant() && quiet {
            (self.state, self.status, self.timers) = (None, None, Timers::default());
            self.left += 1;
        }
    }

    /// Delivers the oldest message of a source, as a lane does.
    fn deliver(&mut self, source: EntityId) {
        self.now += 1;
        let Some(m) = self.outbox.get_mut(&source).and_then(VecDeque::pop_front) else { return };
        if self.outbox[&source].is_empty() {
            self.outbox.remove(&source);
        }
        let (Target::Mail(to) | Target::Create { id: to, .. }) = m.to.clone() else { return };
        let creates = matches!(m.to, Target::Create { .. });
        if to == self.gate {
            match (&self.state, creates) {
                (None, true) => {
                    let cx = self.cx(to);
                    let decision = Gate::decide(None, &Input::Create(&m.body), &cx).unwrap();
                    self.gate_did(decision);
                }
                // It goes back to its sender, who is over: nobody else says anything to a gate that may be gone.
                (None, false) => {}
                _ => self.mail(&m.kind, m.body),
            }
        } else if let Some((what, _)) = self.jobs.get_mut(&to) {
            match what {
                Job::Over if expects_answer(&m.kind) => self.comes_back(source, &m, to),
                Job::Over => {}
                Job::Asks if m.kind == mail::GRANTED => *what = Job::Runs,
                Job::Asks | Job::Runs => {}
            }
        } else {
            self.deliver_to_page(source, m, to, creates);
        }
    }

    fn deliver_to_page(&mut self, source: EntityId, m: Message, to: EntityId, creates: bool) {
        let cx = self.cx(to);
        match self.pages.get(&to).cloned() {
            Some(None) if expects_answer(&m.kind) || creates => self.comes_back(source, &m, to),
            Some(None) => {}
            None if !creates => self.comes_back(source, &m, to),
            None => {
                let made = GatePage::decide(None, &Input::Create(&m.body), &cx).unwrap();
                let mut page = tenure_jobs::gate::page::PageState::default();
                made.events.iter().for_each(|e| GatePage::apply(&mut page, e));
                self.pages.insert(to, Some(page));
            }
            Some(Some(mut page)) => {
                let (id, at) = (MailId("m".into()), cx.now);
                let mail = Mail { seq: 1, id, kind: m.kind.into_owned(), body: m.body, at };
                let decision = GatePage::decide(Some(&page), &Input::Mail(&[mail]), &cx).unwrap();
                decision.events.iter().for_each(|e| GatePage::apply(&mut page, e));
                assert!(page.waiters.len() <= PAGE_MAX);
                let taken = decision
                    .events
                    .iter()
                    .any(|e| matches!(e, tenure_jobs::gate::page::PageEvent::PageTaken { .. }));
                self.pages.insert(to, (!taken).then_some(page));
                decision.messages.into_iter().for_each(|m| self.post(to, m));
            }
        }
    }

    fn comes_back(&mut self, source: EntityId, m: &Message, to: EntityId) {
        let body = json!({ "message": "m", "kind": m.kind, "to": to, "why": "it is over" });
        if source == self.gate {
            self.mail(kinds::RETURNED, Body::json(&body));
        }
    }

    fn running(&self) -> usize {
        self.jobs.values().filter(|j| j.0 == Job::Runs).count()
    }

    /// The promises, at any moment. `top` is the largest limit that ever was.
    fn check(&self, top: u32) -> Result<(), String> {
        let Some(state) = &self.state else {
            return match self.running() {
                0 => Ok(()),
                n => Err(format!("{n} run past a gate that is gone")),
            };
        };
        if self.timers.get(IDLE).is_some() != (state.is_idle() && !self.is_vacant()) {
            return Err(format!("idle: {}, {:?}: {:?}", state.is_idle(), self.status, self.timers));
        }
        if self.is_vacant() && !state.is_idle() {
            return Err("vacant, and somebody stands there".into());
        }
        if state.holders.len() > top as usize || self.running() > top as usize {
            return Err(format!("{} hold and {} run", state.holders.len(), self.running()));
        }
        for (id, (what, _)) in &self.jobs {
            if *what == Job::Runs && !state.holds(*id) {
                return Err(format!("{id} runs without a permit"));
            }
        }
        let free = state.holders.len() < state.limit as usize;
        if free && state.waiting() > 0 && state.fetching.is_none() {
            return Err("a permit is free while somebody waits, and nothing is on its way".into());
        }
        if state.window.len() > WINDOW_MAX {
            return Err(format!("{} in the window", state.window.len()));
        }
        Ok(())
    }

    fn settle(&mut self, mut random: impl FnMut(usize) -> usize) {
        loop {
            let sources: Vec<_> = self.outbox.keys().copied().collect();
            match sources.is_empty() {
                true if self.inbox.is_empty() => return,
                true => self.serve_gate(),
                false => self.deliver(sources[random(sources.len())]),
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Submit(i16),
    Many(u8),
    Deliver(u16),
    Serve,
    End(u16, bool),
    Repeat(u16),
    SetLimit(u32),
    Check,
    Idle,
    Retire,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0i16..3).prop_map(Step::Submit),
        1 => (50u8..150).prop_map(Step::Many),
        12 => any::<u16>().prop_map(Step::Deliver),
        5 => Just(Step::Serve),
        3 => (any::<u16>(), prop::bool::weighted(0.2)).prop_map(|(n, f)| Step::End(n, f)),
        1 => any::<u16>().prop_map(Step::Repeat),
        1 => (1u32..5).prop_map(Step::SetLimit),
        1 => Just(Step::Check),
        3 => Just(Step::Idle),
        3 => Just(Step::Retire),
    ]
}

fn walk(limit: u32, steps: &[Step], priorities: bool) -> Result<World, String> {
    let mut world = World::new();
    let (mut n, mut top) = (0, limit);
    for step in steps {
        match step {
            Step::Submit(p) => {
                n += 1;
                world.submit(n, if priorities { *p } else { 0 }, Some(limit));
            }
            Step::Many(count) => {
                for _ in 0..*count {
                    n += 1;
                    world.submit(n, 0, Some(limit));
                }
            }
            Step::Deliver(k) => {
                for i in 0..20 {
                    let sources: Vec<_> = world.outbox.keys().copied().collect();
                    if let Some(s) = sources.get((usize::from(*k) + i * 7) % sources.len().max(1)) {
                        world.deliver(*s);
                    }
                }
            }
            Step::Serve => world.serve_gate(),
            Step::End(k, forced) => {
                let ids: Vec<_> = world.jobs.keys().copied().collect();
                let runs = ids.iter().find(|i| world.jobs[*i].0 == Job::Runs).copied();
                let any = ids.get(usize::from(*k) % ids.len().max(1)).copied();
                let id = if k % 2 == 0 { runs.or(any) } else { any };
                id.into_iter().for_each(|id| world.end(id, *forced));
            }
            Step::Repeat(k) => {
                // The same ask again, and a release of somebody who may not hold anything.
                let id = job(u32::from(*k) % (n + 1));
                if let (Some((what, priority)), true) =
                    (world.jobs.get(&id).copied(), world.state.is_some())
                {
                    let said = Said::Ask { name: "g".into(), job: id, priority, limit: None };
                    world.mail(mail::ASK, Body::json(&said));
                    if what == Job::Over {
                        world.mail(
                            mail::RELEASE,
                            Body::json(&Said::Release { job: id, paused: false }),
                        );
                    }
                }
            }
            Step::SetLimit(limit) => {
                if world.state.is_some() {
                    top = top.max(*limit);
                    let (name, by) = ("g".into(), "ann".into());
                    world.mail(
                        mail::SET,
                        Body::json(&Said::Set { name, limit: *limit, by, by_operator: true }),
                    );
                }
            }
            Step::Check => world.check_timer(),
            Step::Idle => world.idle_timer(),
            Step::Retire => world.retire(),
        }
        world.check(top)?;
    }
    let mut turn = 0;
    world.settle(|n| {
        turn += 1;
        turn % n
    });
    world.check(top)?;
    Ok(world)
}

/// Ends whoever runs until nobody is left; forced ends are found by the check.
fn drain(world: &mut World) -> Result<(), String> {
    for round in 0.. {
        world.settle(|n| round % n);
        world.check(LIMIT_MAX)?;
        let open: Vec<_> = world.jobs.iter().filter(|j| j.1.0 != Job::Over).map(|j| *j.0).collect();
        if open.is_empty() {
            break;
        }
        let runs: Vec<_> = open.iter().filter(|i| world.jobs[*i].0 == Job::Runs).copied().collect();
        match runs.first() {
            Some(id) => world.end(*id, round % 5 == 0),
            None if round > 100_000 => return Err(format!("{} wait for ever", open.len())),
            None => world.check_timer(),
        }
    }
    for _ in 0..20 {
        world.check_timer();
        world.settle(|_| 0);
    }
    world.idle_timer();
    world.check(LIMIT_MAX)?;
    let state = world.state.clone().unwrap_or_default();
    if world.state.is_some() && state.set_by.is_none() && !world.is_vacant() {
        return Err("nobody stands there, and it is not vacant".into());
    }
    match (state.holders.len(), state.waiting()) {
        (0, 0) => Ok(()),
        (h, w) => Err(format!("everybody is over, and {h} hold a permit and {w} wait")),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, max_shrink_iters: 500, ..ProptestConfig::default() })]
    #[test]
    fn never_more_than_the_limit_and_never_stuck(
        limit in 1u32..4, path in prop::collection::vec(steps(), 1..60),
    ) {
        let mut world = walk(limit, &path, true).map_err(TestCaseError::fail)?;
        drain(&mut world).map_err(TestCaseError::fail)?;
    }

    #[test]
    fn who_asks_first_of_one_priority_passes_first(path in prop::collection::vec(steps(), 1..60)) {
        let mut world = walk(1, &path, false).map_err(TestCaseError::fail)?;
        drain(&mut world).map_err(TestCaseError::fail)?;
        let mut place = BTreeMap::new();
        for (i, id) in world.asked.iter().enumerate() {
            place.entry(*id).or_insert(i);
        }
        // One that is over and asks again, because an old message came twice, stands where that came; its permit comes back.
        let order: Vec<usize> = world.passed.iter().filter_map(|g| place.get(g).copied()).collect();
        let mut seen = std::collections::BTreeSet::new();
        let firsts: Vec<usize> = order.into_iter().filter(|i| seen.insert(*i)).collect();
        prop_assert!(firsts.windows(2).all(|w| w[0] < w[1]), "{firsts:?}");
    }
}

#[test]
fn the_line_goes_through_pages_and_back_in_order() {
    let mut world = World::new();
    for n in 0..1_000 {
        world.submit(n, 0, None);
        world.deliver(job(n));
        if n % 200 == 0 {
            world.serve_gate();
        }
    }
    world.settle(|_| 0);
    let state = world.state.clone().unwrap();
    assert_eq!((state.holders.len(), state.waiting(), state.limit), (1, 999, 1));
    assert!(state.last_page >= 10 && world.pages.len() >= 10, "{state:?}");
    assert_eq!(state.before(state.window[3].0), Some(3));
    drain(&mut world).unwrap();
    let order: Vec<_> = (0..1_000).map(job).collect();
    assert_eq!(world.granted, order);
    assert!(world.pages.values().all(Option::is_none), "every page is over");
}

#[test]
fn a_higher_priority_in_the_window_goes_first() {
    let mut world = World::new();
    for (n, priority) in [(0, 0), (1, 0), (2, 5), (3, 5), (4, 9)] {
        world.submit(n, priority, None);
        world.settle(|_| 0);
    }
    drain(&mut world).unwrap();
    assert_eq!(world.granted, [job(0), job(4), job(2), job(3), job(1)]);
}

#[test]
fn a_larger_limit_grants_at_once_and_a_smaller_one_takes_nothing_away() {
    let mut world = World::new();
    for n in 0..10 {
        world.submit(n, 0, Some(2));
    }
    world.settle(|_| 0);
    let set = |world: &mut World, limit| {
        let (name, by) = ("g".into(), "ann".into());
        world.mail(mail::SET, Body::json(&Said::Set { name, limit, by, by_operator: true }));
        world.settle(|_| 0);
    };
    let held = |world: &World| world.state.as_ref().unwrap().holders.len();
    assert_eq!(held(&world), 2);
    set(&mut world, 5);
    assert_eq!(held(&world), 5);
    set(&mut world, 1);
    assert_eq!(held(&world), 5);
    for left in [4, 3, 2, 1, 1, 1] {
        let one = world.state.as_ref().unwrap().holders[0].0;
        world.end(one, false);
        world.settle(|_| 0);
        assert_eq!(held(&world), left);
    }
    set(&mut world, 0);
    set(&mut world, LIMIT_MAX + 1);
    assert_eq!(world.state.as_ref().unwrap().limit, 1, "a limit that is none changes nothing");
    // What a person set is not what a job asks for.
    world.submit(77, 0, Some(9));
    world.settle(|_| 0);
    assert_eq!(world.state.as_ref().unwrap().limit, 1);
}

/// The operator's word may lie in the box when a tenant is asked whether there is one.
#[test]
fn what_an_operator_set_no_tenant_changes_also_where_both_words_are_read_at_once() {
    let mut world = World::new();
    world.submit(0, 0, Some(2));
    world.settle(|_| 0);
    let set = |world: &mut World, limit, by: &str, by_operator| {
        let (name, by) = ("g".into(), by.to_owned());
        world.mail(mail::SET, Body::json(&Said::Set { name, limit, by, by_operator }));
    };
    let state = |world: &World| {
        let state = world.state.as_ref().unwrap();
        (state.limit, state.set_by.clone().unwrap(), state.by_operator)
    };
    set(&mut world, 3, "tina", false);
    set(&mut world, 1, "ops", true);
    set(&mut world, LIMIT_MAX, "tina", false);
    world.serve_gate();
    assert_eq!(state(&world), (1, "ops".to_owned(), true));
    set(&mut world, 4, "ops", true);
    world.serve_gate();
    assert_eq!(state(&world), (4, "ops".to_owned(), true), "an operator changes it");
}

#[test]
fn a_gate_that_nobody_needs_is_vacant_and_wakes_with_the_next() {
    let mut world = World::new();
    world.submit(0, 0, Some(2));
    world.settle(|_| 0);
    assert!(world.timers.get(IDLE).is_none(), "somebody has a permit");
    world.end(job(0), false);
    world.settle(|_| 0);
    let at = Timestamp::from_micros(world.now) + limits::IDLE;
    assert!(world.timers.get(IDLE).is_some_and(|t| t.at <= at));
    world.idle_timer();
    assert!(world.is_vacant() && world.timers.is_empty());
    // A late word wakes it too, and the clock runs again.
    world.mail(mail::RELEASE, Body::json(&Said::Release { job: job(0), paused: false }));
    world.retire();
    assert_eq!(world.left, 0, "mail waits");
    world.settle(|_| 0);
    assert!(!world.is_vacant() && world.timers.get(IDLE).is_some());
    world.idle_timer();
    world.retire();
    assert_eq!((world.left, &world.state), (1, &None));
    // Its limit was what the first had asked for; now it is what the next one asks for.
    world.submit(1, 0, Some(3));
    world.settle(|_| 0);
    let state = world.state.as_ref().unwrap();
    assert!(state.holds(job(1)) && state.limit == 3 && state.granted == 1);
    world.check(3).unwrap();
}

#[test]
fn a_gate_whose_limit_a_person_set_stays() {
    let mut world = World::new();
    world.submit(0, 0, None);
    world.settle(|_| 0);
    world.end(job(0), false);
    world.settle(|_| 0);
    assert!(world.timers.get(IDLE).is_some());
    let (name, by) = ("g".into(), "ann".into());
    world.mail(mail::SET, Body::json(&Said::Set { name, limit: 2, by, by_operator: true }));
    world.settle(|_| 0);
    assert!(world.timers.is_empty(), "the clock is stopped");
    // A clock that had fired meanwhile finds nothing to do.
    let input = Input::Timer(IDLE);
    let late = Gate::decide(world.state.as_ref(), &input, &world.cx(world.gate)).unwrap();
    assert!(matches!(late.events[..], [GateEvent::GateNoted { .. }]), "{late:?}");
}

/// The pages of a former life may still be there, all of them taken: one that is found is of no use to the new line.
#[test]
fn the_pages_of_a_new_life_are_not_those_of_the_former_one() {
    let mut world = World::new();
    let many = (WINDOW_MAX + PAGE_MAX * 3) as u32;
    for life in 0..3 {
        for n in 0..many {
            world.submit(life * many + n, 0, None);
        }
        world.settle(|_| 0);
        assert!(world.state.as_ref().unwrap().paged > 0);
        drain(&mut world).unwrap();
        world.retire();
        assert_eq!((world.left, world.granted.len()), (life + 1, ((life + 1) * many) as usize));
    }
    assert!(world.pages.len() >= 9 && world.pages.values().all(Option::is_none));
    assert_ne!(first_page(job(0)), first_page(job(1)));
    assert!(first_page(job(0)) < 1 << 48);
}

#[test]
fn a_full_head_fits_its_limit() {
    let mut state = GateState { name: "n".repeat(40), limit: LIMIT_MAX, ..GateState::default() };
    state.set_by = Some("b".repeat(128));
    let at = Timestamp::from_micros(1_709_210_096_123_456);
    for n in 0..LIMIT_MAX {
        state.holders.push(tenure_jobs::gate::Holder(job(n), at, 1_000));
    }
    for n in 0..WINDOW_MAX as u32 {
        state.window.push(Waiter(job(n), -32_768, at));
    }
    (state.first_page, state.last_page, state.paged) = (1 << 48, 1 << 48, 1 << 40);
    state.fetching = Some((1 << 48, 80));
    let size = encode_state::<Gate>(&state).len();
    assert!(size + 48 <= kernel_limits::HEAD_STATE_BYTES_MAX, "{size}");
}

#[test]
fn a_forced_end_without_a_word_is_found_by_the_check() {
    let mut world = World::new();
    for n in 0..2 {
        world.submit(n, 0, None);
        world.settle(|_| 0);
    }
    world.end(job(0), true);
    world.settle(|_| 0);
    assert_eq!(world.granted, [job(0)]);
    world.check_timer();
    world.settle(|_| 0);
    assert_eq!(world.granted, [job(0), job(1)]);
    let asks = world.state.as_ref().unwrap().holders[0].2;
    world.check_timer();
    world.settle(|_| 0);
    assert_eq!(world.state.as_ref().unwrap().holders[0].2, asks + 1, "who is there keeps it");
}

#[test]
fn the_walk_notices_jobs_that_never_release() {
    let mut world = World::new();
    world.deaf = true;
    for n in 0..3 {
        world.submit(n, 0, None);
        world.settle(|_| 0);
    }
    world.end(job(0), false);
    world.settle(|_| 0);
    let state = world.state.as_ref().unwrap();
    assert!(state.holds(job(0)) && state.waiting() == 2, "without a release nobody goes on");
}

#[test]
fn the_tables_are_sound() {
    let machines = Machines::kernel().with::<Gate>().with::<GatePage>();
    assert!(machines.get("gate").is_some() && machines.get("gate_page").is_some());
    assert_ne!(page_id(gate_id("t", "g"), 1), page_id(gate_id("t", "h"), 1));
}
