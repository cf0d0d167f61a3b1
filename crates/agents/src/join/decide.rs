//! What a join does about its children, from its head alone.

use super::model::{Join, JoinEvent, JoinState, NewJoin};
use crate::{
    clip_encoded, limits,
    turn::{end::card_id, model::Asker},
    words::{EndStatus, Fault, Returned, Stop, TurnResult, kinds},
};
use serde_json::{Value, json};
use std::time::Duration;
use tenure_kernel::{
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::{Mail, kinds as kernel},
    outbox::{Message, Target},
    stream::Body,
};

/// What follows from an input.
pub fn decide(
    state: Option<&JoinState>,
    input: &Input<'_>,
    cx: &Cx,
) -> Result<Decision<JoinEvent>, Undecided> {
    let Some(state) = state else { return birth(input, cx) };
    let mut desk = Desk { state: state.clone(), out: Decision::default(), over: false };
    match input {
        Input::Mail(mail) => mail.iter().for_each(|m| desk.read(m)),
        Input::MustEnd => desk.end(Some("its time was up".into())),
        Input::Timer(name) => desk.note(format!("timer {name}: not one of a join's")),
        Input::Create(_) | Input::CancelUnborn | Input::TenureEnded(_) => {
            return Err(Undecided("a join is created once and never held".into()));
        }
    }
    Ok(desk.out)
}

fn birth(input: &Input<'_>, cx: &Cx) -> Result<Decision<JoinEvent>, Undecided> {
    let Input::Create(body) = input else { return Ok(Decision::default()) };
    let bytes =
        body.inline().ok_or_else(|| Undecided("the wish is a blob: load it first".into()))?;
    let new: NewJoin = tenure_kernel::stored::from_slice(bytes)
        .map_err(|e| Undecided(format!("this is no new join: {e}")))?;
    if new.tasks.is_empty() || new.tasks.len() > limits::JOIN_MAX {
        return Err(Undecided(format!("a join has 1 to {} tasks", limits::JOIN_MAX)));
    }
    let mut messages = Vec::with_capacity(new.tasks.len());
    for (n, task) in new.tasks.iter().enumerate() {
        let mut child = task.new.clone();
        child.asker = Some(Asker { id: cx.id, ordinal: u32::try_from(n).unwrap_or(u32::MAX) });
        let to = Target::Create { id: task.turn, kind: "turn".into() };
        messages.push(Message { to, kind: "create".into(), body: Body::json(&child) });
    }
    let must_end_in = Duration::from_millis(new.must_end_in_ms);
    let mut decision =
        Decision::event(JoinEvent::JoinCreated(Box::new(new))).must_end_in(must_end_in);
    decision.messages = messages;
    Ok(decision)
}

struct Desk {
    state: JoinState,
    out: Decision<JoinEvent>,
    over: bool,
}

impl Desk {
    fn say(&mut self, event: JoinEvent) {
        Join::apply(&mut self.state, &event);
        self.out.events.push(event);
    }

    fn note(&mut self, what: String) {
        if !self.over {
            self.say(JoinEvent::JoinMailNoted { what });
        }
    }

    fn read(&mut self, mail: &Mail) {
        if self.over {
            return;
        }
        let bytes = mail.body.inline().unwrap_or_default();
        match mail.kind.as_str() {
            kinds::TURN_RESULT => match tenure_kernel::stored::from_slice::<TurnResult>(bytes) {
                Ok(said) => self.task_ended(said),
                Err(e) => self.note(format!("turn_result: {e}")),
            },
            kernel::RETURNED => match tenure_kernel::stored::from_slice::<Returned>(bytes) {
                Ok(said) => self.returned(&said),
                Err(e) => self.note(format!("returned: {e}")),
            },
            kinds::STOP | kernel::CANCEL => {
                let said: Stop = tenure_kernel::stored::from_slice(bytes).unwrap_or_default();
                self.end(Some(said.why.unwrap_or_else(|| "nobody waits for it any more".into())));
            }
            other => self.note(format!("{other}: not for a join")),
        }
    }

    fn task_ended(&mut self, said: TurnResult) {
        let place = usize::try_from(said.ordinal).unwrap_or(usize::MAX);
        match self.state.tasks.get(place) {
            Some(task) if task.status.is_none() => {}
            _ => return self.note(format!("turn_result {}: not waited for", said.ordinal)),
        }
        let text = match &said.deliverable {
            Value::Null => String::new(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let status = said.status;
        self.say(JoinEvent::TaskEnded {
            index: said.ordinal,
            status,
            summary: clip_encoded(&text, limits::SUMMARY_BYTES_MAX).to_owned(),
            deliverable: said.deliverable,
            error: said.error,
        });
        let failed = !matches!(status, EndStatus::Success | EndStatus::Partial);
        if failed && self.state.fail_fast {
            self.end(Some(format!("task {} failed", said.ordinal)));
        } else if self.state.tasks.iter().all(|t| t.status.is_some()) {
            self.end(None);
        }
    }

    fn returned(&mut self, said: &Returned) {
        let place = self.state.tasks.iter().position(|t| Some(t.turn) == said.to);
        let Some(place) = place else {
            return self.note("returned: not one of its turns".into());
        };
        let message = said.why.clone();
        let error = Some(Fault { code: "upstream_unavailable".into(), message });
        let ordinal = u32::try_from(place).unwrap_or(u32::MAX);
        self.task_ended(TurnResult {
            ordinal,
            status: EndStatus::Failed,
            error,
            ..TurnResult::default()
        });
    }

    /// All success; some, a part; none: failed before timeout.
    fn status(&self) -> EndStatus {
        let ended = |s: EndStatus| self.state.tasks.iter().filter(|t| t.status == Some(s)).count();
        let (all, good) = (self.state.tasks.len(), ended(EndStatus::Success));
        match () {
            () if good == all => EndStatus::Success,
            () if good + ended(EndStatus::Partial) > 0 => EndStatus::Partial,
            () if ended(EndStatus::Failed) > 0 => EndStatus::Failed,
            () => EndStatus::Timeout,
        }
    }

    fn end(&mut self, why: Option<String>) {
        let row = |(n, task): (usize, &super::model::TaskState)| {
            json!({
                "task_index": n,
                "turn": task.turn,
                "status": task.status.map_or("unfinished", EndStatus::name),
                "summary": task.summary,
                "error": Some(&task.error).filter(|e| !e.is_empty()),
                "deliverable_card_id": task.status.map(|_| card_id(task.turn)),
            })
        };
        let results: Value =
            self.state.tasks.iter().enumerate().map(row).collect::<Vec<_>>().into();
        let status = self.status();
        let open = self.state.tasks.iter().filter(|t| t.status.is_none());
        let abandoned: Vec<EntityId> = open.map(|t| t.turn).collect();
        let stop = json!({ "by": "join", "why": "the join is over" });
        let stop = |turn: &EntityId| Message::mail(*turn, kinds::STOP, Body::json(&stop));
        let stops: Vec<Message> = abandoned.iter().map(stop).collect();
        if let Some(asker) = self.state.asker {
            let error = why
                .as_ref()
                .map(|why| Fault { code: "join_ended_early".into(), message: why.clone() });
            let told = TurnResult {
                ordinal: asker.ordinal,
                status,
                deliverable: results.clone(),
                deliverable_card_id: None,
                error,
            };
            self.out.messages.push(Message::mail(asker.id, kinds::TURN_RESULT, Body::json(&told)));
        }
        self.out.messages.extend(stops);
        self.say(JoinEvent::JoinEnded { status, why, results, abandoned });
        self.out.regardless = true;
        self.over = true;
    }
}
