//! Polls a flow and delivers one completion at a time, in the order of the stream, live and in replay.
//! That order is all that a flow can observe of the world, so the same history leads it to the same
//! place, whatever the machine did meanwhile.
//!
//! A flow may await only what its [`Ctx`] gave. One that is pending on anything else would hang here for
//! ever, or depend on something that is not recorded: both stop it with an error that names the place.

use crate::{
    ctx::Ctx,
    desk::{Ask, Asked, Desk, Divergence, place_text},
    events::{StepEvent, StepId},
    flow::{FlowError, FlowResult, FlowSpec},
    history::{History, Outcome},
    saga::{self, Left},
};
use serde_json::Value;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};
use tenure_kernel::{depth, ids::EntityId, runtime::BoxFuture, time::Timestamp};

/// A flow that wakes itself this often without asking for anything is stopped.
pub const POLLS_MAX: u32 = 10_000;

/// What a flow is polled with.
#[derive(Clone, Debug)]
pub struct World {
    /// The job.
    pub job: EntityId,
    /// Whose.
    pub tenant: String,
    /// How often the flow was started afresh, from 1.
    pub run: u32,
    /// The store's time, for `ctx.now`.
    pub now: Timestamp,
    /// For `ctx.random` and `ctx.uuid`.
    pub entropy: u64,
}

/// How a flow stopped.
#[derive(Debug)]
pub enum End {
    /// It returned.
    Returned(FlowResult),
    /// Its code asks for something else than its history has.
    Diverged(Divergence),
    /// It panicked, or waits for something that the engine does not know. In words, with the place.
    Broken(String),
}

/// What came out of polling a flow.
#[derive(Debug, Default)]
pub struct Turn {
    /// What it asks for.
    pub asks: Vec<Asked>,
    /// Values that have to be recorded with the next commit.
    pub records: Vec<StepEvent>,
    /// Steps that it no longer waits for.
    pub dropped: Vec<StepId>,
    /// Whether it is over.
    pub end: Option<End>,
}

/// A flow in motion.
pub struct Driver {
    /// Behind a lock that nobody ever waits for (it is only reached through `&mut`): a flow can be sent to
    /// another thread and not shared, and whoever keeps a driver may want to share it.
    flow: Mutex<Option<BoxFuture<'static, FlowResult>>>,
    desk: Arc<Desk>,
    bell: Arc<FlowBell>,
}

/// Notices wake-ups: those during a poll or a delivery are the flow's own, any other comes from
/// something that is not recorded.
#[derive(Default)]
struct FlowBell {
    inside: AtomicBool,
    woken: AtomicBool,
    foreign: AtomicBool,
}

impl Wake for FlowBell {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        if !self.inside.load(Ordering::SeqCst) {
            self.foreign.store(true, Ordering::SeqCst);
        }
    }
}

impl Driver {
    /// Starts a flow and leads it through its history.
    pub fn start(flow: &FlowSpec, input: Value, history: &History, world: World) -> (Self, Turn) {
        let World { job, tenant, run, now, entropy } = world;
        let desk = Arc::new(Desk::new(job, &tenant, run, now, entropy, history));
        let ctx = Ctx::root(desk.clone());
        // A flow function may panic before its first await.
        let started = catch_unwind(AssertUnwindSafe(|| flow.start(ctx, input)));
        let mut driver = Driver { flow: Mutex::new(None), desk, bell: Arc::default() };
        match started {
            Ok(future) => *driver.flow() = Some(future),
            Err(panic) => {
                let end = Some(End::Broken(format!("the flow panicked: {}", text_of(&*panic))));
                return (driver, Turn { end, ..Turn::default() });
            }
        }
        let mut turn = driver.poll();
        for step in &history.order {
            if turn.end.is_some() {
                break;
            }
            let outcome = history.steps.get(step).and_then(|r| r.outcome.clone());
            let Some(outcome) = outcome else { continue };
            if !driver.desk.board().asked.contains(step) {
                turn.end = Some(End::Diverged(driver.not_asked(history, step)));
                break;
            }
            turn.absorb(driver.deliver(step, outcome));
        }
        driver.check_replay(history, &mut turn);
        (driver, turn)
    }

    /// After a replay: everything that is recorded must have been asked for.
    fn check_replay(&self, history: &History, turn: &mut Turn) {
        if matches!(turn.end, Some(End::Diverged(_) | End::Broken(_))) {
            return;
        }
        let missing = {
            let board = self.desk.board();
            let mut missing: Vec<_> =
                history.steps.keys().filter(|s| !board.asked.contains(*s)).cloned().collect();
            missing.sort();
            missing
        };
        if let Some(step) = missing.first() {
            turn.end = Some(End::Diverged(self.not_asked(history, step)));
        }
    }

    fn not_asked(&self, history: &History, step: &StepId) -> Divergence {
        let recorded = history
            .steps
            .get(step)
            .map_or_else(String::new, |r| format!("{} (asked for at {})", r.shape, r.place));
        let board = self.desk.board();
        let open: Vec<String> = board
            .open
            .iter()
            .map(|(id, at)| format!("step {id} (at {})", place_text(at)))
            .collect();
        let expected = match (open.is_empty(), &board.last_place) {
            (false, _) => format!("only {}", open.join(", ")),
            (true, Some(place)) => format!("nothing after {}", place_text(place)),
            (true, None) => "nothing".to_owned(),
        };
        Divergence { step: step.clone(), recorded, expected }
    }

