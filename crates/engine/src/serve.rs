//! Serves one due entity: finds the first rule whose moment has come and carries out its decision.
//!
//! Order: the end (`must_end_by`), the holder's life, guards, mail, timers. Each rule has its own
//! clock: one that fails is pushed back on its own and the next is tried, so none postpones another.
//! One rule per visit; if more are due, so is the entity, and it is visited again. But what gets mail all the time would
//! never come to its timers: they are served in the same visit, after the mail.
//!
//! After an outage nobody is judged for one lease: neither holders, nor those whose silence a machine's own rules are
//! about ([`tenure_kernel::machine::Machine::judges`]). A worker renews, a tool hands its result in, and mail that waited is read. `must_end_by` is no
//! judgement and does not wait, nor do moments that somebody chose.

use crate::{config::EngineConfig, pipeline::Pipeline};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};
use tenure_kernel::{
    commit::{Commit, CommitAnswer, Expect, MailStance, TenureChange},
    error::StoreError,
    head::Head,
    housekeeping,
    ids::{EntityId, MailId},
    limits,
    machine::{Core, Cx, Draft, Input, Machines, Undecided},
    mail::{Mail, NewMail, kinds},
    store::Touch,
    stream::{Body, NewEvent},
    table::{Class, kernel_events as ke},
    time::Timestamp,
    timers::TimerChange,
};

/// What a visit did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Served {
    /// A rule fired.
    Fired {
        /// Which.
        rule: &'static str,
        /// How long after its moment.
        lag: Duration,
        /// Of a timer that is a rule of its own: which. See [`EngineConfig::timer_rules`].
        timer: Option<&'static str>,
    },
    /// A rule's decision failed.
    Failed {
        /// Which.
        rule: &'static str,
        /// The entity was marked for a person.
        marked: bool,
    },
    /// Nothing was due after all; `due` was only a lower bound.
    Nothing,
    /// Somebody else was faster.
    Overtaken,
}

/// From when on silence is judged.
#[derive(Clone, Copy, Debug)]
pub struct Judging {
    /// Of holders.
    pub holders: Timestamp,
    /// By timers of machines ([`tenure_kernel::machine::Machine::judges`]).
    pub rules: Timestamp,
}

impl From<Timestamp> for Judging {
    fn from(after: Timestamp) -> Self {
        Judging { holders: after, rules: after }
    }
}

/// A timer that is not due after all is looked at again no sooner than this, or a machine that is wrong about it
/// would keep the loop busy.
const NOT_YET_MIN: Duration = Duration::from_millis(10);

/// Serves due entities.
#[derive(Clone)]
pub struct Server {
    /// Carries the commits.
    pub pipeline: Pipeline,
    /// Decides.
    pub machines: Machines,
    /// The numbers.
    pub config: Arc<EngineConfig>,
}

/// A commit attempt that went wrong in a way that says what to do next.
enum Outcome {
    Done,
    Overtaken,
    /// It would end, and has not read everything.
    MoreMail,
    /// A timer whose moment has not come after all.
    NotYet(Timestamp),
    Failed(String),
}

