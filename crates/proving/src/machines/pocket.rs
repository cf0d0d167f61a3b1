//! A world in a pocket: the smallest store, one thread, and a due loop and a deliverer of a few lines
//! each, driven step by step in an order drawn from a seed. For the random walks of this folder.

use crate::{dice::Dice, model::Model};
use std::{collections::BTreeMap, time::Duration};
use tenure_engine::checkers::check_head;
use tenure_kernel::{
    commit::{Birth, Commit, CommitAnswer, Expect, TenureChange},
    head::{Head, lane_of},
    housekeeping,
    ids::{CommitId, EntityId, MailId},
    judge::Judge,
    limits,
    machine::{Cx, Draft, Input, Machines},
    mail::{MailAnswer, NewMail, kinds},
    outbox::{Carrier, Delivery, DeliveryAnswer, Handover, Target},
    sessions::{Opening, events, lane_id},
    store::{Answer, Op},
    stream::{Body, NewEvent},
    table::Class,
    time::Timestamp,
    verify,
};

pub struct Pocket {
    pub store: Model,
    pub machines: Machines,
    pub session: EntityId,
    dice: Dice,
    lane_epochs: BTreeMap<u16, u64>,
}

impl Default for Pocket {
    fn default() -> Self {
        Self::seeded(1)
    }
}

impl Pocket {
    pub fn seeded(seed: u64) -> Self {
        let machines = super::machines();
        let store = Model::new(Judge::new(machines.tables()));
        let session = EntityId::fixed(200, 1);
        let dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
        let mut pocket = Pocket { store, machines, session, dice, lane_epochs: BTreeMap::new() };
        let opening =
            Opening { name: "p".into(), role: "server".into(), lease_ms: 1_000, executor: None };
        let event = NewEvent::new(events::OPENED, Body::json(&opening));
        let mut open =
            Commit::new(pocket.commit_id(), session, Expect::Absent(birth("worker")), vec![event]);
        open.tenure = TenureChange::Open(opening);
        pocket.commit_ok(open);
        for lane in 0..limits::LANES {
            let event = NewEvent::new("lane_created", Body::Inline(vec![]));
            let id = pocket.commit_id();
            let made = Commit::new(id, lane_id(lane), Expect::Absent(birth("lane")), vec![event]);
            pocket.commit_ok(made);
            let epoch = pocket.claim(lane_id(lane)).epoch;
            pocket.lane_epochs.insert(lane, epoch);
        }
        pocket
    }

    pub fn random(&mut self) -> u64 {
        self.dice.draw()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        self.dice.pick(from)
    }

    pub fn commit_id(&mut self) -> CommitId {
        self.dice.commit_id()
    }

    pub fn commit_ok(&mut self, commit: Commit) {
        let answer = self.store.commit(&commit);
        assert!(matches!(answer, CommitAnswer::Committed(_)), "{answer:?} to {commit:?}");
    }

    pub fn claim(&mut self, entity: EntityId) -> Head {
        let op = Op::Claim {
            id: self.commit_id(),
            entity,
            session: self.session,
            lease: Duration::from_secs(1),
        };
        match self.store.apply(&[op]).remove(0) {
            Answer::Claim(Ok(head)) => *head,
            other => panic!("{other:?}"),
        }
    }

    pub fn new_id(&mut self) -> EntityId {
        self.dice.entity(self.store.now)
    }

    pub fn create(&mut self, kind: &'static str, body: &Body) -> EntityId {
        let id = self.new_id();
        let commit = self.creation(id, kind, &Input::Create(body)).expect("a machine that creates");
        self.commit_ok(commit);
        id
    }

    /// A cancel for an id that does not exist.
    pub fn cancel_unborn(&mut self, id: EntityId, kind: &'static str) {
        let commit = self.creation(id, kind, &Input::CancelUnborn).expect("it is born cancelled");
        self.commit_ok(commit);
    }

    fn creation(&mut self, id: EntityId, kind: &str, input: &Input<'_>) -> Option<Commit> {
        let core = self.machines.get(kind).expect("a known kind").clone();
        let cx = Cx { id, now: self.store.now, version: 0, status: None, changed_at: None };
        let draft = core.decide(None, input, &cx).expect("decided")?;
        let birth = self.machines.birth(kind, "t", &draft.placement).expect("a known kind");
        Some(draft.into_commit(self.commit_id(), id, Expect::Absent(birth)))
    }

