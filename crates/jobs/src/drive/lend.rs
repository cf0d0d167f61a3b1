//! Tools that a worker lends: calls of its own tools, for jobs that others hold.
//!
//! A plan names any tool that somebody has, and is run by whoever claims it. Where that one has not the tool, the call is an
//! entity (see [`crate::call`]) that waits for a worker which has: one in another language, which speaks HTTP, or one like this,
//! which takes it under a session of its own and does what `drive/calls` does for its own jobs. It says how the call ended
//! in the words of any worker that takes calls, so what comes too late is evidence here as there.

use super::{Leave, Shop, points};
use crate::{
    call::{
        desk::{self, Handed, Said, Taken},
        model::{Call, FailKind},
    },
    catalogue::{CallTerms, CallTool},
};
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tenure_engine::{
    session::Hint,
    worker::{Handler, Held},
};
use tenure_kernel::{
    error::StoreError,
    machine::Machine as _,
    runtime::{BoxFuture, First, Runtime, first},
};
use tenure_steps::{
    events::What,
    tool::{CallParts, Class, Probe, ToolCtx, ToolError, ToolSpec, recordable, recordable_probe},
};
use tokio::sync::watch;

/// What a worker says in the catalogue about a tool that it lends.
pub(crate) fn offer(spec: &ToolSpec) -> CallTool {
    let options = &spec.options;
    CallTool {
        name: spec.name.clone(),
        doc: spec.doc.clone(),
        class: options.class,
        terms: CallTerms {
            timeout_ms: options.timeout.map(super::asks::millis),
            retry_max: options.retry_max,
            backoff_ms: options.backoff.map(super::asks::millis),
            probe: options.class == Some(Class::Verifiable),
            compensate: options.class == Some(Class::Compensatable),
        },
        input_schema: spec.input_schema.clone().unwrap_or_default(),
        output_schema: spec.output_schema.clone().unwrap_or_default(),
    }
}

/// The handler of a worker that takes calls of its own tools.
pub(crate) struct Lender(pub Arc<Shop>);

impl Handler for Lender {
    fn run(&self, held: Held) -> BoxFuture<'static, Held> {
        let shop = self.0.clone();
        Box::pin(async move {
            let mut held = held;
            if let Err(e) = take(&shop, &mut held).await {
                tracing::warn!(call = %held.id(), error = %e, "what became of a call was not told; it will lapse");
            }
            held
        })
    }
}

/// Before a store that is away is asked again; doubles.
const AGAIN_AFTER: Duration = Duration::from_millis(100);
/// The longest pause between two of these.
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(5);

/// Asks until the store has answered. The call is held meanwhile, so a store that is away for a moment costs neither the
/// word that it was not begun nor its result.
async fn heard<T, F>(rt: &dyn Runtime, mut ask: impl FnMut() -> F + Send) -> Result<T, StoreError>
where
    F: Future<Output = Result<T, StoreError>> + Send,
{
    let mut pause = AGAIN_AFTER;
    loop {
        match ask().await {
            Err(e) if e.is_transient() => {
                tracing::debug!(error = %e, "the store is asked again about a call");
                rt.sleep(pause).await;
                pause = (pause * 2).min(AGAIN_AFTER_MAX);
            }
            answer => return answer,
        }
    }
}

async fn take(shop: &Shop, held: &mut Held) -> Result<(), StoreError> {
    // Only calls stand in these queues; what else did would be somebody's mistake, and is given back.
    if held.head.kind() != Call::TABLE.kind {
        return Ok(());
    }
    let pipeline = held.keeper().pipeline().clone();
    let rt = pipeline.rt().clone();
    let (id, under) = (held.id(), (held.keeper().id(), held.head.epoch));
    let head = held.head.clone();
    let leave = heard(&*rt, || has_leave(shop, held)).await;
    let handed = match leave {
        Ok(true) => heard(&*rt, || desk::hand_out(&pipeline, head.clone(), under.0)).await,
        Ok(false) => Ok(Handed::Back("it waits for a rate limit")),
        Err(e) => Err(e),
    };
    let begins = match handed {
        Ok(Handed::Out(taken, _)) => match shop.tools.get(&taken.state.tool).cloned() {
            Some(spec) => Ok((*taken, spec)),
            None => Err(("its worker has not this tool", shop.options.backoff)),
        },
        Ok(Handed::Ended) => {
            held.ended_by_others();
            return Ok(());
        }
        Ok(Handed::Back(why)) => Err((why, Duration::ZERO)),
        Err(e) => {
            tracing::warn!(call = %id, error = %e, "a claimed call can not be begun");
            Err(("it could not be read", shop.options.backoff))
        }
    };
    let (taken, spec) = match begins {
        Ok(begins) => begins,
        Err((why, pause)) => {
            // The worker's own word, because the end of a tenure alone says nothing about whether a call was begun. Not at
            // once: what can not be begun here would be claimed here again, in a circle.
            rt.sleep(pause).await;
            heard(&*rt, || desk::release(&pipeline, id, under, Some(why.to_owned()))).await?;
            held.ended_by_others();
            return Ok(());
        }
    };
    shop.at(points::BEFORE_CALL).await;
    // The lease, on this process's own clock, right before anything outside is touched.
    let said = match held.may_act() {
        true => call(shop, held, spec, taken).await,
        false => {
            Said::Failed(FailKind::NotCalled, "its worker had lost it before it began".to_owned())
        }
    };
    shop.at(points::AFTER_CALL).await;
    match heard(&*rt, || desk::say(&pipeline, id, under, &said)).await? {
        desk::Heard::Refused(why) => {
            // It happened and can not be written down: not something to call again for.
            let said = Said::Failed(FailKind::Unknown, why);
            heard(&*rt, || desk::say(&pipeline, id, under, &said)).await?;
        }
        desk::Heard::Accepted | desk::Heard::Stale { .. } | desk::Heard::Unknown => {}
    }
    held.ended_by_others();
    Ok(())
}