impl Server {
    /// Serves one head as it was read at `now`. Silence is judged only from those moments on.
    pub async fn serve(
        &self,
        head: &Head,
        now: Timestamp,
        judging: impl Into<Judging>,
    ) -> Result<Served, StoreError> {
        let Judging { holders, rules: judge_after } = judging.into();
        let mut failed = None;
        let mut told = None;
        let mut not_yet: Option<Timestamp> = None;
        for rule in rules(head, now, self.config.segment_events) {
            let lag = now.since(rule.at);
            let name = rule.what.name();
            let timer = match &rule.what {
                What::Guard(timer) | What::Timer(timer) => {
                    self.config.timer_rule(head.kind(), timer)
                }
                _ => None,
            };
            let outcome = match rule.what {
                What::MustEnd => self.must_end(head, now).await?,
                // Nobody is judged by silence yet. A session that has ended is not silent.
                What::HolderCheck if now < holders && !self.has_ended(head).await? => {
                    self.check_again(head, holders).await?;
                    return Ok(Served::Nothing);
                }
                What::HolderCheck => match self.holder_check(head, now).await? {
                    Some(outcome) => outcome,
                    None => return Ok(Served::Nothing),
                },
                What::Guard(timer) | What::Timer(timer)
                    if now < judge_after && self.judges(head, timer) =>
                {
                    Outcome::NotYet(judge_after)
                }
                What::Guard(timer) => self.decide(head, &Input::Timer(timer), now).await?,
                // All that fired are told in one visit; a failing guard beside them is still pushed back.
                What::TimerDue(timer, at) => {
                    self.tell_holder(head, timer, at).await?;
                    told = told.max(Some(lag));
                    continue;
                }
                What::Mail => {
                    let outcome = self.read_mail(head, now).await?;
                    if matches!(outcome, Outcome::Done) {
                        self.timers_after_mail(head, now, judge_after).await?;
                    }
                    outcome
                }
                What::Timer(timer) => self.decide(head, &Input::Timer(timer), now).await?,
                What::Seal => self.seal(head).await?,
            };
            match outcome {
                Outcome::Done => return Ok(Served::Fired { rule: name, lag, timer }),
                Outcome::Overtaken | Outcome::MoreMail => return Ok(Served::Overtaken),
                Outcome::NotYet(at) => {
                    not_yet =
                        Some(not_yet.map_or(at, |other| other.min(at)).max(now + NOT_YET_MIN));
                }
                Outcome::Failed(why) => {
                    tracing::warn!(entity = %head.id, kind = head.kind(), rule = name, %why, "a decision failed");
                    failed = failed.or(Some((name, why)));
                }
            }
        }
        match (failed, told) {
            (Some((rule, why)), _) => {
                let marked = self.push_back(head, now, &why).await?;
                Ok(Served::Failed { rule, marked })
            }
            (None, None) if not_yet.is_some() => {
                let timers = head.timers.iter().map(|t| t.at).filter(|at| *at > now).min();
                let clocks = [not_yet, head.must_end_by, head.check_at, timers];
                self.touch(head, clocks.into_iter().flatten().min(), None, 0).await?;
                Ok(Served::Nothing)
            }
            (None, Some(lag)) => {
                let mine =
                    head.timers.iter().filter(|t| t.at > now || (t.guard && not_yet.is_none()));
                let mine = mine.map(|t| t.at).min();
                let due =
                    [not_yet, head.must_end_by, head.check_at, mine].into_iter().flatten().min();
                self.touch(head, due, None, 0).await?;
                Ok(Served::Fired { rule: "timer_due", lag, timer: None })
            }
            (None, None) => {
                self.touch(head, head.earliest(), None, 0).await?;
                Ok(Served::Nothing)
            }
        }
    }

    fn judges(&self, head: &Head, timer: &str) -> bool {
        self.machines.get(head.kind()).is_some_and(|core| core.judges(timer))
    }

    fn core(&self, head: &Head) -> Result<&Arc<dyn Core>, Undecided> {
        let missing = || Undecided(format!("no machine of kind {} runs here", head.kind()));
        self.machines.get(head.kind()).ok_or_else(missing)
    }

    fn ask(
        &self,
        head: &Head,
        input: &Input<'_>,
        now: Timestamp,
    ) -> Result<Option<Draft>, Undecided> {
        let core = self.core(head)?;
        let cx = Cx {
            id: head.id,
            now,
            version: head.version,
            status: Some(head.status),
            changed_at: Some(head.changed_at),
        };
        ask(&**core, Some(head), input, &cx)
    }

    async fn decide(
        &self,
        head: &Head,
        input: &Input<'_>,
        now: Timestamp,
    ) -> Result<Outcome, StoreError> {
        let draft = match self.ask(head, input, now) {
            Ok(Some(draft)) => draft,
            // Without an event neither mail is covered nor a timer cleared: asked again, with backoff,
            // which is what a machine that does not answer deserves.
            Ok(None) => return Ok(Outcome::Failed(format!("{} was not answered", input.rule()))),
            Err(e) => return Ok(Outcome::Failed(e.to_string())),
        };
        let mut draft = draft;
        if let Some(at) = draft.not_before {
            return Ok(Outcome::NotYet(at));
        }
        if let Input::Timer(name) = input {
            // A timer that fired is gone, unless the machine has just set it again.
            draft.timers.insert(0, TimerChange::clear((*name).to_owned()));
        }
        self.commit(head, draft).await
    }

