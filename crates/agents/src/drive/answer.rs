//! What follows from the answer of a model. Pure; the worker in this process and the one behind HTTP commit the same.
//!
//! An answer counts only as the model server meant it: one that was cut, held back by a filter or declined ends the turn with a
//! code of its own. Asking again would cost as much and give the same.

use super::{
    calls::{self, Ground, Outcome},
    conversation::Conversation,
    model::Reply,
};
use crate::{
    limits,
    turn::{
        act,
        model::{StepDone, Turn, TurnEvent},
    },
    words::{EndStatus, Fault},
};
use serde_json::Value;
use tenure_kernel::{
    commit::Commit,
    head::Head,
    ids::CommitId,
    limits::clip,
    machine::{Cx, Decision, Input, Undecided, draft},
    mail::Mail,
};
use tenure_tools::llm::message as said;

/// What follows, and whether the tenure ends with it although the turn does not.
pub struct Follows {
    /// The events and messages.
    pub decision: Decision<TurnEvent>,
    /// See [`act::parting`].
    pub parks: bool,
}

/// What follows from an answer of the model.
pub fn follows(ground: &Ground<'_>, cx: &Cx, talk: &Conversation, reply: Reply) -> Follows {
    let Reply { mut message, usage, finish_reason } = reply;
    let asked = calls::read(&mut message, ground.step);
    let text = said::text(&message).unwrap_or_default().trim().to_owned();
    let unusable =
        unusable(finish_reason.as_deref(), &message, asked.is_empty() && text.is_empty());
    let finish_reason = finish_reason.map(|r| clip(&r, FINISH_REASON_BYTES_MAX).to_owned());
    let done = StepDone { step: ground.step, message, usage, finish_reason };
    if let Some(fault) = unusable {
        let decision = act::fail(ground.state, cx, Some(done), fault);
        return Follows { decision, parks: false };
    }
    let ends = asked.is_empty() && !text.is_empty() && ground.profile.must_end_with.is_none();
    if let Some(shown) = ends.then(|| calls::held_back(ground, talk)).flatten() {
        let suspended = act::suspend(ground.state, cx, done, vec![shown], &talk.early, ground.left);
        return Follows { decision: suspended.decision, parks: suspended.parks };
    }
    if ends {
        let content = Value::String(text);
        let decision = act::finish(ground.state, cx, Some(done), EndStatus::Success, content);
        return Follows { decision, parks: false };
    }
    match calls::outcome(ground, asked, talk) {
        Outcome::Submit(status, result) => {
            let decision = act::finish(ground.state, cx, Some(done), status, result);
            Follows { decision, parks: false }
        }
        Outcome::Calls(waits) => {
            let suspended = act::suspend(ground.state, cx, done, waits, &talk.early, ground.left);
            let mut decision = suspended.decision;
            decision.events.splice(0..0, talk.outlived(ground.state.turn_epoch));
            Follows { decision, parks: suspended.parks }
        }
    }
}

/// What is kept of a reason, which a model server makes up.
const FINISH_REASON_BYTES_MAX: usize = 64;

/// Why nothing can be done with an answer: what it says is not what the model had to say. `says_nothing` where it has neither a
/// text nor calls.
fn unusable(finish_reason: Option<&str>, message: &Value, says_nothing: bool) -> Option<Fault> {
    let (code, why) = match finish_reason {
        Some(reason @ ("length" | "max_tokens" | "model_length")) => (
            "model_answer_cut",
            format!(
                "the model's answer was cut at its limit of tokens (finish_reason {reason}): allow it more \
                 (max_tokens of the profile's model), or ask for less at once"
            ),
        ),
        Some("content_filter") => (
            "model_answer_filtered",
            "the model server's filter held the answer back (finish_reason content_filter): change what is asked".to_owned(),
        ),
        _ => {
            let declined = said::refusal(message).filter(|_| says_nothing)?;
            ("model_answer_refused", format!("the model declines to answer: {declined}"))
        }
    };
    let message = clip(&why, limits::ERROR_BYTES_MAX).to_owned();
    Some(Fault { code: code.to_owned(), message })
}

/// The commit of a decision of the holder that has read this mail. One that parks has read all there was.
pub fn commit(
    head: &Head,
    follows: Follows,
    mail: &[Mail],
    id: CommitId,
) -> Result<Option<Commit>, Undecided> {
    let state = tenure_kernel::machine::decode_state::<Turn>(&head.state)?;
    if follows.parks {
        return Ok(Some(act::parting(head, state, follows.decision, id, Some(head.mail_read))));
    }
    let expect = tenure_kernel::commit::Expect::Holder { epoch: head.epoch, version: head.version };
    let drafted = draft::<Turn>(Some(head), state, follows.decision, &Input::Mail(mail))?;
    Ok(drafted.map(|d| d.into_commit(id, head.id, expect)))
}
