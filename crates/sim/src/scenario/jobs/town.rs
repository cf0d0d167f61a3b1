//! The town: everything outside the store that tools of jobs touch, and what is really true of it. It counts
//! what was done by idempotency key, knows which calls can still act (their code exists somewhere, maybe in a
//! process that is stopped), and which processes are really dead. Tools and checkers ask it; the system under
//! test learns from it only what its own probes and liveness say.

use crate::executor::NodeId;
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tenure_kernel::ids::EntityId;
use tenure_steps::tool::Class;

/// The tools of the town.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Craft {
    /// Idempotent: the target knows the key.
    Send,
    /// Verifiable.
    Ship,
    /// Verifiable, and its target refuses old epochs.
    Seal,
    /// Verifiable, and it does nothing after its time.
    Train,
    /// Compensatable.
    Book,
    /// Irreversible.
    Burn,
    /// Takes back what another did. Idempotent.
    Recall,
    /// The same, verifiable.
    Revoke,
    /// The same, irreversible.
    Regret,
}

impl Craft {
    pub(super) const ALL: [Craft; 6] =
        [Craft::Send, Craft::Ship, Craft::Seal, Craft::Train, Craft::Book, Craft::Burn];
    /// Those that take something back; only sagas have them.
    pub(super) const BACK: [Craft; 3] = [Craft::Recall, Craft::Revoke, Craft::Regret];

    pub(super) fn name(self) -> &'static str {
        match self {
            Craft::Send => "send",
            Craft::Ship => "ship",
            Craft::Seal => "seal",
            Craft::Train => "train",
            Craft::Book => "book",
            Craft::Burn => "burn",
            Craft::Recall => "recall",
            Craft::Revoke => "revoke",
            Craft::Regret => "regret",
        }
    }

    pub(super) fn class(self) -> Class {
        match self {
            Craft::Send | Craft::Recall => Class::Idempotent,
            Craft::Ship | Craft::Seal | Craft::Train | Craft::Revoke => Class::Verifiable,
            Craft::Book => Class::Compensatable,
            Craft::Burn | Craft::Regret => Class::Irreversible,
        }
    }
}

/// What was done under one key.
#[derive(Clone, Debug)]
pub(super) struct Deed {
    pub craft: Craft,
    pub job: EntityId,
    pub step: String,
    /// By whom, under which epoch and call.
    pub done: Vec<(String, u64, u32)>,
    pub undone: u32,
    /// Calls whose code exists.
    pub at_work: Vec<(u64, u32)>,
    /// Calls that were begun, whatever became of them.
    pub begun: Vec<(u64, u32)>,
    receipt: u64,
}

impl Deed {
    /// What it comes to.
    pub(super) fn net(&self) -> i64 {
        self.done.len() as i64 - i64::from(self.undone)
    }
}

#[derive(Default)]
struct Inner {
    deeds: BTreeMap<String, Deed>,
    fences: BTreeMap<EntityId, u64>,
    receipts: u64,
    /// By receipt: under which keys it was taken back.
    taken_back: BTreeMap<String, BTreeSet<String>>,
    /// What was taken in by a batch, as those say who submitted it.
    submitted: Vec<super::batches::Submitted>,
    /// Actions on many jobs.
    bulks: Vec<super::bulk::Done>,
    /// Wishes of applications.
    intake: super::intake::Table,
    /// The separate effect store.
    effects: BTreeMap<(String, u64, u32), Value>,
    /// Processes by their number.
    lives: Vec<(NodeId, u64)>,
    orders: Vec<super::clients::Order>,
    /// Jobs that have called something, by the gate they had to pass.
    passed: BTreeMap<String, BTreeSet<EntityId>>,
    setup: super::Setup,
    /// Seasons that have begun after the first one.
    seasons: u64,
}

/// See the module.
#[derive(Default)]
pub struct Town(Mutex<Inner>);

impl Town {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How this run is made.
    pub(crate) fn setup(&self) -> super::Setup {
        self.lock().setup
    }

    pub(crate) fn prepare(&self, setup: super::Setup) {
        self.lock().setup = setup;
    }

    /// Everybody comes back: the storm may begin again.
    pub(super) fn begin_season(&self) {
        self.lock().seasons += 1;
    }

    /// Seasons that have begun after the first one.
    pub(crate) fn seasons(&self) -> u64 {
        self.lock().seasons
    }

    /// A process gets a number; a number is never used twice.
    pub(super) fn enrol(&self, life: (NodeId, u64)) -> u32 {
        let mut town = self.lock();
        town.lives.push(life);
        town.lives.len() as u32 - 1
    }

    pub(super) fn life(&self, number: u32) -> Option<(NodeId, u64)> {
        self.lock().lives.get(number as usize).copied()
    }

    pub(super) fn order(&self, order: super::clients::Order) {
        self.lock().orders.push(order);
    }

    pub(super) fn next_order(&self) -> Option<super::clients::Order> {
        self.lock().orders.pop()
    }

