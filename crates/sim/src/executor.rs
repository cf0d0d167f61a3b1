//! A single-threaded executor with virtual time. The seed picks which ready task runs next; time moves
//! only when nothing is ready. So a run is a function of its seed, and a simulated day costs what its
//! polls cost.
//!
//! A *node* is a simulated process: a group of tasks with a clock of its own. Killing it drops its
//! tasks where they wait, as SIGKILL does. Pausing it stops polling while time goes on, as SIGSTOP
//! does: its clock goes on too, which is the point (a woken process must find that its lease is over).
//! A node that starts again is a new *life*; what an earlier life still has in hand can spawn nothing.
//!
//! Road not taken: tokio's paused clock. It advances by itself while a task is ready on another thread
//! or blocking pool, has no nodes, and no seeded order.

use crate::rng::Rng;
use std::{
    any::Any,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    fmt,
    future::Future,
    hash::{DefaultHasher, Hasher as _},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};
use tenure_kernel::{
    runtime::{BoxFuture, Clock, Runtime},
    time::Timestamp,
};

/// Polls after which a run counts as a livelock.
pub const STEPS_MAX: u64 = 800_000;
/// Polls without time moving after which a run counts as a livelock.
pub const STEPS_PER_MOMENT_MAX: u64 = 50_000;
/// Trace lines that are kept.
const TRACE_LINES: usize = 120;
/// The store's wall clock when the world begins: 2030-01-01.
const EPOCH_MICROS: u64 = 1_893_456_000_000_000;

/// Names a node.
pub type NodeId = usize;

/// Why a run could not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// Nothing is ready and no timer is set.
    Deadlock,
    /// Too many polls.
    Livelock(String),
    /// A task panicked.
    Panic {
        /// Whose task.
        node: String,
        /// What it said.
        message: String,
    },
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::Deadlock => f.write_str("deadlock: nothing is ready and no timer is set"),
            Stuck::Livelock(why) => write!(f, "livelock: {why}"),
            Stuck::Panic { node, message } => write!(f, "a task of {node} panicked: {message}"),
        }
    }
}

/// The executor; clones are the same one.
#[derive(Clone)]
pub struct Sim(Arc<Shared>);

struct Shared(Mutex<State>);

struct State {
    rng: Rng,
    now: u64,
    wall_ahead: u64,
    steps: u64,
    steps_max: u64,
    steps_here: u64,
    sequence: u64,
    nodes: Vec<Node>,
    tasks: Vec<Slot>,
    free: Vec<usize>,
    ready: Vec<TaskRef>,
    timers: BinaryHeap<Reverse<Timer>>,
    trace: VecDeque<String>,
    hash: DefaultHasher,
    panic: Option<Stuck>,
    trap: Option<Trap>,
}

/// Something that happens right before the n-th poll of a node's tasks.
struct Trap {
    node: NodeId,
    polls: u64,
    spring: Box<dyn FnOnce() + Send>,
}

struct Node {
    name: String,
    life: u64,
    alive: bool,
    paused: bool,
    /// Its clock: an offset, and how fast it runs in parts per million.
    offset: u64,
    rate_ppm: u64,
    held_back: Vec<TaskRef>,
    /// Polls of its tasks, over all its lives.
    polls: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct TaskRef {
    index: usize,
    generation: u64,
}

#[derive(Default)]
struct Slot {
    generation: u64,
    node: NodeId,
    queued: bool,
    alive: bool,
    future: Option<BoxFuture<'static, ()>>,
    /// One per task, so that a sleep recognises it.
    waker: Option<Waker>,
}

struct Timer {
    at: u64,
    sequence: u64,
    fire: Fire,
}

enum Fire {
    Wake(Waker),
    Run(Box<dyn FnOnce() + Send>),
}

impl PartialEq for Timer {
    fn eq(&self, other: &Self) -> bool {
        self.sequence == other.sequence
    }
}
impl Eq for Timer {}
impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Timer {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.sequence).cmp(&(other.at, other.sequence))
    }
}

struct TaskWaker {
    shared: Arc<Shared>,
    task: TaskRef,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.shared.lock().enqueue(self.task);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn enqueue(&mut self, task: TaskRef) {
        let slot = &mut self.tasks[task.index];
        if slot.alive && slot.generation == task.generation && !slot.queued {
            slot.queued = true;
            let node = slot.node;
            if self.nodes[node].paused {
                self.nodes[node].held_back.push(task);
            } else {
                self.make_ready(task);
            }
        }
    }