    /// A driver without a flow.
    pub fn none() -> Self {
        let nobody = EntityId::fixed(0, 0);
        let desk = Desk::new(nobody, "", 1, Timestamp::ZERO, 0, &History::default());
        Driver { flow: Mutex::new(None), desk: Arc::new(desk), bell: Arc::default() }
    }

    /// The store's time moves on for `ctx.now`.
    pub fn set_now(&self, now: Timestamp) {
        self.desk.board().now = now;
    }

    /// Delivers one outcome and polls.
    pub fn deliver(&mut self, step: &StepId, outcome: Outcome) -> Turn {
        self.bell.inside.store(true, Ordering::SeqCst);
        self.desk.deliver(step, outcome);
        self.poll()
    }

    /// Whether the flow waits for this step.
    pub fn awaits(&self, step: &StepId) -> bool {
        self.desk.board().open.contains_key(step)
    }

    fn flow(&mut self) -> &mut Option<BoxFuture<'static, FlowResult>> {
        self.flow.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    fn poll(&mut self) -> Turn {
        let end = self.poll_to_rest();
        self.bell.inside.store(false, Ordering::SeqCst);
        if end.is_some() {
            self.desk.close();
            // Its destructors run here, and what they drop is of no interest any more.
            *self.flow() = None;
        }
        let mut turn = {
            let mut board = self.desk.board();
            Turn {
                asks: std::mem::take(&mut board.asks),
                records: std::mem::take(&mut board.records),
                dropped: std::mem::take(&mut board.dropped),
                end,
            }
        };
        if let Some(why) = turn.unrecordable() {
            self.desk.close();
            *self.flow() = None;
            turn.end = Some(End::Broken(why));
        }
        turn
    }

    fn poll_to_rest(&mut self) -> Option<End> {
        let flow = self.flow.get_mut().unwrap_or_else(PoisonError::into_inner).as_mut()?;
        let waker = Waker::from(self.bell.clone());
        let mut cx = Context::from_waker(&waker);
        self.bell.inside.store(true, Ordering::SeqCst);
        let mut polls = 0;
        loop {
            self.bell.woken.store(false, Ordering::SeqCst);
            let polled = catch_unwind(AssertUnwindSafe(|| flow.as_mut().poll(&mut cx)));
            let board = self.desk.board();
            if let Some(trouble) = &board.trouble {
                return Some(End::Diverged(trouble.clone()));
            }
            let place = board.last_place.as_ref().map_or("its start".into(), place_text);
            match polled {
                Err(panic) => {
                    let why = text_of(&*panic);
                    return Some(End::Broken(format!("the flow panicked after {place}: {why}")));
                }
                Ok(_) if self.bell.foreign.load(Ordering::SeqCst) => {
                    return Some(End::Broken(format!(
                        "after {place} the flow was woken by something that did not come from its ctx (a timer, \
                         a channel or a task of another library): it would not be there on replay"
                    )));
                }
                Ok(Poll::Ready(result)) => {
                    drop(board);
                    let left = self.desk.swap_left(Left::default());
                    if left.is_empty() {
                        return Some(End::Returned(result));
                    }
                    // It let go of a saga by itself, not in a race: it ends when that is undone.
                    let undoing = saga::undo_left(Ctx::root(self.desk.clone()), left);
                    *flow = Box::pin(async move {
                        undoing.await;
                        result
                    });
                }
                Ok(Poll::Pending) if self.bell.woken.load(Ordering::SeqCst) => {
                    polls += 1;
                    if polls > POLLS_MAX {
                        return Some(End::Broken(format!(
                            "after {place} the flow wakes itself for ever"
                        )));
                    }
                }
                Ok(Poll::Pending) if board.open.is_empty() => {
                    return Some(End::Broken(format!(
                        "after {place} the flow waits for something that did not come from its ctx: only what \
                         ctx gives can be awaited"
                    )));
                }
                Ok(Poll::Pending) => return None,
            }
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.desk.close();
    }
}

impl Turn {
    /// Why something that the flow gave cannot be recorded: a value that is nested too deeply could not be read back.
    fn unrecordable(&self) -> Option<String> {
        let why = |of: String, value: &Value| {
            depth::check_composed(value).err().map(|e| format!("{of} cannot be recorded: {e}"))
        };
        // What is on record already was read back.
        let asked = |asked: &Asked| match &asked.ask {
            _ if asked.known => None,
            Ask::Tool { input, .. } | Ask::Child { input, .. } => {
                why(format!("the input of step {}", asked.step), input)
            }
            Ask::Wait { .. } | Ask::Sleep(_) => None,
        };
        let recorded = |event: &StepEvent| match event {
            StepEvent::ValueRecorded { step, value, .. } => {
                why(format!("the value of step {step}"), value)
            }
            _ => None,
        };
        let ended = |end: &End| match end {
            End::Returned(Ok(output)) => why("the output of the flow".to_owned(), output),
            End::Returned(Err(FlowError::Continue(input))) => {
                why("the input with which the flow continues".to_owned(), input)
            }
            End::Returned(Err(_)) | End::Diverged(_) | End::Broken(_) => None,
        };
        let asks = self.asks.iter().find_map(asked);
        asks.or_else(|| self.records.iter().find_map(recorded))
            .or_else(|| self.end.as_ref().and_then(ended))
    }

    /// Another turn after this one.
    pub fn absorb(&mut self, later: Turn) {
        self.asks.extend(later.asks);
        self.records.extend(later.records);
        self.dropped.extend(later.dropped);
        self.end = later.end.or(self.end.take());
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
