//! The job machine against its laws, on random walks: every decision is accepted by the judge, the head's state
//! is what the events say, and no state is a dead end.

use proptest::prelude::*;
use serde_json::{Value, json};
use std::time::Duration;
use tenure_jobs::{
    Job, JobEvent, JobState,
    decide::{AskMail, ChildMail, ResolveMail, SignalMail, create, mail, timers},
    gate,
    model::{GATE_GIVEN_BACK, HeldBack, NewJob, OpenChild, OwnEvent, TABLE, Terms},
    terms::GateTerm,
};
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, MailStance},
    head::Head,
    ids::{CommitId, EntityId, MailId, SessionId},
    judge::Judge,
    machine::{Cx, Decision, Input, Machine, Machines, decode_state, draft, encode_state},
    mail::{Mail, judge_mail, kinds},
    stream::{Body, NewEvent},
    table::{Claimable, Class},
    time::Timestamp,
    timers::TimerChange,
};
use tenure_steps::{
    events::{CallOutcome, StepEvent, StepId, TimerWhy, ValueKind, Verdict, WaitKind, WaitOutcome},
    tool::Class as ToolClass,
};

/// One thing that can happen.
#[derive(Clone, Debug)]
enum Happens {
    Claim,
    Release,
    HolderLost,
    Start(u8, ToolClass),
    Finish(u8),
    Unknown(u8),
    Open(u8),
    Sleep(u8),
    Child(u8),
    Park,
    Attention,
    Signal(u8, WaitOutcome),
    ChildEnds(u8, bool),
    Pause,
    Resume,
    Resolve(u8, Verdict),
    Evidence,
    Timer(u8),
    Progress,
    Recheck,
    Cancel,
    MustEnd,
    Garbage,
    StartTime,
    Granted,
    GateClosed,
}

fn happens() -> impl Strategy<Value = Happens> {
    let n = 0u8..4;
    let class = prop::sample::select(vec![ToolClass::Idempotent, ToolClass::Irreversible]);
    let verdict =
        prop::sample::select(vec![Verdict::Happened, Verdict::DidNotHappen, Verdict::Abandoned]);
    let outcome = prop::sample::select(vec![
        WaitOutcome::Signalled,
        WaitOutcome::Approved,
        WaitOutcome::Rejected,
    ]);
    prop_oneof![
        6 => Just(Happens::Claim),
        1 => Just(Happens::Release),
        2 => Just(Happens::HolderLost),
        6 => (n.clone(), class).prop_map(|(n, c)| Happens::Start(n, c)),
        4 => n.clone().prop_map(Happens::Finish),
        2 => n.clone().prop_map(Happens::Unknown),
        4 => n.clone().prop_map(Happens::Open),
        3 => n.clone().prop_map(Happens::Sleep),
        3 => n.clone().prop_map(Happens::Child),
        5 => Just(Happens::Park),
        1 => Just(Happens::Attention),
        5 => (n.clone(), outcome).prop_map(|(n, o)| Happens::Signal(n, o)),
        3 => (n.clone(), any::<bool>()).prop_map(|(n, b)| Happens::ChildEnds(n, b)),
        2 => Just(Happens::Pause),
        2 => Just(Happens::Resume),
        3 => (n.clone(), verdict).prop_map(|(n, v)| Happens::Resolve(n, v)),
        1 => Just(Happens::Evidence),
        3 => n.prop_map(Happens::Timer),
        1 => Just(Happens::Progress),
        1 => Just(Happens::Recheck),
        1 => Just(Happens::Cancel),
        1 => Just(Happens::MustEnd),
        1 => Just(Happens::Garbage),
        3 => Just(Happens::StartTime),
        4 => Just(Happens::Granted),
        1 => Just(Happens::GateClosed),
    ]
}

fn terms() -> impl Strategy<Value = Terms> {
    let gate = Some(Box::new(GateTerm { name: "g".into(), limit: None, id: None }));
    let (plain, start_in_ms) = (Terms::default(), Some(90_000));
    prop::sample::select(vec![
        plain.clone(),
        Terms { start_in_ms: Some(5), ..plain.clone() },
        Terms { gate: gate.clone(), ..plain.clone() },
        Terms { start_in_ms, gate, ..plain },
    ])
}