    /// Sorted, so that the order of wake-ups within one poll does not matter: tokio's `watch` wakes
    /// its receivers in an order that it draws itself.
    fn make_ready(&mut self, task: TaskRef) {
        let place = self.ready.partition_point(|t| t.index < task.index);
        self.ready.insert(place, task);
    }

    fn add(&mut self, node: NodeId, future: BoxFuture<'static, ()>) {
        let index = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(Slot::default());
            self.tasks.len() - 1
        });
        let slot = &mut self.tasks[index];
        slot.generation += 1;
        (slot.node, slot.alive, slot.queued) = (node, true, false);
        (slot.future, slot.waker) = (Some(future), None);
        let task = TaskRef { index, generation: slot.generation };
        self.enqueue(task);
    }

    fn release(&mut self, index: usize) -> Option<BoxFuture<'static, ()>> {
        let slot = &mut self.tasks[index];
        slot.alive = false;
        self.free.push(index);
        slot.future.take()
    }

    fn at(&mut self, at: u64, fire: Fire) {
        self.sequence += 1;
        let sequence = self.sequence;
        self.timers.push(Reverse(Timer { at, sequence, fire }));
    }

    fn trace(&mut self, line: &str) {
        self.hash.write(line.as_bytes());
        self.hash.write_u64(self.now);
        if self.trace.len() == TRACE_LINES {
            self.trace.pop_front();
        }
        let (secs, millis) = (self.now / 1_000_000, self.now / 1_000 % 1_000);
        self.trace.push_back(format!("{secs:>5}.{millis:03} {line}"));
    }
}

impl Sim {
    /// An empty world.
    pub fn new(seed: u64) -> Self {
        Sim(Arc::new(Shared(Mutex::new(State {
            rng: Rng::new(seed),
            now: 0,
            wall_ahead: 0,
            steps: 0,
            steps_max: STEPS_MAX,
            steps_here: 0,
            sequence: 0,
            nodes: Vec::new(),
            tasks: Vec::new(),
            free: Vec::new(),
            ready: Vec::new(),
            timers: BinaryHeap::new(),
            trace: VecDeque::new(),
            hash: DefaultHasher::new(),
            panic: None,
            trap: None,
        }))))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// A new node, not started yet.
    pub fn node(&self, name: &str) -> NodeId {
        let mut s = self.lock();
        s.nodes.push(Node {
            name: name.to_owned(),
            life: 0,
            alive: false,
            paused: false,
            offset: 0,
            rate_ppm: 1_000_000,
            held_back: Vec::new(),
            polls: 0,
        });
        s.nodes.len() - 1
    }

    /// Begins a life of a node and gives its runtime. `offset` and `rate_ppm` are its clock.
    pub fn start(&self, node: NodeId, offset: Duration, rate_ppm: u64) -> Arc<NodeRuntime> {
        self.kill(node);
        let mut s = self.lock();
        let n = &mut s.nodes[node];
        n.life += 1;
        (n.alive, n.paused) = (true, false);
        (n.offset, n.rate_ppm) = (offset.as_micros() as u64, rate_ppm);
        Arc::new(NodeRuntime { sim: self.clone(), node, life: n.life })
    }

    /// Ends a node where it stands.
    pub fn kill(&self, node: NodeId) {
        let mut dropped = Vec::new();
        {
            let mut s = self.lock();
            s.nodes[node].alive = false;
            s.nodes[node].paused = false;
            s.nodes[node].held_back.clear();
            for index in 0..s.tasks.len() {
                if s.tasks[index].alive && s.tasks[index].node == node {
                    dropped.push(s.release(index));
                }
            }
        }
        // Outside the lock: destructors may wake others.
        drop(dropped);
    }

    /// Drops every task and timer.
    pub fn end(&self) {
        let nodes = self.lock().nodes.len();
        (0..nodes).for_each(|node| self.kill(node));
        let timers = std::mem::take(&mut self.lock().timers);
        drop(timers);
        let trap = self.lock().trap.take();
        drop(trap);
        let wakers: Vec<_> = self.lock().tasks.iter_mut().map(|t| t.waker.take()).collect();
        drop(wakers);
    }

    /// Stops polling a node's tasks.
    pub fn pause(&self, node: NodeId) {
        let mut s = self.lock();
        if s.nodes[node].alive && !s.nodes[node].paused {
            s.nodes[node].paused = true;
            let ready = std::mem::take(&mut s.ready);
            let (held, ready) = ready.into_iter().partition(|t| s.tasks[t.index].node == node);
            s.ready = ready;
            s.nodes[node].held_back = held;
        }
    }

    /// Polls them again.
    pub fn resume(&self, node: NodeId) {
        let mut s = self.lock();
        s.nodes[node].paused = false;
        let held = std::mem::take(&mut s.nodes[node].held_back);
        held.into_iter().for_each(|task| s.make_ready(task));
    }

    /// Whether a node has been started and neither killed nor paused.
    pub fn is_running(&self, node: NodeId) -> bool {
        let s = self.lock();
        s.nodes[node].alive && !s.nodes[node].paused
    }

    /// Whether this very life of a node has not ended. A paused one has not: that is the point of it.
    pub fn is_alive(&self, node: NodeId, life: u64) -> bool {
        let s = self.lock();
        s.nodes[node].alive && s.nodes[node].life == life
    }

    /// Polls of a node's tasks so far.
    pub fn polls_of(&self, node: NodeId) -> u64 {
        self.lock().nodes[node].polls
    }

    /// Does something right before a node's tasks are polled for the n-th time, from 1: at exactly this await
    /// point of theirs. One trap at a time.
    pub fn before_poll(&self, node: NodeId, n: u64, run: impl FnOnce() + Send + 'static) {
        self.lock().trap = Some(Trap { node, polls: n, spring: Box::new(run) });
    }

    /// Virtual time since the beginning.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.lock().now)
    }