    /// A job that had to pass a gate calls something. Who has done so and `is_open`, this one included.
    pub(super) fn pass(
        &self,
        gate: &str,
        job: EntityId,
        is_open: impl Fn(&EntityId) -> bool,
    ) -> BTreeSet<EntityId> {
        let mut town = self.lock();
        let passed = town.passed.entry(gate.to_owned()).or_default();
        passed.insert(job);
        passed.retain(is_open);
        passed.clone()
    }

    /// A call begins: from here on its code exists until [`Town::leave`].
    pub(super) fn enter(
        &self,
        craft: Craft,
        key: &str,
        job: EntityId,
        step: &str,
        call: (u64, u32),
    ) {
        let mut town = self.lock();
        let deed = town.deeds.entry(key.to_owned()).or_insert_with(|| Deed {
            craft,
            job,
            step: step.to_owned(),
            done: Vec::new(),
            undone: 0,
            at_work: Vec::new(),
            begun: Vec::new(),
            receipt: 0,
        });
        deed.at_work.push(call);
        deed.begun.push(call);
    }

    /// Its code is gone: it returned, was dropped, or died with its process.
    pub(super) fn leave(&self, key: &str, call: (u64, u32)) {
        if let Some(deed) = self.lock().deeds.get_mut(key)
            && let Some(at) = deed.at_work.iter().position(|c| *c == call)
        {
            deed.at_work.remove(at);
        }
    }

    /// It happens. What comes back is the receipt: the same for every time under one key. `None`: the target
    /// refuses this epoch.
    pub(super) fn act(&self, key: &str, by: &str, (epoch, call): (u64, u32)) -> Option<Value> {
        let mut town = self.lock();
        let job = town.deeds.get(key)?.job;
        let fence = town.fences.get(&job).copied().unwrap_or(0);
        let deed = town.deeds.get(key)?;
        if deed.craft == Craft::Seal && epoch < fence {
            return None;
        }
        if deed.receipt == 0 {
            town.receipts += 1;
        }
        let fresh = town.receipts;
        let deed = town.deeds.get_mut(key)?;
        if deed.receipt == 0 {
            deed.receipt = fresh;
        }
        deed.done.push((by.to_owned(), epoch, call));
        Some(json!({ "receipt": deed.receipt }))
    }

    /// What has this receipt is taken back, under this key.
    pub(super) fn take_back(&self, receipt: &Value, key: &str) {
        let mut town = self.lock();
        town.taken_back.entry(receipt.to_string()).or_default().insert(key.to_owned());
    }

    /// Under which keys it was.
    pub(super) fn taken_back(&self, receipt: &Value) -> BTreeSet<String> {
        self.lock().taken_back.get(&receipt.to_string()).cloned().unwrap_or_default()
    }

    pub(super) fn note_submitted(&self, item: super::batches::Submitted) {
        self.lock().submitted.push(item);
    }

    pub(super) fn submitted(&self) -> Vec<super::batches::Submitted> {
        self.lock().submitted.clone()
    }

    pub(super) fn note_bulk(&self, done: super::bulk::Done) {
        self.lock().bulks.push(done);
    }

    pub(super) fn bulks(&self) -> Vec<super::bulk::Done> {
        self.lock().bulks.clone()
    }

    pub(super) fn intake<T>(&self, ask: impl FnOnce(&mut super::intake::Table) -> T) -> T {
        ask(&mut self.lock().intake)
    }

    /// Whether it happened, in truth.
    pub(super) fn receipt(&self, key: &str) -> Option<Value> {
        let town = self.lock();
        let deed = town.deeds.get(key).filter(|d| d.net() > 0)?;
        Some(json!({ "receipt": deed.receipt }))
    }

    /// The target has seen this epoch and refuses smaller ones.
    pub(super) fn fence(&self, job: EntityId, epoch: u64) {
        let mut town = self.lock();
        let fence = town.fences.entry(job).or_default();
        *fence = epoch.max(*fence);
    }

    /// Undoes what was done under a key. Again is fine.
    pub(super) fn undo(&self, key: &str) {
        if let Some(deed) = self.lock().deeds.get_mut(key) {
            deed.undone = deed.done.len() as u32;
        }
    }

    /// Whether this call was begun and its code is gone, in truth.
    pub(super) fn is_over(&self, key: &str, call: (u64, u32)) -> bool {
        let town = self.lock();
        let deed = town.deeds.get(key);
        deed.is_some_and(|d| d.begun.contains(&call) && !d.at_work.contains(&call))
    }

    pub(super) fn deeds(&self) -> BTreeMap<String, Deed> {
        self.lock().deeds.clone()
    }

    pub(super) fn put_effect(&self, name: (String, u64, u32), value: &Value) -> io::Result<()> {
        let mut town = self.lock();
        let there = town.effects.entry(name).or_insert_with(|| value.clone());
        match there == value {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::AlreadyExists, "another result is there")),
        }
    }

    pub(super) fn effect(&self, name: &(String, u64, u32)) -> Option<Value> {
        self.lock().effects.get(name).cloned()
    }

    /// Everything that was done.
    pub(crate) fn count(&self) -> usize {
        self.lock().deeds.values().map(|d| d.done.len()).sum()
    }
}