struct Walk {
    judge: Judge,
    head: Head,
    replayed: JobState,
    now: i64,
    commits: u64,
    asked: usize,
    released: usize,
    /// How often its turn at the gate came in a pause.
    given_back: usize,
}

fn step(n: u8) -> StepId {
    StepId(format!("{}", n + 1))
}

impl Walk {
    fn new(terms: Terms) -> Self {
        let judge =
            Judge::new(Machines::kernel().with::<Job>().with::<tenure_jobs::call::Call>().tables());
        let new = NewJob {
            flow: "f".into(),
            version: 1,
            input: json!(null),
            priority: 0,
            must_end_in_ms: 1_000_000_000,
            takeovers_max: 3,
            terms: terms.of_tenant("t").unwrap(),
            scheduled: None,
            parent: None,
            retry_of: None,
            forked_from: None,
            by: None,
        };
        let id = EntityId::fixed(9, 9);
        let decision = create(new, id);
        let mut state = JobState::default();
        decision.events.iter().for_each(|e| Job::apply(&mut state, e));
        let events =
            decision.events.iter().map(|e| NewEvent::new(Job::name(e), Body::json(e))).collect();
        let birth =
            Birth { kind: TABLE.kind, tenant: "t".into(), queue: "f@1".into(), priority: 0 };
        let mut commit = Commit::new(CommitId::new(0, 0), id, Expect::Absent(birth), events);
        commit.state = Some(encode_state::<Job>(&state));
        commit.must_end_in = decision.must_end_in;
        commit.timers = decision.timers;
        let asked = decision.messages.iter().filter(|m| m.kind == gate::mail::ASK).count();
        let now = 1_000_000;
        let written = judge.commit(None, &commit, Timestamp::from_micros(now)).unwrap();
        let (head, released, given_back) = (written.head, 0, 0);
        Walk { judge, head, replayed: state, now, commits: 1, asked, released, given_back }
    }

    fn state(&self) -> JobState {
        decode_state::<Job>(&self.head.state).unwrap()
    }

    fn held(&self) -> bool {
        self.head.holder.is_some()
    }

    fn cx(&self) -> Cx {
        Cx {
            id: self.head.id,
            now: Timestamp::from_micros(self.now),
            version: self.head.version,
            status: Some(self.head.status),
            changed_at: Some(self.head.changed_at),
        }
    }

    /// What the due loop, or a holder, would commit.
    fn commit(&mut self, decision: Decision<JobEvent>, input: &Input<'_>, park: bool) {
        self.now += 1_000;
        let events = decision.events.clone();
        let sent = |kind: &str| decision.messages.iter().filter(|m| m.kind == kind).count();
        let (asked, released) = (sent(gate::mail::ASK), sent(gate::mail::RELEASE));
        let drafted = draft::<Job>(Some(&self.head), self.state(), decision, input);
        let drafted =
            drafted.unwrap_or_else(|e| panic!("{input:?} in {:?}: {e}", self.head.status));
        let Some(drafted) = drafted else { return };
        let (epoch, version) = (self.head.epoch, self.head.version);
        let expect = match (self.held(), input) {
            (true, Input::Mail(_)) => Expect::Holder { epoch, version },
            (true, _) if park => Expect::Holder { epoch, version },
            (true, _) => Expect::Overrule { epoch, version },
            (false, _) => Expect::Nobody { epoch, version },
        };
        self.commits += 1;
        let mut commit = drafted.into_commit(CommitId::new(1, self.commits), self.head.id, expect);
        if park {
            commit.mail = MailStance::ReadAll(self.head.mail_count);
        }
        let now = Timestamp::from_micros(self.now);
        let written = self.judge.commit(Some(&self.head), &commit, now);
        let written = written.unwrap_or_else(|answer: CommitAnswer| {
            panic!("{input:?} in {:?} was answered {answer:?}", self.head.status)
        });
        events.iter().for_each(|e| Job::apply(&mut self.replayed, e));
        let gave_back = |e: &&JobEvent| matches!(e, JobEvent::Own(OwnEvent::JobParked { why, .. }) if why == GATE_GIVEN_BACK);
        self.given_back += events.iter().filter(gave_back).count();
        self.head = written.head;
        self.asked += asked;
        self.released += released;
    }