    async fn commit(&self, head: &Head, draft: Draft) -> Result<Outcome, StoreError> {
        let (epoch, version) = (head.epoch, head.version);
        let expect = match head.holder {
            Some(_) => Expect::Overrule { epoch, version },
            None => Expect::Nobody { epoch, version },
        };
        let commit = draft.into_commit(self.pipeline.commit_id(), head.id, expect);
        Ok(match self.pipeline.commit(commit).await {
            Ok(CommitAnswer::Committed(_)) => Outcome::Done,
            Ok(CommitAnswer::Refused(why)) => Outcome::Failed(why.to_string()),
            Ok(CommitAnswer::MoreMail { .. }) => Outcome::MoreMail,
            Ok(_) => Outcome::Overtaken,
            // A store that is away is nobody's fault; a body that no store takes is the machine's.
            Err(e) if e.is_transient() => return Err(e),
            Err(e) => Outcome::Failed(e.to_string()),
        })
    }

    /// `must_end_by` has passed: the machine ends itself, or the kernel does.
    async fn must_end(&self, head: &Head, now: Timestamp) -> Result<Outcome, StoreError> {
        let reason = match self.ask(head, &Input::MustEnd, now) {
            Ok(Some(draft)) => match self.commit(head, draft).await? {
                Outcome::Failed(why) => why,
                Outcome::NotYet(_) => "the machine asked for more time".to_owned(),
                // A lost race is no answer of the machine's: forcing now would skip what it says to
                // others at its end. A holder who is faster than we read loses its tenure first.
                Outcome::Overtaken | Outcome::MoreMail if head.holder.is_some() => {
                    return self.end_tenure(head, "must_end_by").await;
                }
                Outcome::Overtaken | Outcome::MoreMail => return Ok(Outcome::Overtaken),
                Outcome::Done => match self.still_past_its_end(head.id, now).await? {
                    true => "the machine did not end".to_owned(),
                    false => return Ok(Outcome::Done),
                },
            },
            Ok(None) => "the machine did not answer".to_owned(),
            Err(e) => e.to_string(),
        };
        let Some(head) = self.pipeline.store().head(head.id).await? else {
            return Ok(Outcome::Overtaken);
        };
        if head.class() != Class::Open || head.must_end_by.is_none_or(|end| end > now) {
            return Ok(Outcome::Overtaken);
        }
        let why = head.attention.as_deref().unwrap_or(&reason);
        let body = Body::json(&serde_json::json!({ "why": why, "rule": "must_end_by" }));
        let draft = Draft {
            events: vec![NewEvent::new(ke::FORCE_ENDED, body)],
            mail: Some(MailStance::Regardless),
            ends_tenure: head.holder.is_some(),
            ..Draft::default()
        };
        match self.commit(&head, draft).await? {
            // A holder that commits faster than we read: take its tenure first, at whatever version.
            Outcome::Overtaken if head.holder.is_some() => {
                self.end_tenure(&head, "must_end_by").await
            }
            outcome => Ok(outcome),
        }
    }

    async fn still_past_its_end(&self, id: EntityId, now: Timestamp) -> Result<bool, StoreError> {
        let head = self.pipeline.store().head(id).await?;
        Ok(head.is_some_and(|h| {
            h.class() == Class::Open && h.must_end_by.is_some_and(|end| end <= now)
        }))
    }

