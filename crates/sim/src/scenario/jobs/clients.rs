//! Who wants something of jobs: clients that submit, signal (early, twice, wrongly), pause and cancel; and the
//! office, where people look at what is open, answer what is asked, and settle what nobody knows, truthfully.

use super::{
    judge,
    plan::{self, Draw, FLOW, Plan},
    process,
};
use crate::{
    scenario::Clients,
    world::{Env, World},
};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tenure_jobs::{
    Job, JobState,
    decide::{AskMail, ResolveMail, SignalMail, mail},
    drive::load,
    submit::{Submission, SubmitError, Submitter},
    terms::Terms,
};
use tenure_kernel::{
    ids::EntityId, machine::decode_state, mail::kinds, sessions::Opening, store::Store,
    stream::Body, table::Class,
};
use tenure_steps::{
    events::{StepId, Verdict, WaitKind, WaitOutcome, What},
    history::Call,
};

/// A submission that a worker makes in its own process, where the job may start with its birth.
#[derive(Clone, Debug)]
pub(super) struct Order {
    key: String,
    input: Value,
    must_end_in: Duration,
    terms: Terms,
}

impl Order {
    fn submission(&self) -> Submission {
        Submission {
            flow: FLOW.into(),
            input: self.input.clone(),
            tenant: "t".into(),
            key: Some(self.key.clone()),
            must_end_in: Some(self.must_end_in),
            terms: self.terms.clone(),
            ..Submission::default()
        }
    }
}

/// Takes orders in a worker's process. What goes wrong here is made good by the client that ordered.
pub(super) async fn take_orders(env: Env, submitter: Submitter) {
    while !env.stop.is_asked() {
        env.rt.sleep(Duration::from_millis(400)).await;
        if let Some(order) = env.world.town.next_order()
            && let Err(e) = submitter.submit(order.submission()).await
        {
            env.world.sim.trace(format!("{}: order {}: {e}", env.name, order.key));
        }
    }
}

/// A job that somebody wants.
pub(super) struct Wish {
    pub plan: Plan,
    pub must_end_in: Duration,
    pub takeovers: u32,
    pub terms: Terms,
    /// One in so many is cancelled.
    pub cancelled: u64,
}