    /// The loop's decision about an input.
    fn decide(&mut self, input: &Input<'_>) {
        let decision = Job::decide(Some(&self.state()), input, &self.cx()).unwrap();
        self.commit(decision, input, false);
    }

    fn mail(&mut self, kind: &str, body: Body) {
        let now = Timestamp::from_micros(self.now);
        judge_mail(Some(&mut self.head), false, true, now);
        let seq = self.head.mail_count;
        if self.head.class() == Class::Final {
            return;
        }
        let mail = Mail { seq, id: MailId(format!("m{seq}")), kind: kind.into(), body, at: now };
        if self.held() {
            // A holder asks the same function and records what it says, except what ends or parks.
            use tenure_jobs::decide::{MailSays, read_mail};
            let note = |what: &str| vec![OwnEvent::MailNoted { what: what.into() }.into()];
            let events = match read_mail(&self.state(), &mail, self.head.id) {
                MailSays::Events(events) => events,
                MailSays::Pause(_) if self.head.status.name() == "running" => {
                    vec![OwnEvent::PauseAsked { by: None }.into()]
                }
                _ => note("the holder sees to it"),
            };
            let cancelling = self.head.status.name() == "cancelling";
            let resumes = |e: &JobEvent| matches!(e, JobEvent::Own(OwnEvent::JobResumed { .. }));
            let events = if cancelling && events.iter().any(resumes) { note("no") } else { events };
            let decision = Decision { events, ..Decision::default() };
            self.commit(decision, &Input::Mail(&[mail]), false);
        } else {
            self.decide(&Input::Mail(&[mail]));
        }
    }

    fn hold(&mut self, event: impl Into<JobEvent>) {
        self.commit(Decision::event(event.into()), &Input::Mail(&[]), false);
    }

    fn park(&mut self, event: OwnEvent) {
        let decision = Decision::event(event.into()).timer(TimerChange::clear(timers::PROGRESS));
        self.commit(decision, &Input::TenureEnded("parked"), true);
    }

