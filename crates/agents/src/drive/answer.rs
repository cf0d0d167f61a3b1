//! What follows from the answer of a model. Pure; the worker in this process and the one behind HTTP commit the same.

use super::{
    calls::{self, Ground, Outcome},
    conversation::Conversation,
    model::Reply,
};
use crate::{
    turn::{
        act,
        model::{StepDone, Turn, TurnEvent},
    },
    words::EndStatus,
};
use serde_json::Value;
use tenure_kernel::{
    commit::Commit,
    head::Head,
    ids::CommitId,
    machine::{Cx, Decision, Input, Undecided, draft},
    mail::Mail,
};

/// What follows, and whether the tenure ends with it although the turn does not.
pub struct Follows {
    /// The events and messages.
    pub decision: Decision<TurnEvent>,
    /// See [`act::parting`].
    pub parks: bool,
}

/// What follows from an answer of the model.
pub fn follows(ground: &Ground<'_>, cx: &Cx, talk: &Conversation, reply: Reply) -> Follows {
    let Reply { mut message, usage } = reply;
    let asked = calls::read(&mut message, ground.step);
    let text = message["content"].as_str().unwrap_or_default().trim().to_owned();
    let done = StepDone { step: ground.step, message, usage };
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