/// How long a call that a limit holds back stays with the worker that has claimed it. Then it goes back to its queue, and
/// calls of other tools have a turn.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Whether the call may begin now, by its limits; waits for that a little.
async fn has_leave(shop: &Shop, held: &Held) -> Result<bool, StoreError> {
    let (pipeline, state) = (held.keeper().pipeline(), desk::state_of(&held.head)?);
    if state.what != What::Call {
        return Ok(true);
    }
    let until = pipeline.rt().mono() + LEAVE_WITHIN;
    loop {
        let wait = match shop.limits.leave(pipeline, &held.head.tenant, &state.tool).await? {
            Leave::Unlimited | Leave::Now(_) => return Ok(true),
            Leave::In(wait) => wait,
        };
        let left = until.saturating_sub(pipeline.rt().mono());
        if left.is_zero() || held.stopping() || !held.may_act() {
            return Ok(false);
        }
        first(pipeline.rt().sleep(wait.min(left)), held.until_stopping()).await;
    }
}

/// Makes the call, or asks about one, within its time and for as long as somebody wants it.
async fn call(shop: &Shop, held: &mut Held, spec: Arc<ToolSpec>, taken: Taken) -> Said {
    let rt = held.keeper().pipeline().rt().clone();
    let timeout = Duration::from_millis(taken.state.timeout_ms);
    let (stopper, stop) = watch::channel(false);
    let ctx = ToolCtx::new(CallParts {
        job: taken.state.job,
        step: taken.state.step.0.clone(),
        key: taken.state.key.clone(),
        epoch: taken.head.epoch,
        call: taken.state.call,
        not_after: taken.not_after(),
        timeout,
        tenant: taken.head.tenant.clone(),
        stop,
    });
    let (tool, input) = (spec.tool.clone(), taken.input);
    // Owned, so that it is gone, and not only no longer polled, before anybody is told so.
    let work: BoxFuture<'static, Result<Value, ToolError>> = match taken.state.what {
        What::Call => {
            let class = spec.options.class.unwrap_or_default();
            Box::pin(tool.call(ctx, input).map(move |result| recordable(class, result)))
        }
        What::Probe => {
            Box::pin(tool.probe(ctx, input).map(|said| said.map(recordable_probe).map(probed)))
        }
        What::Compensate => {
            Box::pin(tool.compensate(ctx, input).map(|said| said.map(|()| Value::Null)))
        }
    };
    let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
    // The only mail that a call gets asks for its end.
    let unwanted = async {
        loop {
            match held.wait_for_mail().await {
                Hint::Lost => return,
                Hint::Mail if held.unread().await.is_ok_and(|mail| !mail.is_empty()) => return,
                Hint::Mail | Hint::Quiet => {}
            }
        }
    };
    let late = match first(&mut work, first(rt.sleep(timeout), unwanted)).await {
        First::Left(ended) => return said(ended),
        First::Right(First::Left(())) => {
            format!("it took longer than its {} ms", timeout.as_millis())
        }
        First::Right(First::Right(())) => {
            "it was stopped, and did not say how far it was".to_owned()
        }
    };
    stopper.send_replace(true);
    match first(work, rt.sleep(shop.options.stop_grace)).await {
        First::Left(ended) => said(ended),
        First::Right(()) => Said::Failed(FailKind::Unknown, late),
    }
}

/// In the words of [`super::hand`].
fn probed(probe: Probe) -> Value {
    match probe {
        Probe::Happened(result) => json!({ "happened": true, "result": result }),
        Probe::NotHappened => json!({ "happened": false }),
        Probe::Unclear(why) => json!({ "why": why }),
    }
}

fn said(ended: super::calls::Caught<Value>) -> Said {
    let error = match ended {
        Ok(Ok(value)) => return Said::Completed(value),
        Ok(Err(error)) => error,
        Err(panic) => ToolError::Unknown(super::calls::panicked(&*panic)),
    };
    let kind = match &error {
        ToolError::Retryable(_) => FailKind::Retryable,
        ToolError::Permanent(_) => FailKind::Permanent,
        ToolError::Unknown(_) => FailKind::Unknown,
        ToolError::Compensatable(_) => FailKind::Compensatable,
        ToolError::Cancelled => FailKind::Cancelled,
    };
    Said::Failed(kind, error.to_string())
}