    /// Draws from the world's chance.
    pub fn draw<T>(&self, draw: impl FnOnce(&mut Rng) -> T) -> T {
        draw(&mut self.lock().rng)
    }

    /// Lets the store's wall clock jump forward.
    pub fn jump_wall_clock(&self, by: Duration) {
        self.lock().wall_ahead += by.as_micros() as u64;
    }

    /// Notes a line; its hash makes two runs comparable.
    pub fn trace(&self, line: impl AsRef<str>) {
        self.lock().trace(line.as_ref());
    }

    /// The last lines, and a hash over all of them and over every scheduling decision.
    pub fn traced(&self) -> (Vec<String>, u64) {
        let s = self.lock();
        (s.trace.iter().cloned().collect(), s.hash.finish())
    }

    /// So many polls more than usual are no livelock: the world is a large one.
    pub fn allow(&self, more: u64) {
        self.lock().steps_max += more;
    }

    /// Polls so far.
    pub fn steps(&self) -> u64 {
        self.lock().steps
    }

    /// Runs something after a while, whatever becomes of the nodes.
    pub fn after(&self, d: Duration, run: impl FnOnce() + Send + 'static) {
        let mut s = self.lock();
        let at = s.now + d.as_micros() as u64;
        s.at(at, Fire::Run(Box::new(run)));
    }

