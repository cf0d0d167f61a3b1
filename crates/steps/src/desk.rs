//! Where a flow and its driver meet. The flow puts what it asks for on the desk and finds outcomes there;
//! the driver takes the one and brings the other. Both run on one thread at a time.

use crate::{
    events::{StepEvent, StepId, ValueKind, WaitKind},
    history::{History, Outcome, Shape},
    saga::Left,
    tool::CallOptions,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    panic::Location,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// Where a step was asked for.
#[derive(Clone, Debug)]
pub enum Place {
    /// In a flow's code.
    Code(&'static Location<'static>),
    /// In what a flow reads: a step of a plan has a name, and the line of the code that runs all plans says nothing.
    Named(Arc<str>),
}

/// A place as events carry it: its name; of code the file's last two parts and the line, so that the same code
/// built in another directory is the same place.
pub fn place_text(place: &Place) -> String {
    let code = match place {
        Place::Code(code) => code,
        Place::Named(name) => return name.to_string(),
    };
    let file = code.file();
    let mut cuts = file.rmatch_indices('/').map(|(i, _)| i);
    let start = cuts.nth(1).map_or(0, |i| i + 1);
    format!("{}:{}", &file[start..], code.line())
}

/// What a flow asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Ask {
    /// Call a tool.
    Tool {
        /// Which.
        tool: String,
        /// With what.
        input: Value,
        /// Digest of it.
        arguments_hash: String,
        /// Timeout, retries, class.
        options: CallOptions,
        /// Something will undo it, if it happens: the flow says what, when it knows the result.
        undoable: bool,
    },
    /// Wait for something from outside.
    Wait {
        /// What.
        kind: WaitKind,
        /// Its correlation key.
        key: String,
        /// For how long.
        within: Option<Duration>,
        /// What a person should know.
        note: Option<String>,
    },
    /// Sleep.
    Sleep(Duration),
    /// Run another job.
    Child {
        /// Its flow.
        flow: String,
        /// Its version; the newest without one.
        version: Option<u32>,
        /// Its input.
        input: Value,
        /// Digest of it.
        arguments_hash: String,
        /// Something will undo it, if it completes.
        undoable: bool,
    },
}

impl Ask {
    /// Whether it is a call that something undoes.
    pub fn is_undoable(&self) -> bool {
        matches!(self, Ask::Tool { undoable: true, .. })
    }

    /// What replay compares.
    pub fn shape(&self) -> Shape {
        match self {
            Ask::Tool { tool, arguments_hash, .. } => {
                Shape::Tool { tool: tool.clone(), arguments_hash: arguments_hash.clone() }
            }
            Ask::Wait { kind, key, .. } => Shape::Wait { kind: *kind, key: key.clone() },
            Ask::Sleep(_) => Shape::Sleep,
            Ask::Child { flow, arguments_hash, .. } => {
                Shape::Child { flow: flow.clone(), arguments_hash: arguments_hash.clone() }
            }
        }
    }
}

/// Something that was asked for.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Under which id.
    pub step: StepId,
    /// What.
    pub ask: Ask,
    /// Where.
    pub place: String,
    /// It stands in the history already: it goes on, it does not begin.
    pub known: bool,
}

/// The flow asks for something else than what is recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Where it shows.
    pub step: StepId,
    /// What stands in the history, and where it was asked for.
    pub recorded: String,
    /// What the flow does now, and where.
    pub expected: String,
}

impl std::fmt::Display for Divergence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "the flow diverges from its history at step {}: recorded is {}, the code now asks for {}",
            self.step, self.recorded, self.expected
        )
    }
}

/// See the module.
pub struct Desk(Mutex<Board>);

pub(crate) struct Board {
    pub job: EntityId,
    pub tenant: String,
    pub run: u32,
    pub now: Timestamp,
    pub entropy: u64,
    known: HashMap<StepId, (Shape, String)>,
    values: HashMap<StepId, Value>,
    outcomes: HashMap<StepId, Outcome>,
    wakers: HashMap<StepId, Waker>,
    pub open: BTreeMap<StepId, Place>,
    pub asked: HashSet<StepId>,
    pub asks: Vec<Asked>,
    pub records: Vec<StepEvent>,
    pub dropped: Vec<StepId>,
    pub trouble: Option<Divergence>,
    pub last_place: Option<Place>,
    names: HashMap<String, u32>,
    /// What the flow has let go of and that does not stay as it is.
    left: Left,
    /// The flow is not polled any more: what it lets go of now is as it was recorded.
    closed: bool,
    registered: u64,
}

impl Desk {
    pub(crate) fn new(
        job: EntityId,
        tenant: &str,
        run: u32,
        now: Timestamp,
        entropy: u64,
        history: &History,
    ) -> Self {
        let known =
            history.steps.iter().map(|(id, r)| (id.clone(), (r.shape.clone(), r.place.clone())));
        let values = history.steps.iter().filter_map(|(id, r)| match (&r.shape, &r.outcome) {
            (Shape::Value { .. }, Some(Outcome::Ok(v))) => Some((id.clone(), v.clone())),
            _ => None,
        });
        Desk(Mutex::new(Board {
            job,
            tenant: tenant.to_owned(),
            run,
            now,
            entropy,
            known: known.collect(),
            values: values.collect(),
            outcomes: HashMap::new(),
            wakers: HashMap::new(),
            open: BTreeMap::new(),
            asked: HashSet::new(),
            asks: Vec::new(),
            records: Vec::new(),
            dropped: Vec::new(),
            trouble: None,
            last_place: None,
            names: HashMap::new(),
            left: Left::default(),
            closed: false,
            registered: 0,
        }))
    }