impl Wish {
    /// Draws one; `plan` says what it does.
    pub(super) fn draw(world: &World, plan: impl FnOnce(&mut Draw<'_>) -> Plan) -> Self {
        world.sim.draw(|rng| {
            let plan = plan(&mut Draw::new(rng));
            let must_end_in = Duration::from_secs(180 + rng.below(900));
            let (takeovers, terms) = ([2, 5, 50][rng.index(3)], Terms::default());
            Wish { plan, must_end_in, takeovers, terms, cancelled: 6 }
        })
    }

    /// Somebody sees to it.
    pub(super) fn spawn(self, clients: &Clients, i: u64) {
        let c = clients.clone();
        clients.spawn(Box::pin(async move { client(c, i, self).await }));
    }
}

pub(crate) fn play(clients: &Clients, width: Option<u64>) {
    let short = clients.env.world.town.setup().short;
    let jobs = width.unwrap_or_else(|| if short { 1 } else { 2 + clients.below(4) });
    for i in 0..jobs {
        let plan = |draw: &mut Draw<'_>| if short { draw.short() } else { draw.plan(2) };
        Wish::draw(&clients.env.world, plan).spawn(clients, i);
    }
    staff(clients);
}

/// The office opens.
pub(super) fn staff(clients: &Clients) {
    let c = clients.clone();
    clients.spawn(Box::pin(async move { office(c).await }));
}

async fn client(c: Clients, i: u64, wish: Wish) {
    let Wish { plan, must_end_in, takeovers, terms, cancelled } = wish;
    let keys = plan::keys(&plan.body);
    let input = serde_json::to_value(&plan).unwrap_or_default();
    let order = Order { key: format!("job-{i}"), input, must_end_in, terms };
    c.wait(c.some(Duration::from_secs(60))).await;
    if c.below(2) == 0 {
        c.env.world.town.order(order.clone());
        c.wait(c.some(Duration::from_secs(8))).await;
    }
    let submitter = Submitter::new(c.pipeline.clone(), judge(), must_end_in, takeovers);
    let Some(id) = submit(&c, &submitter, &order).await else { return };
    c.env.world.sim.trace(format!("{} is {id}", order.key));
    if c.env.world.town.setup().short {
        return;
    }
    for (n, key) in keys.iter().enumerate() {
        if c.below(3) == 0 {
            c.wait(c.some(Duration::from_secs(10))).await;
            signal(&c, id, key, WaitKind::Signal, &format!("early/{n}")).await;
        }
    }
    if c.below(4) == 0 {
        signal(&c, id, "nobody waits for this", WaitKind::Signal, "wrong").await;
    }
    if c.below(5) == 0 {
        c.wait(c.some(Duration::from_secs(60))).await;
        ask(&c, id, mail::PAUSE, "pause").await;
        if c.below(4) > 0 {
            c.wait(c.some(Duration::from_secs(90))).await;
            ask(&c, id, mail::RESUME, "resume").await;
        }
    }
    if c.below(cancelled) == 0 {
        c.wait(c.some(Duration::from_secs(90))).await;
        ask(&c, id, kinds::CANCEL, "cancel").await;
    }
}

/// Asks until it is there.
async fn submit(c: &Clients, submitter: &Submitter, order: &Order) -> Option<EntityId> {
    loop {
        match submitter.submit(order.submission()).await {
            Ok(done) => return Some(done.id),
            Err(SubmitError::UnknownFlow { .. }) => {}
            Err(SubmitError::Store(e)) if e.is_transient() => {}
            Err(e) => {
                c.env.world.fail(format!("{} can not be submitted: {e}", order.key));
                return None;
            }
        }
        c.wait(Duration::from_secs(1)).await;
    }
}

/// Many jobs that are submitted and left alone.
pub(super) async fn submit_all(c: Clients, wishes: Vec<(u64, Wish)>) {
    for (i, wish) in wishes {
        let Wish { plan, must_end_in, takeovers, terms, .. } = wish;
        let submitter = Submitter::new(c.pipeline.clone(), judge(), must_end_in, takeovers);
        let input = serde_json::to_value(&plan).unwrap_or_default();
        let order = Order { key: format!("job-{i}"), input, must_end_in, terms };
        submit(&c, &submitter, &order).await;
    }
}

async fn ask(c: &Clients, job: EntityId, kind: &'static str, id: &str) {
    let body = AskMail { by: Some("client".into()), why: None };
    c.mail(job, id.to_owned(), kind, Body::json(&body)).await;
}

async fn signal(c: &Clients, job: EntityId, key: &str, kind: WaitKind, id: &str) {
    let payload = Value::from(c.below(1_000_000));
    let outcome = match kind {
        WaitKind::Human if c.below(3) == 0 => WaitOutcome::Rejected,
        WaitKind::Human => WaitOutcome::Approved,
        _ => WaitOutcome::Signalled,
    };
    let body = SignalMail { key: key.to_owned(), outcome, payload, by: Some("ann".into()) };
    c.mail(job, id.to_owned(), mail::SIGNAL, Body::json(&body)).await;
}

/// People who look after open jobs until all have ended.
async fn office(c: Clients) {
    for look in 0u64.. {
        c.wait(Duration::from_secs(3) + c.some(Duration::from_secs(6))).await;
        let open: Vec<(EntityId, JobState, bool)> = c.env.world.store.inspect(|contents| {
            let jobs = contents.rows.heads.values();
            let open = jobs.filter(|h| h.kind() == "job" && h.class() == Class::Open);
            let read = open.filter_map(|h| {
                let state = decode_state::<Job>(&h.state).ok()?;
                // A settlement names a step, not a call: said twice, the second might meet another call of it.
                let asks = h.status.name() == "attention" && !h.has_mail();
                Some((h.id, state, asks))
            });
            read.collect()
        });
        if open.is_empty() && c.left() == 1 {
            return;
        }
        for (id, state, attention) in open {
            for wait in state.waits.iter().filter(|_| c.below(4) == 0).cloned().collect::<Vec<_>>()
            {
                signal(&c, id, &wait.key, wait.kind, &format!("office/{}/{look}", wait.key)).await;
            }
            if state.paused && c.below(8) == 0 {
                ask(&c, id, mail::RESUME, &format!("office/resume/{look}")).await;
            }
            if attention && c.below(3) == 0 {
                settle(&c, id, &state, look).await;
            }
        }
    }
}

async fn settle(c: &Clients, id: EntityId, state: &JobState, look: u64) {
    let world = &c.env.world;
    let reason = state.attention.as_ref().map_or("none", |a| a.reason.as_str());
    if reason != "unknown_outcome" {
        return world.fail(format!("{id}: attention for {:?}", state.attention));
    }
    for call in state.calls.iter().filter(|call| call.unknown.is_some()) {
        let Some((verdict, result)) = truth(c, id, &call.step, &call.key, call.call).await else {
            continue;
        };
        world.sim.trace(format!("office: {id}.{} {verdict:?}", call.step));
        let (by, note, step) = (Some("ann".into()), None, call.step.clone());
        let of = Some((call.key.clone(), call.call));
        let body = Body::json(&ResolveMail { step, of, verdict, result, by, note });
        c.mail(id, format!("office/settle/{}/{look}", call.step), mail::RESOLVE, body).await;
    }
}

/// What a person who looks closely can say. Nothing while somebody might still act.
async fn truth(
    c: &Clients,
    id: EntityId,
    step: &StepId,
    key: &str,
    number: u32,
) -> Option<(Verdict, Value)> {
    let world = &c.env.world;
    if c.below(10) == 0 {
        return Some((Verdict::Abandoned, Value::Null));
    }
    let store: Arc<dyn Store> = Arc::new(world.store.clone());
    let loaded = load(&store, id).await.ok()?;
    let record = loaded.history.steps.get(step)?;
    // What is being undone can not be called done, whatever it looks like now.
    if record.compensating {
        return None;
    }
    let of = |call: &&Call| call.key == key && call.call == number;
    let call = record.calls.iter().find(of)?;
    let epoch = call.epoch;
    let session = match call.hand.asked {
        0 => *loaded.holders.get(&epoch)?,
        _ => {
            let handed = JobState::call_id(id, key, number, (What::Call, 0));
            tenure_jobs::call::view::content(&store, handed).await.ok()??.had_by?
        }
    };
    let records = store.stream(session, 1, 1).await.ok()?;
    let executor = records.first().and_then(Opening::of)?.executor?;
    let over = world.town.is_over(key, (epoch, number)) || process::is_dead(world, executor.pid);
    // Looked at again after the look at the process: it may have acted and died in between.
    match world.town.receipt(key) {
        Some(receipt) => Some((Verdict::Happened, receipt)),
        None if over => Some((Verdict::DidNotHappen, json!(null))),
        None if c.below(12) == 0 => Some((Verdict::Abandoned, Value::Null)),
        None => None,
    }
}