    async fn end_tenure(&self, head: &Head, why: &str) -> Result<Outcome, StoreError> {
        let body = Body::json(&serde_json::json!({ "why": why }));
        let event = NewEvent::new(ke::TENURE_ENDED, body);
        let expect = Expect::EndTenure { epoch: head.epoch };
        let mut commit = Commit::new(self.pipeline.commit_id(), head.id, expect, vec![event]);
        commit.tenure = TenureChange::End;
        commit.mail = MailStance::Regardless;
        Ok(match self.pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => Outcome::Done,
            CommitAnswer::Refused(why) => Outcome::Failed(why.to_string()),
            _ => Outcome::Overtaken,
        })
    }

    /// Whether the holder lives. `None`: it does, and is looked at again later.
    async fn has_ended(&self, head: &Head) -> Result<bool, StoreError> {
        let Some(holder) = head.holder else { return Ok(false) };
        Ok(self.pipeline.store().session(holder).await?.is_some_and(|session| session.ended))
    }

    async fn holder_check(
        &self,
        head: &Head,
        now: Timestamp,
    ) -> Result<Option<Outcome>, StoreError> {
        let Some(holder) = head.holder else { return Ok(Some(Outcome::Overtaken)) };
        let session = self.pipeline.store().session(holder).await?;
        if let Some(s) = session.as_ref().filter(|s| s.vouches_for(head.id, head.epoch, now)) {
            // The session's own check comes with its expiry; all others one lease later.
            let next = if head.id == s.id { s.expires_at } else { now + s.lease };
            self.check_again(head, next).await?;
            return Ok(None);
        }
        let outcome = match self.ask(head, &Input::TenureEnded("holder_check"), now) {
            Ok(Some(draft)) => self.commit(head, draft).await?,
            Ok(None) => self.end_tenure(head, "holder_check").await?,
            Err(e) => {
                tracing::warn!(entity = %head.id, error = %e, "the machine could not decide on a lost holder");
                self.end_tenure(head, "holder_check").await?
            }
        };
        let outcome = match outcome {
            // It lapsed and still commits: its renewals are broken, its writes are not.
            Outcome::Overtaken | Outcome::MoreMail => self.end_tenure(head, "holder_check").await?,
            Outcome::Failed(why) => {
                tracing::warn!(entity = %head.id, %why, "a refused takeover; ending the tenure alone");
                self.end_tenure(head, "holder_check").await?
            }
            Outcome::Done | Outcome::NotYet(_) => Outcome::Done,
        };
        if head.id == holder {
            crate::due::ring_checks_of(&self.pipeline, holder).await;
        }
        Ok(Some(outcome))
    }

    async fn check_again(&self, head: &Head, at: Timestamp) -> Result<(), StoreError> {
        let others = [head.must_end_by, head.timers.earliest()].into_iter().flatten().min();
        let due = others.map_or(at, |o| o.min(at));
        self.touch(head, Some(due), Some(at), head.faults).await
    }

    /// A timer of a held entity belongs to the holder, who is told by mail.
    async fn tell_holder(&self, head: &Head, timer: &str, at: Timestamp) -> Result<(), StoreError> {
        let id = MailId(format!("timer/{timer}/{}", at.as_micros()));
        let body = Body::json(&serde_json::json!({ "timer": timer, "at": at }));
        let mail = NewMail { to: head.id, id, kind: kinds::TIMER_DUE.into(), body };
        self.pipeline.mail(mail).await.map(|_| ())
    }

    async fn read_mail(&self, head: &Head, now: Timestamp) -> Result<Outcome, StoreError> {
        let store = self.pipeline.store();
        let mut mail = Vec::new();
        loop {
            let after = mail.last().map_or(head.mail_read, |m: &Mail| m.seq);
            let page = store.mail(head.id, after, limits::MAIL_PER_DECISION_MAX).await?;
            if page.is_empty() {
                return Ok(Outcome::Overtaken);
            }
            mail.extend(page);
            // Only an end has to have read everything, and it must not be asked for the same first
            // page for ever: each refusal reads on.
            match self.decide(head, &Input::Mail(&mail), now).await? {
                Outcome::MoreMail => {}
                outcome => return Ok(outcome),
            }
        }
    }

    /// Timers that had fired when the mail was read. What goes wrong here is due again.
    async fn timers_after_mail(
        &self,
        head: &Head,
        now: Timestamp,
        judge_after: Timestamp,
    ) -> Result<(), StoreError> {
        let comes = |t: &str| now >= judge_after || !self.judges(head, t);
        for timer in head.timers.fired(now).iter().filter(|t| !t.guard && comes(&t.name)) {
            let Some(fresh) = self.pipeline.store().head(head.id).await? else { return Ok(()) };
            let free = fresh.holder.is_none() && fresh.class() != Class::Final;
            // The mail may have moved or cleared it.
            if !free || !fresh.timers.fired(now).iter().any(|t| t.name == timer.name) {
                continue;
            }
            if let Outcome::Failed(why) =
                self.decide(&fresh, &Input::Timer(&timer.name), now).await?
            {
                tracing::warn!(entity = %head.id, kind = head.kind(), rule = "timer", %why, "a decision failed");
                self.push_back(&fresh, now, &why).await?;
            }
        }
        Ok(())
    }

    async fn seal(&self, head: &Head) -> Result<Outcome, StoreError> {
        let draft = Draft { events: vec![housekeeping::seal(head)], ..Draft::default() };
        self.commit(head, draft).await
    }

    /// A failing rule: later, and after a while a person is asked to look. Whether that was now.
    async fn push_back(&self, head: &Head, now: Timestamp, why: &str) -> Result<bool, StoreError> {
        let faults = head.faults.saturating_add(1);
        // Only the holder writes while there is one; the log line must do.
        let mark = faults >= self.config.faults_before_attention
            && head.attention.is_none()
            && head.holder.is_none();
        if !mark {
            self.later(head, now, faults).await?;
            return Ok(false);
        }
        let body = Body::json(&serde_json::json!({ "why": why, "faults": faults }));
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let event = NewEvent::new(ke::ATTENTION_RAISED, body);
        let mut commit = Commit::new(self.pipeline.commit_id(), head.id, expect, vec![event]);
        commit.attention = Some(Some(limits::clip(why, limits::KEY_BYTES_MAX).to_owned()));
        self.pipeline.commit(commit).await?;
        if let Some(fresh) = self.pipeline.store().head(head.id).await? {
            self.later(&fresh, now, faults).await?;
        }
        Ok(true)
    }

    async fn later(&self, head: &Head, now: Timestamp, faults: u16) -> Result<(), StoreError> {
        let doubled = limits::FAULT_BACKOFF
            * 2u32.saturating_pow(u32::from(faults.min(16)).saturating_sub(1));
        let retry = now + doubled.min(limits::FAULT_BACKOFF_MAX);
        // Rules whose moment has not come keep it.
        let clocks = [head.must_end_by, head.check_at].into_iter().flatten();
        let others = clocks.chain(head.timers.iter().map(|t| t.at)).filter(|at| *at > now).min();
        let due = others.map_or(retry, |o| o.min(retry));
        self.touch(head, Some(due), None, faults).await
    }

    async fn touch(
        &self,
        head: &Head,
        due: Option<Timestamp>,
        check_at: Option<Timestamp>,
        faults: u16,
    ) -> Result<(), StoreError> {
        let (entity, epoch, version) = (head.id, head.epoch, head.version);
        let touch = Touch { entity, epoch, version, due, check_at, faults, ring_only: false };
        self.pipeline.touch(touch).await.map(|_| ())
    }
}