    fn go(&mut self, what: &Happens) {
        let (state, status, held) = (self.state(), self.head.status.name(), self.held());
        let running = held && status == "running";
        let open = |n: u8| state.calls.iter().find(|c| c.step == step(n)).cloned();
        match what {
            Happens::Claim if ["queued", "undoing"].contains(&status) => {
                let (now, id) = (Timestamp::from_micros(self.now), CommitId::new(2, self.commits));
                let session = SessionId::fixed(8, 1);
                let lease = Duration::from_secs(15);
                self.commits += 1;
                let written = self.judge.claim(&self.head, session, lease, false, id, now).unwrap();
                self.head = written.head;
            }
            Happens::Claim if !held => {
                let (now, id) = (Timestamp::from_micros(self.now), CommitId::new(2, 0));
                let session = SessionId::fixed(8, 1);
                let lease = Duration::from_secs(15);
                let by_name = self.judge.claim(&self.head, session, lease, true, id, now);
                assert!(by_name.is_err(), "{status} was claimed");
            }
            Happens::Release if running => {
                self.commit(Decision::default(), &Input::TenureEnded("released"), true);
            }
            Happens::HolderLost if held => self.decide(&Input::TenureEnded("holder_check")),
            Happens::Progress if running => {
                self.commits += 1;
                self.decide(&Input::Timer(timers::PROGRESS));
            }
            Happens::Start(n, class) if running && open(*n).is_none() && state.calls.len() < 3 => {
                self.hold(StepEvent::ToolInvocationStarted {
                    step: step(*n),
                    tool: "t".into(),
                    key: format!("k{n}"),
                    ordinal: 0,
                    call: 1,
                    class: *class,
                    arguments_hash: "h".into(),
                    arguments: None,
                    timeout_ms: 10,
                    place: String::new(),
                    undoable: *n % 2 == 0,
                });
            }
            Happens::Finish(n) if held => {
                if let Some(call) = open(*n) {
                    self.hold(StepEvent::ToolInvocationFinished {
                        step: call.step,
                        key: call.key,
                        call: call.call,
                        outcome: CallOutcome::Success,
                        result: Some(json!(1)),
                        error: None,
                    });
                }
            }
            Happens::Unknown(n) if held => {
                if let Some(c) = open(*n).filter(|c| c.unknown.is_none()) {
                    let why = "?".to_owned();
                    self.hold(StepEvent::EffectUnknown {
                        step: c.step,
                        key: c.key,
                        call: c.call,
                        why,
                    });
                }
            }
            Happens::Open(n) if running && state.waits.len() < 4 => {
                let kind = if n % 2 == 0 { WaitKind::Signal } else { WaitKind::Human };
                self.hold(StepEvent::WaitOpened {
                    step: StepId(format!("w{n}")),
                    kind,
                    key: format!("key{n}"),
                    within_ms: None,
                    note: None,
                    place: String::new(),
                });
            }
            Happens::Sleep(n) if running && state.timers.len() < 4 => {
                let why = if n % 2 == 0 { TimerWhy::Sleep } else { TimerWhy::Retry };
                let step = StepId(format!("t{n}"));
                self.hold(StepEvent::TimerSet {
                    step,
                    why,
                    after_ms: 5,
                    place: String::new(),
                    limit: None,
                });
            }
            Happens::Child(n) if running => {
                let ordinal = u32::from(*n);
                if state.children.iter().all(|c| c.0 != ordinal) {
                    self.hold(StepEvent::ChildStarted {
                        step: StepId(format!("c{n}")),
                        ordinal,
                        child: JobState::child_id(self.head.id, ordinal),
                        flow: "f".into(),
                        arguments_hash: "h".into(),
                        place: String::new(),
                        undoable: n % 2 == 0,
                    });
                }
            }
            Happens::Park if running && state.calls.is_empty() => {
                let event = match (state.pausing, state.timers.first()) {
                    (true, _) => OwnEvent::JobParked { why: "pause".into(), by: None },
                    (_, Some(t)) if t.why == TimerWhy::Retry => {
                        OwnEvent::JobRetrying { step: t.step.clone() }
                    }
                    _ => OwnEvent::JobWaiting { keys: Vec::new() },
                };
                self.park(event);
            }
            Happens::Attention if running => {
                let (reason, why) = ("unknown_outcome".to_owned(), "look".to_owned());
                let (step, again_in_ms) = (None, Some(5));
                self.park(OwnEvent::JobAttention(tenure_jobs::model::Attention {
                    reason,
                    step,
                    why,
                    again_in_ms,
                }));
            }
            Happens::Signal(n, outcome) => {
                let (key, payload) = (format!("key{n}"), json!({"n": n}));
                let body = SignalMail { key, outcome: *outcome, payload, by: None };
                self.mail(mail::SIGNAL, Body::json(&body));
            }
            Happens::ChildEnds(n, well) => {
                let status = if *well { "completed" } else { "failed" }.to_owned();
                let (output, error) = (well.then(|| json!(null)), None);
                let body = ChildMail { ordinal: u32::from(*n), status, output, error };
                self.mail(kinds::CHILD_ENDED, Body::json(&body));
            }
            Happens::Pause => self.mail(mail::PAUSE, Body::json(&AskMail::default())),
            Happens::Resume => self.mail(mail::RESUME, Body::json(&AskMail::default())),
            Happens::Resolve(n, verdict) => {
                let (step, verdict) = (step(*n), *verdict);
                let body =
                    ResolveMail { step, of: None, verdict, result: json!(2), by: None, note: None };
                self.mail(mail::RESOLVE, Body::json(&body));
            }
            Happens::Evidence => self.mail(kinds::EVIDENCE, Body::json(&json!({"key": "k0"}))),
            Happens::Garbage => self.mail("noise", Body::Inline(b"{".to_vec())),
            Happens::Timer(n) if !held => {
                let names = [format!("t:t{n}"), format!("w:w{n}")];
                self.decide(&Input::Timer(&names[usize::from(n % 2)]));
            }
            Happens::StartTime if !held => self.decide(&Input::Timer(timers::START)),
            Happens::Granted => self.mail(gate::mail::GRANTED, Body::json(&json!({}))),
            Happens::GateClosed => {
                let body = json!({ "kind": gate::mail::ASK, "why": "it is over" });
                self.mail(kinds::RETURNED, Body::json(&body));
            }
            Happens::Recheck if !held => self.decide(&Input::Timer(timers::RECHECK)),
            Happens::Cancel if !held => {
                self.mail(kinds::CANCEL, Body::json(&AskMail::default()));
                let (status, to_undo) = (self.head.status.name(), self.state().has_to_undo());
                // A worker has to say what became of a call that would have to be undone, and to undo what happened.
                let expected = match status {
                    "undoing" => to_undo,
                    other => other != "cancelled" || !to_undo,
                };
                let known = ["cancelled", "cancelling", "undoing"].contains(&status);
                assert!(known && expected, "cancel led to {status}: {:?}", self.state().calls);
            }
            Happens::MustEnd => {
                self.decide(&Input::MustEnd);
                assert_eq!(self.head.class(), Class::Final);
            }
            _ => {}
        }
    }

