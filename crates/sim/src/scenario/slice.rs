//! The thin slice: errands, the worker that runs them, and what they must come to.

use super::{
    Clients,
    errand::{self, Errand, Event, GO, State},
    patience,
};
use crate::world::{Env, World};
use std::time::Duration;
use tenure_engine::worker::{Handler, Held, HoldError};
use tenure_kernel::{
    commit::{Commit, MailStance, TenureChange},
    ids::EntityId,
    machine::{Machine, decode_state, encode_state},
    mail::kinds,
    runtime::BoxFuture,
    stream::{Body, NewEvent},
    table::{Class, kernel_events},
    timers::TimerChange,
};
use tenure_store::memory::Contents;

pub(super) fn play(clients: &Clients) {
    let errands = 3 + clients.below(6);
    for i in 0..errands {
        let c = clients.clone();
        clients.spawn(Box::pin(async move {
            c.wait(c.some(Duration::from_secs(60))).await;
            let id = c.id();
            c.create("errand", id, &Body::json(&serde_json::json!({ "n": i }))).await;
            for n in 0..c.below(4) {
                c.wait(c.some(Duration::from_secs(20))).await;
                let body = Body::json(&serde_json::json!({ "n": n }));
                c.mail(id, format!("go/{n}"), GO, body).await;
            }
            if c.below(6) == 0 {
                c.wait(c.some(Duration::from_secs(30))).await;
                c.mail(id, "cancel".into(), kinds::CANCEL, Body::json(&())).await;
            }
        }));
    }
}

/// The idempotency key of a step: no epoch in it, or a takeover would make it another effect.
fn key(id: EntityId, step: u8) -> String {
    format!("{id}/step-{step}")
}

/// Runs errands while it holds them.
pub(super) struct Runner(pub Env);

impl Handler for Runner {
    fn run(&self, mut held: Held) -> BoxFuture<'static, Held> {
        let env = self.0.clone();
        Box::pin(async move {
            if let Err(HoldError::Refused(why)) = work(&env, &mut held).await {
                env.world.fail(format!("{}: refused: {why}", held.id()));
            }
            held
        })
    }
}

async fn work(env: &Env, held: &mut Held) -> Result<(), HoldError> {
    let refused = |e: tenure_kernel::machine::Undecided| HoldError::Refused(e.0);
    let mut state = decode_state::<Errand>(&held.head.state).map_err(refused)?;
    if let Some(step) = state.started {
        // Started by an earlier holder who may still be at it: nobody can know. Never guessed.
        write(env, held, &mut state, vec![Event::StepUnknown { step }], |_| {}).await?;
    }
    loop {
        let mail = patience::unread(env, held).await?;
        let read = mail.last().map_or(held.head.mail_read, |m| m.seq);
        if mail.iter().any(|m| m.kind == kinds::CANCEL) {
            let end = |c: &mut Commit| {
                c.mail = MailStance::Regardless;
                c.tenure = TenureChange::End;
            };
            return write(env, held, &mut state, vec![Event::Cancelled], end).await;
        }
        let count = mail.iter().filter(|m| m.kind == GO).count() as u64;
        let mut events = Vec::new();
        if count > 0 {
            events.push(Event::Signalled { count });
        }
        let done = if state.settled == errand::STEPS {
            events.push(Event::Finished);
            let end = |c: &mut Commit| {
                c.mail = MailStance::ReadAll(read);
                c.tenure = TenureChange::End;
            };
            write(env, held, &mut state, events, end).await
        } else if state.settled == 1 && state.signals + count == 0 && !state.woken {
            park(env, held, &mut state, read).await
        } else {
            let step = state.settled;
            events.push(Event::StepStarted { step });
            write(env, held, &mut state, events, |c| c.mail = MailStance::Read(read)).await?;
            effect(env, held, step).await?;
            write(env, held, &mut state, vec![Event::StepFinished { step }], |_| {}).await?;
            continue;
        };
        match done {
            Err(HoldError::MoreMail) => {}
            other => return other,
        }
    }
}

async fn park(env: &Env, held: &mut Held, state: &mut State, read: u64) -> Result<(), HoldError> {
    let mut next = state.clone();
    Errand::apply(&mut next, &Event::Parked);
    let parked = NewEvent::new(Errand::name(&Event::Parked), Body::json(&Event::Parked));
    let ended = NewEvent::new(kernel_events::TENURE_ENDED, Body::json(&()));
    let mut commit = held.draft(vec![parked, ended]);
    commit.state = Some(encode_state::<Errand>(&next));
    commit.mail = MailStance::ReadAll(read);
    commit.tenure = TenureChange::End;
    commit.timers = vec![TimerChange::set("nudge", errand::NUDGE)];
    patience::commit(env, held, commit).await?;
    *state = next;
    Ok(())
}

/// Touches the outside world, if this worker still may; slow enough for everything to happen meanwhile.
async fn effect(env: &Env, held: &Held, step: u8) -> Result<(), HoldError> {
    let sim = &env.world.sim;
    let some = |top| sim.draw(|rng| rng.between(Duration::from_millis(1)..top));
    env.rt.sleep(some(Duration::from_millis(500))).await;
    patience::stand(env, held).await?;
    env.rt.sleep(some(Duration::from_millis(200))).await;
    env.world.outside.act(&key(held.id(), step), &env.name, held.head.epoch);
    env.rt.sleep(some(Duration::from_secs(2))).await;
    Ok(())
}

async fn write(
    env: &Env,
    held: &mut Held,
    state: &mut State,
    events: Vec<Event>,
    with: impl FnOnce(&mut Commit),
) -> Result<(), HoldError> {
    let mut next = state.clone();
    events.iter().for_each(|e| Errand::apply(&mut next, e));
    let named = events.iter().map(|e| NewEvent::new(Errand::name(e), Body::json(e))).collect();
    let mut commit = held.draft(named);
    commit.state = Some(encode_state::<Errand>(&next));
    with(&mut commit);
    patience::commit(env, held, commit).await?;
    *state = next;
    Ok(())
}

pub(super) fn check(world: &World, contents: &Contents) -> Result<(), String> {
    for head in contents.rows.heads.values().filter(|h| h.kind() == "errand") {
        let id = head.id;
        let state = decode_state::<Errand>(&head.state).map_err(|e| e.0)?;
        for step in 0..errand::STEPS {
            let happened = world.outside.count(&key(id, step));
            let unknown = state.unknown.contains(&step);
            let finished = step < state.settled && !unknown;
            if finished && happened != 1 {
                return Err(format!("{id}: step {step} is finished and happened {happened} times"));
            }
            if !finished && !unknown && happened != 0 && head.class() == Class::Final {
                return Err(format!("{id}: step {step} happened and is not listed"));
            }
        }
        if head.status.name() == "done" && state.settled != errand::STEPS {
            return Err(format!("{id}: done after {} steps", state.settled));
        }
        if head.status.name() == "done" && head.has_mail() {
            return Err(format!("{id}: done with unread mail"));
        }
    }
    Ok(())
}