    pub fn mail(&mut self, to: EntityId, id: &str, kind: &'static str, body: Body) -> MailAnswer {
        let mail = NewMail { to, id: MailId(id.to_owned()), kind: kind.into(), body };
        match self.store.apply(&[Op::Mail(mail)]).remove(0) {
            Answer::Mail(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    /// What the due loop does for one entity without a holder. Says whether there was anything to do.
    pub fn serve(&mut self, id: EntityId) -> bool {
        let head = self.store.heads[&id].clone();
        if head.class() == Class::Final || head.holder.is_some() {
            return false;
        }
        if head.must_end_by.is_some_and(|end| end <= self.store.now) {
            self.must_end(id);
            return true;
        }
        if head.has_mail() {
            let unread: Vec<_> = self.store.mail[&id]
                .iter()
                .filter(|m| m.seq > head.mail_read)
                .take(limits::MAIL_PER_DECISION_MAX)
                .cloned()
                .collect();
            self.decide(&head, &Input::Mail(&unread));
            return true;
        }
        let fired = head.timers.fired(self.store.now).first().map(|t| t.name.to_string());
        if let Some(name) = &fired {
            self.decide(&head, &Input::Timer(name));
        }
        fired.is_some()
    }

    pub fn must_end(&mut self, id: EntityId) {
        let head = self.store.heads[&id].clone();
        self.decide(&head, &Input::MustEnd);
        assert!(self.is_final(id), "must_end_by has to end it");
    }

    /// Ends the tenure over the holder's head.
    pub fn reclaim(&mut self, id: EntityId) {
        let head = self.store.heads[&id].clone();
        self.decide(&head, &Input::TenureEnded("lapsed"));
        assert!(self.store.heads[&id].holder.is_none());
    }

    pub fn decide(&mut self, head: &Head, input: &Input<'_>) {
        let core = self.machines.get(head.kind()).expect("a known kind").clone();
        let cx = Cx {
            id: head.id,
            now: self.store.now,
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        };
        let draft = core.decide(Some(head), input, &cx).expect("decided");
        let draft = draft.expect("every input of these machines is answered with an event");
        self.commit_draft(head, draft);
    }

    pub fn commit_draft(&mut self, head: &Head, draft: Draft) {
        let (epoch, version) = (head.epoch, head.version);
        let expect = Expect::Overrule { epoch, version };
        let commit = draft.into_commit(self.commit_id(), head.id, expect);
        match self.store.commit(&commit) {
            CommitAnswer::Committed(_) => {}
            // More mail came than one decision takes: the next one reads on.
            CommitAnswer::MoreMail { .. } => self.read_some(head),
            other => panic!("{other:?} to {commit:?}"),
        }
    }

    /// An end that must read all mail first, when there is more than one decision takes: what the
    /// loop does is to hand over a larger batch.
    fn read_some(&mut self, head: &Head) {
        let unread: Vec<_> =
            self.store.mail[&head.id].iter().filter(|m| m.seq > head.mail_read).cloned().collect();
        self.decide(head, &Input::Mail(&unread));
    }

    /// Sources with messages.
    fn sources(&self) -> Vec<EntityId> {
        let mut sources: Vec<_> = self.store.outbox.keys().map(|id| id.source).collect();
        sources.dedup();
        sources
    }

    /// Delivers the oldest message of a source.
    pub fn deliver_first(&mut self, source: EntityId) {
        let Some(posted) = self.store.outbox.values().find(|p| p.id.source == source).cloned()
        else {
            return;
        };
        let message = &posted.message;
        let (kind, body) = (message.kind.clone(), message.body.clone());
        let with = match &message.to {
            Target::Create { id, kind: of } if !self.store.heads.contains_key(id) => {
                let commit = self.creation(*id, of, &Input::Create(&message.body));
                Handover::Create(Box::new(commit.expect("it creates")))
            }
            Target::Create { id, .. } | Target::Mail(id) => Handover::Mail { to: *id, kind, body },
            Target::Wire(_) => Handover::Nothing,
        };
        let is_creation = matches!(message.to, Target::Create { .. });
        let lane_epoch = self.lane_epochs[&lane_of(source)];
        let op =
            Op::Deliver(Box::new(Delivery { id: posted.id, by: Carrier::Lane(lane_epoch), with }));
        let again = op.clone();
        match self.store.apply(&[op]).remove(0) {
            Answer::Deliver(DeliveryAnswer::Delivered { .. }) => {}
            Answer::Deliver(DeliveryAnswer::TargetFinal) if is_creation => {
                // The child was cancelled before it was born: its creator is told, or it would wait.
                let Target::Create { id, .. } = &message.to else { return };
                let body = Body::json(&serde_json::json!({ "to": id, "why": "final" }));
                self.mail(source, &format!("returned/{}", posted.id), kinds::RETURNED, body);
            }
            Answer::Deliver(DeliveryAnswer::TargetFinal) => {}
            Answer::Deliver(DeliveryAnswer::Unanswered) => {
                let kind = &message.kind;
                let (Target::Create { id, .. } | Target::Mail(id)) = &message.to else { return };
                let body = serde_json::json!({ "to": id, "kind": kind, "why": "it is over" });
                let (kind, body) = (kinds::RETURNED.into(), Body::json(&body));
                let with = Handover::Mail { to: source, kind, body };
                let op = Op::Deliver(Box::new(Delivery {
                    id: posted.id,
                    by: Carrier::Lane(lane_epoch),
                    with,
                }));
                let answer = self.store.apply(&[op]).remove(0);
                assert!(
                    matches!(
                        answer,
                        Answer::Deliver(
                            DeliveryAnswer::Delivered { .. } | DeliveryAnswer::TargetFinal
                        )
                    ),
                    "{answer:?}"
                );
            }
            other => panic!("{other:?} to {posted:?}"),
        }
        let second = self.store.apply(&[again]).remove(0);
        assert_eq!(second, Answer::Deliver(DeliveryAnswer::Gone), "exactly once");
    }

    pub fn deliver_all(&mut self) {
        while let Some(source) = self.sources().first().copied() {
            self.deliver_first(source);
        }
    }

    /// One thing that could happen next: a delivery, a decision, or time.
    pub fn random_step(&mut self) {
        match self.random() % 8 {
            0..=3 => {
                let sources = self.sources();
                if let Some(source) = self.pick(&sources) {
                    self.deliver_first(source);
                }
            }
            4..=6 => {
                let waiting: Vec<_> = self
                    .store
                    .heads
                    .values()
                    .filter(|h| h.due.is_some_and(|due| due <= self.store.now))
                    .filter(|h| h.holder.is_none())
                    .map(|h| h.id)
                    .collect();
                if let Some(one) = self.pick(&waiting) {
                    self.serve(one);
                }
            }
            _ => self.pass(Duration::from_millis(100)),
        }
    }

    pub fn pass(&mut self, time: Duration) {
        self.store.now = self.store.now + time;
    }

    /// Writes a seal, as the shell of a long-lived entity does.
    pub fn seal(&mut self, id: EntityId) {
        let head = self.store.heads[&id].clone();
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let commit = Commit::new(self.commit_id(), id, expect, vec![housekeeping::seal(&head)]);
        self.commit_ok(commit);
    }

    pub fn of_kind(&self, kind: &str) -> Vec<EntityId> {
        self.store.heads.values().filter(|h| h.kind() == kind).map(|h| h.id).collect()
    }

    pub fn is_final(&self, id: EntityId) -> bool {
        self.store.heads.get(&id).is_some_and(|h| h.class() == Class::Final)
    }

    /// Laws 2, 3 and 4 over everything there is.
    pub fn check(&self) {
        let mut found = Vec::new();
        for (id, head) in &self.store.heads {
            let records = &self.store.streams[id];
            check_head(head, self.store.now.max(Timestamp::ZERO), &mut found);
            if let Err(fault) = verify::verify(head, records, &self.store.judge.tables) {
                found.push(fault.to_string());
            }
            let complete = records.first().is_some_and(|r| r.first == 1);
            if let Some(core) = self.machines.get(head.kind()).filter(|_| complete) {
                assert_eq!(
                    core.replay(records, &tenure_kernel::machine::Blobs::new()).expect("replayed"),
                    head.state,
                    "{}",
                    head.kind()
                );
            }
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }
}

fn birth(kind: &'static str) -> Birth {
    Birth { kind, tenant: String::new(), queue: String::new(), priority: 0 }
}