    fn check(&self) {
        assert_eq!(self.state(), self.replayed, "the head's state is what the events give");
        let status = self.head.status;
        if self.head.class() == Class::Open {
            assert!(self.head.must_end_by.is_some() && self.head.due.is_some(), "open means due");
        }
        let held_back = self.state().held_back;
        if held_back != HeldBack::No && self.head.class() == Class::Open {
            let stands = ["waiting", "parked"].contains(&status.name());
            assert!(stands, "held back by {held_back:?}, and {}", status.name());
        }
        if held_back == HeldBack::Start && self.head.class() == Class::Open {
            assert!(self.head.timers.get(timers::START).is_some(), "nothing will start it");
        }
        let gated = self.state().terms.gate.is_some() && held_back != HeldBack::Start;
        let stands = gated && held_back != HeldBack::Resume && self.head.class() != Class::Final;
        // Once, and once more for every time that its turn came in a pause.
        let passed_over = usize::from(gated) * self.given_back;
        let asks = usize::from(gated) + passed_over - usize::from(held_back == HeldBack::Resume);
        assert_eq!(self.asked, asks, "a gate is asked once");
        let released = self.asked - usize::from(stands);
        assert_eq!(self.released, released, "and released as often, when it does not stand there");
        if self.held() {
            assert!(["running", "cancelling"].contains(&status.name()));
        } else {
            assert_ne!(status.name(), "running", "running without a holder");
        }
        let blocked = ["waiting", "parked", "retrying", "attention"].contains(&status.name());
        assert!(!blocked || status.row().claimable == Claimable::No);
        assert!(
            !self.state().paused
                || self.head.class() == Class::Final
                || status.name() == "parked"
                || status.name() == "cancelling"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_500, max_shrink_iters: 4_000, ..ProptestConfig::default() })]
    #[test]
    fn every_walk_keeps_the_laws_and_can_end(
        terms in terms(), path in prop::collection::vec(happens(), 1..60)
    ) {
        let mut walk = Walk::new(terms);
        walk.check();
        for what in &path {
            if walk.head.class() == Class::Final {
                break;
            }
            walk.go(what);
            walk.check();
        }
        if walk.head.class() == Class::Open {
            walk.decide(&Input::MustEnd);
        }
        prop_assert_eq!(walk.head.class(), Class::Final);
    }
}