/// Asks a machine; a panic is a failed decision, not the end of the loop.
pub fn ask(
    core: &dyn Core,
    head: Option<&Head>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Option<Draft>, Undecided> {
    catch_unwind(AssertUnwindSafe(|| core.decide(head, input, cx))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Err(Undecided(format!(
            "the machine panicked: {}",
            text.unwrap_or_else(|| "no message".into())
        )))
    })
}

struct Rule<'a> {
    at: Timestamp,
    what: What<'a>,
}

enum What<'a> {
    MustEnd,
    HolderCheck,
    Guard(&'a str),
    TimerDue(&'a str, Timestamp),
    Mail,
    Timer(&'a str),
    Seal,
}

impl What<'_> {
    fn name(&self) -> &'static str {
        match self {
            What::MustEnd => "must_end_by",
            What::HolderCheck => "holder_check",
            What::Guard(_) => "guard",
            What::TimerDue(..) => "timer_due",
            What::Mail => "mail_waiting",
            What::Timer(_) => "timer",
            What::Seal => "seal",
        }
    }
}

/// The rules of a head whose moment has come, in the order they are tried.
fn rules(head: &Head, now: Timestamp, segment_events: u64) -> Vec<Rule<'_>> {
    let mut all = Vec::new();
    if head.class() == Class::Final {
        return all;
    }
    if let Some(at) = head.must_end_by.filter(|at| *at <= now) {
        all.push(Rule { at, what: What::MustEnd });
    }
    let held = head.holder.is_some();
    if let Some(at) = head.check_at.filter(|at| held && *at <= now) {
        all.push(Rule { at, what: What::HolderCheck });
    }
    let fired = head.timers.fired(now);
    all.extend(
        fired.iter().filter(|t| t.guard).map(|t| Rule { at: t.at, what: What::Guard(&t.name) }),
    );
    if held {
        let mine = fired.iter().filter(|t| !t.guard);
        all.extend(mine.map(|t| Rule { at: t.at, what: What::TimerDue(&t.name, t.at) }));
        return all;
    }
    if head.class() == Class::Resting && housekeeping::wants_seal(head, segment_events) {
        all.push(Rule { at: head.due.unwrap_or(now), what: What::Seal });
    }
    if head.has_mail() {
        all.push(Rule { at: head.due.unwrap_or(now).min(now), what: What::Mail });
    }
    all.extend(
        fired.iter().filter(|t| !t.guard).map(|t| Rule { at: t.at, what: What::Timer(&t.name) }),
    );
    all
}
