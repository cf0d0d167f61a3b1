//! A job's history, read from its stream.

use crate::model::{Job, JobEvent, JobState, OwnEvent};
use serde_json::Value;
use std::{collections::BTreeMap, sync::Arc};
use tenure_kernel::{
    error::StoreError,
    ids::{EntityId, SessionId},
    machine::{Machine, decode_event},
    store::Store,
    stream::{Body, Event, Record},
    table::{Tables, kernel_events as ke},
    verify::Meta,
};
use tenure_steps::{
    events::{StepEvent, StepId},
    history::{History, Outcome},
};

/// Records read at once.
const PAGE: usize = 512;

/// Why a history can not be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The store is away.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What it holds can not be read.
    #[error("{0}")]
    Unreadable(String),
}

/// What a stream says.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// The flow's input of this run.
    pub input: Value,
    /// The steps of this run.
    pub history: History,
    /// Who held it under which epoch.
    pub holders: BTreeMap<u64, SessionId>,
    /// The state that the events give.
    pub state: JobState,
    /// Version of the last event read.
    pub version: u64,
    /// Bytes of events of this run.
    pub bytes: u64,
    /// How long the job was given at its birth.
    pub must_end_in_ms: u64,
    /// Outputs of children that were read from them, and are not recorded here yet.
    pub fetched: Vec<(StepId, Value)>,
    /// Of a cancelled job: how often each step was looked at of which nobody knows whether it happened.
    pub looks: BTreeMap<StepId, u32>,
    /// Outcomes that were corrected after the flow had heard of them: it has to be replayed.
    pub corrections: u32,
}

impl Loaded {
    /// Takes one event in. Bodies must be in place.
    pub fn take(&mut self, event: &Event, meta: &Meta) -> Result<(), LoadError> {
        if let Some(session) = meta.take {
            self.holders.insert(event.epoch, session);
        }
        self.version = event.version;
        self.bytes += event.body.content_len();
        let read = decode_event::<Job>(&event.name, &event.body)
            .map_err(|e| LoadError::Unreadable(e.to_string()))?;
        let Some(read) = read else { return Ok(()) };
        Job::apply(&mut self.state, &read);
        match read {
            JobEvent::Step(step) => {
                self.corrections += u32::from(matches!(step, StepEvent::EffectCorrected { .. }));
                self.history.apply(&step, event.at, event.epoch);
            }
            JobEvent::Own(OwnEvent::JobCreated(new)) => {
                (self.input, self.must_end_in_ms) = (new.input, new.must_end_in_ms);
            }
            JobEvent::Own(OwnEvent::JobUndoing { lost: false, .. }) => {
                for call in self.state.calls.iter().filter(|c| c.unknown.is_some()) {
                    *self.looks.entry(call.step.clone()).or_default() += 1;
                }
            }
            JobEvent::Own(OwnEvent::JobContinued { input }) => {
                self.input = input;
                self.history.restart();
                self.bytes = 0;
            }
            JobEvent::Own(OwnEvent::HistoryCopied { events, .. }) => {
                for copied in events {
                    let step: StepEvent = serde_json::from_value(copied)
                        .map_err(|e| LoadError::Unreadable(format!("a copied event: {e}")))?;
                    self.history.apply(&step, event.at, event.epoch);
                }
            }
            JobEvent::Own(_) => {}
        }
        Ok(())
    }

    /// Takes the records of a stream from a version on.
    pub async fn read(
        &mut self,
        store: &Arc<dyn Store>,
        job: EntityId,
        from: u64,
    ) -> Result<(), LoadError> {
        let mut from = from;
        loop {
            let page = store.stream(job, from, PAGE).await?;
            let Some(last) = page.last() else { return Ok(()) };
            from = last.last() + 1;
            let full = page.len() == PAGE;
            for record in &page {
                let (meta, events) = read_events(store, record).await?;
                for event in &events {
                    self.take(event, &meta)?;
                }
            }
            if !full {
                return Ok(());
            }
        }
    }

    /// Outputs of children that were too large for an event.
    pub async fn fetch_children(
        &mut self,
        store: &Arc<dyn Store>,
        job: EntityId,
    ) -> Result<(), LoadError> {
        for (step, record) in &mut self.history.steps {
            if let Some(Outcome::InChild(ordinal)) = record.outcome {
                let child = JobState::child_id(job, ordinal);
                let output = output_of(store, child).await?;
                self.fetched.push((step.clone(), output.clone()));
                record.outcome = Some(Outcome::Ok(output));
            }
        }
        Ok(())
    }
}

/// A job's history.
pub async fn load(store: &Arc<dyn Store>, job: EntityId) -> Result<Loaded, LoadError> {
    let mut loaded = Loaded::default();
    loaded.read(store, job, 1).await?;
    loaded.fetch_children(store, job).await?;
    Ok(loaded)
}

/// The meta block of a record of a job.
pub fn meta_of(record: &Record) -> Result<Meta, LoadError> {
    meta_by::<Job>(record)
}

fn meta_by<M: Machine>(record: &Record) -> Result<Meta, LoadError> {
    let mut tables = Tables::default();
    tables.insert(M::TABLE);
    let meta = record.meta().map_err(|e| LoadError::Unreadable(e.to_string()))?;
    Meta::from_bytes(meta, &tables).map_err(|e| LoadError::Unreadable(e.to_string()))
}

/// The events of a record of a job with their bodies in place, and its meta block.
pub async fn read_events(
    store: &Arc<dyn Store>,
    record: &Record,
) -> Result<(Meta, Vec<Event>), LoadError> {
    read_events_of::<Job>(store, record).await
}

/// The same of another machine.
pub async fn read_events_of<M: Machine>(
    store: &Arc<dyn Store>,
    record: &Record,
) -> Result<(Meta, Vec<Event>), LoadError> {
    let meta = meta_by::<M>(record)?;
    let mut events = record.events().map_err(|e| LoadError::Unreadable(e.to_string()))?;
    for event in &mut events {
        if let Body::Blob { digest, .. } = event.body {
            let bytes = store.blob(digest).await?;
            event.body = Body::Inline(bytes.ok_or_else(|| {
                LoadError::Unreadable(format!("the body of event {} is gone", event.version))
            })?);
        }
    }
    Ok((meta, events))
}

/// What a completed job returned.
pub async fn output_of(store: &Arc<dyn Store>, job: EntityId) -> Result<Value, LoadError> {
    let gone = || LoadError::Unreadable(format!("the output of job {job} is gone"));
    let head = store.head(job).await?.ok_or_else(gone)?;
    let records = store.stream(job, head.version, 1).await?;
    let record = records.last().ok_or_else(gone)?;
    let (_, events) = read_events(store, record).await?;
    for event in events.iter().rev().filter(|e| !e.name.starts_with(ke::TENURE_ENDED)) {
        if let Ok(Some(JobEvent::Own(OwnEvent::JobCompleted { output, .. }))) =
            decode_event::<Job>(&event.name, &event.body)
        {
            return Ok(output);
        }
    }
    Err(gone())
}