#[test]
fn a_cancel_that_comes_before_the_job_makes_it_cancelled() {
    let cx = Cx {
        id: EntityId::fixed(9, 9),
        now: Timestamp::ZERO,
        version: 0,
        status: None,
        changed_at: None,
    };
    let decision = Job::decide(None, &Input::CancelUnborn, &cx).unwrap();
    assert_eq!(Job::name(&decision.events[0]), "job_cancelled");
    let garbage = Body::Inline(br#"{"flow": 7}"#.to_vec());
    let refused = Job::decide(None, &Input::Create(&garbage), &cx).unwrap_err();
    assert!(refused.0.contains("can not be made from this"), "{refused}");
}

#[test]
fn a_null_that_is_there_is_a_value() {
    let state =
        JobState { input: Some(Value::Null), output: Some(Value::Null), ..JobState::default() };
    assert_eq!(decode_state::<Job>(&encode_state::<Job>(&state)).unwrap(), state);
}

/// A box with a cancel and the ends of both children behind it, read at once: nothing is left to wait for.
#[test]
fn what_lies_behind_a_cancel_is_read_with_it() {
    let id = EntityId::fixed(1, 1);
    let mut state = JobState::default();
    for ordinal in 0..2 {
        let step = StepId(format!("{ordinal}.1"));
        let (child, flow) = (JobState::child_id(id, ordinal), "f".to_owned());
        let started = StepEvent::ChildStarted {
            step,
            ordinal,
            child,
            flow,
            arguments_hash: String::new(),
            place: String::new(),
            undoable: false,
        };
        Job::apply(&mut state, &started.into());
    }
    let ended = |ordinal| {
        let (status, output, error) = ("cancelled".to_owned(), None, None);
        (kinds::CHILD_ENDED, Body::json(&ChildMail { ordinal, status, output, error }))
    };
    let all = [(kinds::CANCEL, Body::json(&AskMail::default())), ended(0), ended(1)];
    let mails = in_order(all);
    let names = |mails: &[Mail]| -> Vec<&'static str> {
        let cx = Cx { id, now: Timestamp::ZERO, version: 3, status: None, changed_at: None };
        let decision = Job::decide(Some(&state), &Input::Mail(mails), &cx).unwrap();
        decision.events.iter().map(Job::name).collect()
    };
    let both = ["job_cancelling", "child_ended", "child_ended", "job_cancelled"];
    assert_eq!(names(&mails), both);
    assert_eq!(names(&mails[..2]), both[..2], "one child is still out");
}

/// Only the flow can say what undoes it: a worker has to tell it of the end.
#[test]
fn a_child_that_completes_although_its_parent_is_cancelled_is_undone() {
    let id = EntityId::fixed(1, 1);
    let mut state = JobState::default();
    let started = StepEvent::ChildStarted {
        step: StepId("2.1".into()),
        ordinal: 0,
        child: JobState::child_id(id, 0),
        flow: "f".into(),
        arguments_hash: String::new(),
        place: String::new(),
        undoable: true,
    };
    Job::apply(&mut state, &started.into());
    let ends_as = |status: &str| {
        let child = ChildMail { ordinal: 0, status: status.into(), output: None, error: None };
        let cancel = (kinds::CANCEL, Body::json(&AskMail::default()));
        let mails = in_order([cancel, (kinds::CHILD_ENDED, Body::json(&child))]);
        let cx = Cx { id, now: Timestamp::ZERO, version: 3, status: None, changed_at: None };
        let decision = Job::decide(Some(&state), &Input::Mail(&mails), &cx).unwrap();
        decision.events.last().map(Job::name)
    };
    assert_eq!(ends_as("completed"), Some("job_undoing"));
    assert_eq!(ends_as("cancelled"), Some("job_cancelled"));
}