    pub(crate) fn board(&self) -> MutexGuard<'_, Board> {
        // A flow that panics while it holds this lock is not polled again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A wait's key: the name, and from the second use on its number. A key completes once.
    pub(crate) fn key(&self, name: &str) -> String {
        let mut board = self.board();
        let uses = board.names.entry(name.to_owned()).or_insert(0);
        *uses += 1;
        if *uses == 1 { name.to_owned() } else { format!("{name}#{uses}") }
    }

    pub(crate) fn poll_step(
        &self,
        id: &StepId,
        ask: &mut Option<Ask>,
        place: &Place,
        cx: &mut Context<'_>,
    ) -> Poll<Outcome> {
        let mut board = self.board();
        if let Some(ask) = ask.take() {
            board.ask(id, ask, place);
        }
        match board.outcomes.remove(id) {
            Some(outcome) => {
                board.open.remove(id);
                Poll::Ready(outcome)
            }
            None => {
                board.wakers.insert(id.clone(), cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// A value that is recorded when it is first asked for, and taken from the history afterwards.
    pub(crate) fn value(
        &self,
        id: &StepId,
        kind: ValueKind,
        name: &str,
        place: &Place,
        make: impl FnOnce(&mut Board) -> Value,
    ) -> Option<Value> {
        let mut board = self.board();
        board.last_place = Some(place.clone());
        board.asked.insert(id.clone());
        let shape = Shape::Value { kind: kind.as_str(), name: name.to_owned() };
        if board.known.contains_key(id) {
            return if board.agrees(id, &shape, place) {
                board.values.get(id).cloned()
            } else {
                None
            };
        }
        let value = make(&mut board);
        board.values.insert(id.clone(), value.clone());
        let record = StepEvent::ValueRecorded {
            step: id.clone(),
            kind,
            name: name.to_owned(),
            value: value.clone(),
            place: place_text(place),
        };
        board.records.push(record);
        Some(value)
    }

    pub(crate) fn drop_step(&self, id: &StepId) {
        let mut board = self.board();
        board.wakers.remove(id);
        board.outcomes.remove(id);
        if board.open.remove(id).is_some() {
            board.dropped.push(id.clone());
        }
    }

    /// Asks for a step's cancellation and waits for its end all the same: what it did has to be undone.
    pub(crate) fn stop_step(&self, id: &StepId) {
        let mut board = self.board();
        if board.open.contains_key(id) {
            board.dropped.push(id.clone());
        }
    }

    /// The number of an undo, in the order of registration.
    pub(crate) fn registers(&self) -> u64 {
        let mut board = self.board();
        board.registered += 1;
        board.registered
    }

    /// Notes what the flow lets go of.
    pub(crate) fn leave(&self, leave: impl FnOnce(&mut Left)) {
        let mut board = self.board();
        if !board.closed {
            leave(&mut board.left);
        }
    }

    /// Takes what was let go of so far, and puts something else in its place.
    pub(crate) fn swap_left(&self, with: Left) -> Left {
        std::mem::replace(&mut self.board().left, with)
    }

    /// The flow is not polled any more.
    pub(crate) fn close(&self) {
        // Not under the lock: what was let go of comes back to the desk when it is dropped.
        let left = {
            let mut board = self.board();
            board.closed = true;
            std::mem::take(&mut board.left)
        };
        drop(left);
    }

    /// Brings an outcome. A step that the flow has dropped does not get it.
    pub(crate) fn deliver(&self, id: &StepId, outcome: Outcome) {
        let waker = {
            let mut board = self.board();
            if !board.open.contains_key(id) {
                return;
            }
            board.outcomes.insert(id.clone(), outcome);
            board.wakers.remove(id)
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Board {
    fn ask(&mut self, id: &StepId, ask: Ask, place: &Place) {
        self.last_place = Some(place.clone());
        self.asked.insert(id.clone());
        self.open.insert(id.clone(), place.clone());
        let known = self.known.contains_key(id);
        if known && !self.agrees(id, &ask.shape(), place) {
            return;
        }
        self.asks.push(Asked { step: id.clone(), ask, place: place_text(place), known });
    }

    fn agrees(&mut self, id: &StepId, shape: &Shape, place: &Place) -> bool {
        let Some((recorded, recorded_place)) = self.known.get(id) else { return true };
        // A retry's timer comes before the shape of its step is known only in a damaged history.
        if recorded == shape {
            return true;
        }
        let divergence = Divergence {
            step: id.clone(),
            recorded: format!("{recorded} (asked for at {recorded_place})"),
            expected: format!("{shape} (at {})", place_text(place)),
        };
        self.trouble.get_or_insert(divergence);
        false
    }

    pub(crate) fn next_random(&mut self) -> u64 {
        // SplitMix64 from entropy that the shell brought; what it gives is recorded.
        self.entropy = self.entropy.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.entropy;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}