    /// Completes after a while of true time.
    pub fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        let at = self.lock().now + d.as_micros() as u64;
        Box::pin(Sleep { sim: self.clone(), at, set: None })
    }

    /// Runs the world until `done` says so after some step.
    pub fn run_until(&self, mut done: impl FnMut() -> bool) -> Result<(), Stuck> {
        while !done() {
            self.step()?;
        }
        Ok(())
    }

    fn step(&self) -> Result<(), Stuck> {
        let (task, mut future, waker) = {
            let mut guard = self.lock();
            let s = &mut *guard;
            if let Some(stuck) = s.panic.take() {
                return Err(stuck);
            }
            if s.ready.is_empty() {
                drop(guard);
                return self.advance();
            }
            if let Some(trap) = s.trap.take_if(|t| s.nodes[t.node].polls + 1 >= t.polls) {
                drop(guard);
                (trap.spring)();
                return Ok(());
            }
            s.steps += 1;
            s.steps_here += 1;
            if s.steps > s.steps_max {
                return Err(Stuck::Livelock(format!("{} polls", s.steps_max)));
            }
            if s.steps_here > STEPS_PER_MOMENT_MAX {
                let why = format!("{STEPS_PER_MOMENT_MAX} polls while time stood still");
                return Err(Stuck::Livelock(why));
            }
            let pick = s.rng.index(s.ready.len());
            let task = s.ready.remove(pick);
            s.hash.write_usize(task.index);
            let slot = &mut s.tasks[task.index];
            if !slot.alive || slot.generation != task.generation {
                return Ok(());
            }
            s.nodes[slot.node].polls += 1;
            slot.queued = false;
            let Some(future) = slot.future.take() else { return Ok(()) };
            let wake = || Waker::from(Arc::new(TaskWaker { shared: self.0.clone(), task }));
            (task, future, slot.waker.get_or_insert_with(wake).clone())
        };
        let mut cx = Context::from_waker(&waker);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(&mut cx)));
        let mut s = self.lock();
        let slot = &mut s.tasks[task.index];
        let mine = slot.alive && slot.generation == task.generation;
        match polled {
            Ok(Poll::Pending) if mine => {
                slot.future = Some(future);
                return Ok(());
            }
            Ok(_) => {}
            Err(payload) => {
                let node = s.nodes[s.tasks[task.index].node].name.clone();
                s.panic = Some(Stuck::Panic { node, message: message_of(payload) });
            }
        }
        if mine {
            s.release(task.index);
        }
        drop(s);
        drop(future);
        Ok(())
    }

    /// Moves time to the next timer and fires everything of that moment.
    fn advance(&self) -> Result<(), Stuck> {
        let mut fired = Vec::new();
        {
            let mut s = self.lock();
            let Some(Reverse(next)) = s.timers.pop() else { return Err(Stuck::Deadlock) };
            s.now = s.now.max(next.at);
            s.steps_here = 0;
            let now = s.now;
            fired.push(next.fire);
            while s.timers.peek().is_some_and(|Reverse(t)| t.at <= now) {
                fired.extend(s.timers.pop().map(|Reverse(t)| t.fire));
            }
        }
        for fire in fired {
            match fire {
                Fire::Wake(waker) => waker.wake(),
                Fire::Run(run) => run(),
            }
        }
        Ok(())
    }
}

fn message_of(payload: Box<dyn Any + Send>) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned())
}

/// The store's wall clock.
pub struct WallClock(pub Sim);

impl Clock for WallClock {
    fn now(&self) -> Timestamp {
        let s = self.0.lock();
        let micros = EPOCH_MICROS + s.now + s.wall_ahead;
        Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
    }
}

/// What one life of a node sees of the world.
pub struct NodeRuntime {
    sim: Sim,
    node: NodeId,
    life: u64,
}

impl NodeRuntime {
    /// Which life of which node.
    pub fn life(&self) -> (NodeId, u64) {
        (self.node, self.life)
    }
}

impl Runtime for NodeRuntime {
    fn mono(&self) -> Duration {
        let s = self.sim.lock();
        let n = &s.nodes[self.node];
        let ticks = u128::from(s.now) * u128::from(n.rate_ppm) / 1_000_000;
        Duration::from_micros(n.offset + ticks as u64)
    }

    fn sleep(&self, d: Duration) -> BoxFuture<'static, ()> {
        let s = self.sim.lock();
        let rate = u128::from(s.nodes[self.node].rate_ppm.max(1));
        // Rounded up: a clock that says the time has come must not be asked a microsecond early.
        let micros = (d.as_micros() * 1_000_000).div_ceil(rate) + 1;
        let at = s.now.saturating_add(u64::try_from(micros).unwrap_or(u64::MAX));
        drop(s);
        Box::pin(Sleep { sim: self.sim.clone(), at, set: None })
    }

    fn spawn(&self, future: BoxFuture<'static, ()>) {
        let mut s = self.sim.lock();
        let n = &s.nodes[self.node];
        if n.alive && n.life == self.life {
            s.add(self.node, future);
        } else {
            drop(s);
            drop(future);
        }
    }

    fn random(&self) -> u64 {
        self.sim.lock().rng.word()
    }
}

struct Sleep {
    sim: Sim,
    at: u64,
    set: Option<Waker>,
}

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let sim = self.sim.clone();
        let mut s = sim.lock();
        if s.now >= self.at {
            return Poll::Ready(());
        }
        // A new timer only for a new waker: a loop that polls a sleep often would fill the heap.
        if !self.set.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
            self.set = Some(cx.waker().clone());
            s.at(self.at, Fire::Wake(cx.waker().clone()));
        }
        Poll::Pending
    }
}