/// Heads that were written before children could be undone have two places for each.
#[test]
fn an_open_child_is_read_with_and_without_the_word_about_undoing() {
    let read = |text: &str| serde_json::from_str::<OpenChild>(text).unwrap();
    let (plain, undoable) =
        (OpenChild(7, StepId("2.1".into()), false), OpenChild(7, StepId("2.1".into()), true));
    assert_eq!((read(r#"[7,"2.1"]"#), read(r#"[7,"2.1",1]"#)), (plain.clone(), undoable.clone()));
    assert_eq!(serde_json::to_string(&plain).unwrap(), r#"[7,"2.1"]"#);
    assert_eq!(serde_json::to_string(&undoable).unwrap(), r#"[7,"2.1",1]"#);
}

/// A box with these in it.
fn in_order(all: impl IntoIterator<Item = (&'static str, Body)>) -> Vec<Mail> {
    let mail = |(seq, (kind, body)): (u64, (&str, Body))| {
        let (id, kind) = (MailId(format!("m{seq}")), kind.to_owned());
        Mail { seq, id, kind, body, at: Timestamp::ZERO }
    };
    (1..).zip(all).map(mail).collect()
}

/// A step of a saga of which nobody knew whether it happened; nobody holds its job.
fn with_an_unknown_step() -> (EntityId, JobState) {
    let mut state = JobState::default();
    let (step, key) = (StepId("2".into()), "k".to_owned());
    let started = StepEvent::ToolInvocationStarted {
        step: step.clone(),
        tool: "book".into(),
        key: key.clone(),
        ordinal: 0,
        call: 1,
        class: ToolClass::Irreversible,
        arguments_hash: String::new(),
        arguments: None,
        timeout_ms: 1_000,
        place: String::new(),
        undoable: true,
    };
    Job::apply(&mut state, &started.into());
    let unknown = StepEvent::EffectUnknown { step, key, call: 1, why: "lost".into() };
    Job::apply(&mut state, &unknown.into());
    (EntityId::fixed(1, 1), state)
}

/// Only the flow can say what undoes it, and the flow has not heard of it when the cancel comes.
#[test]
fn a_step_that_a_person_says_has_happened_is_undone_by_a_cancel_right_behind_it() {
    let (id, state) = with_an_unknown_step();
    let happened = ResolveMail {
        step: StepId("2".into()),
        of: None,
        verdict: Verdict::Happened,
        result: json!({"seat": 7}),
        by: Some("ann".into()),
        note: None,
    };
    let all =
        [(mail::RESOLVE, Body::json(&happened)), (kinds::CANCEL, Body::json(&AskMail::default()))];
    let mails = in_order(all);
    let cx = Cx { id, now: Timestamp::ZERO, version: 3, status: None, changed_at: None };
    let decision = Job::decide(Some(&state), &Input::Mail(&mails), &cx).unwrap();
    let names: Vec<_> = decision.events.iter().map(Job::name).collect();
    assert_eq!(names.last(), Some(&"job_undoing"), "{names:?}");

    let mut state = state;
    decision.events.iter().for_each(|e| Job::apply(&mut state, e));
    assert_eq!(state.not_undone(), 1);
    let undo = StepEvent::ValueRecorded {
        step: StepId("3".into()),
        kind: ValueKind::Undo,
        name: "unbook".into(),
        value: json!({"of": "2", "tool": "unbook", "input": null}),
        place: String::new(),
    };
    Job::apply(&mut state, &undo.into());
    assert_eq!((state.undos, state.unheard.len()), (1, 0), "the flow has said what undoes it");
}

#[test]
fn a_job_that_ends_over_a_saga_says_how_many_steps_are_left() {
    let (id, mut state) = with_an_unknown_step();
    let (step, key) = (StepId("2".into()), "k".to_owned());
    let done = StepEvent::ToolInvocationFinished {
        step,
        key,
        call: 1,
        outcome: CallOutcome::Success,
        result: Some(json!(1)),
        error: None,
    };
    Job::apply(&mut state, &done.into());
    let cx = Cx { id, now: Timestamp::ZERO, version: 3, status: None, changed_at: None };
    let decision = Job::decide(Some(&state), &Input::MustEnd, &cx).unwrap();
    match decision.events.last() {
        Some(JobEvent::Own(OwnEvent::JobFailed(f))) => {
            assert!(f.error.ends_with("steps that were not undone: 1"), "{}", f.error);
        }
        other => panic!("{other:?}"),
    }
}

/// It would keep everybody behind it from passing, for as long as the pause takes.
#[test]
fn a_paused_job_gives_its_turn_at_the_gate_back_and_asks_again_when_it_is_resumed() {
    let gate = Some(Box::new(GateTerm { name: "g".into(), ..GateTerm::default() }));
    let mut walk = Walk::new(Terms { gate, ..Terms::default() });
    let stands = |walk: &Walk| (walk.head.status.name(), walk.state().held_back);
    let granted = |walk: &mut Walk| walk.mail(gate::mail::GRANTED, Body::json(&json!({})));
    let ask = |walk: &mut Walk, kind| walk.mail(kind, Body::json(&AskMail::default()));
    ask(&mut walk, mail::PAUSE);
    granted(&mut walk);
    assert_eq!(stands(&walk), ("parked", HeldBack::Resume));
    assert_eq!((walk.asked, walk.released), (1, 1));
    // A permit that it has no right to changes nothing.
    granted(&mut walk);
    assert_eq!((stands(&walk), walk.released), (("parked", HeldBack::Resume), 1));
    ask(&mut walk, mail::RESUME);
    assert_eq!(stands(&walk), ("waiting", HeldBack::Gate));
    assert_eq!((walk.asked, walk.released), (2, 1));
    walk.check();
    granted(&mut walk);
    assert_eq!(stands(&walk), ("queued", HeldBack::No));
    walk.check();
}
