//! From a store to an [`Export`]. Reads only; a job that runs goes on meanwhile, and what came after its head
//! was read is left for the next export.

use super::{
    Child, Dossier, EXPORT_BYTES_MAX, Export, FORMAT, Kept, LeftOut, Opening, Root, VERSION,
};
use crate::{
    drive::LoadError,
    model::{Job, JobEvent, JobState},
    view::stream,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashSet, VecDeque},
    sync::Arc,
};
use tenure_kernel::{
    error::StoreError,
    evidence::Evidence,
    feed::Cursor,
    ids::{EntityId, SessionId},
    machine::{Machine as _, decode_event},
    store::Store,
    stream::{Body, Event, Hash, Record},
    table::Class,
};
use tenure_steps::{
    canonical,
    effects::{EffectName, Effects},
    events::{CallOutcome, StepEvent},
};

/// What is wanted.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Descendants too; else their ids and chain values.
    pub with_children: bool,
    /// Who asks.
    pub by: String,
    /// Which program writes the file.
    pub program: String,
    /// Id of the key that will sign it.
    pub signed_by: Option<String>,
    /// The most that it may hold.
    pub bytes_max: u64,
}

impl Default for Ask {
    fn default() -> Self {
        Ask {
            with_children: false,
            by: String::new(),
            program: String::new(),
            signed_by: None,
            bytes_max: EXPORT_BYTES_MAX,
        }
    }
}

/// Why there is no export.
#[derive(Debug, thiserror::Error)]
pub enum GatherError {
    /// The history.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// More than one file holds.
    #[error("the export would hold more than {0} bytes (EXPORT_BYTES_MAX)")]
    TooLarge(u64),
}

impl From<StoreError> for GatherError {
    fn from(e: StoreError) -> Self {
        GatherError::Load(e.into())
    }
}

/// Everything of a job; `None` if there is no such job.
pub async fn gather(
    store: &Arc<dyn Store>,
    id: EntityId,
    ask: Ask,
    effects: Option<&dyn Effects>,
) -> Result<Option<Export>, GatherError> {
    let (blobs, left_out) = (BTreeMap::new(), BTreeSet::new());
    let mut gathering =
        Gathering { store, effects, blobs, left_out, bytes: 0, bytes_max: ask.bytes_max };
    let Some(first) = gathering.dossier(id).await? else { return Ok(None) };
    let (status, is_final) = (first.head.status, first.head.class() == Class::Final);
    let (mut jobs, mut seen) = (Vec::new(), BTreeSet::from([id]));
    let mut queue = VecDeque::from([first]);
    while let Some(mut dossier) = queue.pop_front() {
        for child in &mut dossier.children {
            if ask.with_children {
                if !seen.insert(child.id) {
                    continue;
                }
                match gathering.dossier(child.id).await? {
                    Some(found) => queue.push_back(found),
                    None => gathering.leave_out("job", child.id.to_string(), GONE),
                }
            } else {
                child.root = gathering.root(child.id).await?;
            }
        }
        jobs.push(dossier);
    }
    if !ask.with_children && jobs.iter().any(|d| !d.children.is_empty()) {
        let why = "they were not asked for; their ids and chain values are in the file";
        gathering.leave_out("children", id.to_string(), why);
    }
    let exported_at = store.now().await?;
    let opening = Opening {
        format: FORMAT.to_owned(),
        version: VERSION,
        job: id,
        status: status.name().to_owned(),
        is_final,
        with_children: ask.with_children,
        exported_at,
        exported_at_text: exported_at.to_string(),
        exported_by: ask.by,
        incarnation: format!("{:x}", incarnation(store).await?),
        program: ask.program,
        signed_by: ask.signed_by,
    };
    let Gathering { blobs, left_out, .. } = gathering;
    Ok(Some(Export { opening, jobs, blobs, left_out: left_out.into_iter().collect() }))
}

const GONE: &str = "it is not in the store any more";

/// Which life of which store; zero where the feed is still empty below its horizon.
async fn incarnation(store: &Arc<dyn Store>) -> Result<u64, StoreError> {
    Ok(store.feed(Cursor::START, 1).await?.next.incarnation)
}

struct Gathering<'a> {
    store: &'a Arc<dyn Store>,
    effects: Option<&'a dyn Effects>,
    blobs: BTreeMap<Hash, Vec<u8>>,
    left_out: BTreeSet<LeftOut>,
    bytes: u64,
    bytes_max: u64,
}

impl Gathering<'_> {
    fn leave_out(&mut self, what: &str, name: String, why: &str) {
        self.left_out.insert(LeftOut { what: what.to_owned(), name, why: why.to_owned() });
    }

    fn weigh(&mut self, bytes: usize) -> Result<(), GatherError> {
        self.bytes += bytes as u64;
        if self.bytes > self.bytes_max {
            Err(GatherError::TooLarge(self.bytes_max))
        } else {
            Ok(())
        }
    }

    async fn root(&self, id: EntityId) -> Result<Option<Root>, GatherError> {
        let head = self.store.head(id).await?;
        Ok(head.map(|h| Root {
            status: h.status.name().to_owned(),
            version: h.version,
            chain: h.chain.to_string(),
        }))
    }

    async fn dossier(&mut self, id: EntityId) -> Result<Option<Dossier>, GatherError> {
        let head = self.store.head(id).await?.filter(|h| h.kind() == Job::TABLE.kind);
        let Some(head) = head else { return Ok(None) };
        let mut records = stream::records(self.store, id).await?;
        records.retain(|r| r.last() <= head.version);
        if records.first().is_some_and(|r| r.first > 1) {
            self.leave_out("records", id.to_string(), "what is older than the seal is gone");
        }
        for record in &records {
            self.weigh(record.bytes.len())?;
        }
        let unread = head.mail_count.saturating_sub(head.mail_read);
        if unread > 0 {
            let why = format!("messages that had come and were not read: {unread}");
            self.leave_out("mail", id.to_string(), &why);
        }
        let mut evidence = self.store.evidence(id).await?;
        evidence.sort_by(|a, b| {
            (a.at, &a.said.key, a.said.call).cmp(&(b.at, &b.said.key, b.said.call))
        });
        for Evidence { said, .. } in &evidence {
            self.weigh(
                said.key.len() + said.who.len() + said.body.inline().map_or(0, <[u8]>::len),
            )?;
        }
        for digest in digests(&records, evidence.iter().map(|e| &e.said.body)) {
            self.blob(digest).await?;
        }
        let (mut calls, mut children) = (Calls::default(), Vec::new());
        for event in self.events(&records) {
            let Some(JobEvent::Step(step)) = self.read(&event) else { continue };
            match step {
                StepEvent::ChildStarted { step, ordinal, child, .. } => {
                    children.push(Child { id: child, ordinal, step, root: None });
                }
                StepEvent::CallHanded { key, call, what, nth, .. } => {
                    let name = JobState::call_id(id, &key, call, (what, nth)).to_string();
                    let why = "what was asked and answered is in the job's records; how its worker was found is not";
                    self.leave_out("call", name, why);
                    calls.elsewhere.insert((key, call));
                }
                StepEvent::ToolInvocationStarted { key, call, .. } => {
                    calls.started.push((key, event.epoch, call));
                }
                StepEvent::ToolInvocationFinished {
                    key,
                    call,
                    outcome: CallOutcome::Success,
                    ..
                } => {
                    calls.succeeded.insert((key, call));
                }
                _ => {}
            }
        }
        let kept = self.kept(calls)?;
        let sessions = self.sessions(&records).await?;
        Ok(Some(Dossier { head, records, kept, evidence, sessions, children }))
    }

    fn events(&self, records: &[Record]) -> Vec<Event> {
        records.iter().flat_map(|r| r.events().unwrap_or_default()).collect()
    }

    fn read(&self, event: &Event) -> Option<JobEvent> {
        let body = match &event.body {
            Body::Blob { digest, .. } => Body::Inline(self.blobs.get(digest)?.clone()),
            inline => inline.clone(),
        };
        decode_event::<Job>(&event.name, &body).ok().flatten()
    }

    /// Takes a blob along. It weighs as often as it is named: so often does somebody read what it says.
    async fn blob(&mut self, digest: Hash) -> Result<(), GatherError> {
        if let Some(bytes) = self.blobs.get(&digest) {
            return self.weigh(bytes.len());
        }
        match self.store.blob(digest).await? {
            Some(bytes) => {
                self.weigh(bytes.len())?;
                self.blobs.insert(digest, bytes);
            }
            None => {
                self.leave_out("blob", digest.to_string(), "erased: the store has its digest only")
            }
        }
        Ok(())
    }

    /// Results of all calls in a separate effect store, recorded or not. A recorded one that is not there is named.
    fn kept(&mut self, calls: Calls) -> Result<Vec<Kept>, GatherError> {
        let Some(effects) = self.effects else { return Ok(Vec::new()) };
        let mut kept = Vec::new();
        for (key, epoch, call) in calls.started {
            let found = effects.get(EffectName { key: &key, epoch, call }).map_err(|e| {
                LoadError::Unreadable(format!("the effect store, call {call} of {key}: {e}"))
            })?;
            let of = (key, call);
            match found {
                Some(result) => {
                    self.weigh(canonical::bytes(&result).len())?;
                    kept.push(Kept { key: of.0, epoch, call, result });
                }
                // A worker elsewhere has no effect store.
                None if calls.elsewhere.contains(&of) || !calls.succeeded.contains(&of) => {}
                None => {
                    let why = "the job has its result on record, and the effect store has none";
                    self.leave_out("kept", Kept::name(&of.0, epoch, call), why);
                }
            }
        }
        Ok(kept)
    }

    async fn sessions(&self, records: &[Record]) -> Result<Vec<(SessionId, String)>, GatherError> {
        let mut sessions: Vec<(SessionId, String)> = Vec::new();
        for record in records {
            let took = crate::drive::meta_of(record)?.take;
            let Some(took) = took.filter(|s| !sessions.iter().any(|(id, _)| id == s)) else {
                continue;
            };
            if let Some(session) = self.store.session(took).await? {
                sessions.push((took, session.name));
            }
        }
        Ok(sessions)
    }
}

/// The calls of a job, by key and number.
#[derive(Default)]
struct Calls {
    /// With the epoch, in their order.
    started: Vec<(String, u64, u32)>,
    succeeded: HashSet<(String, u32)>,
    /// Handed to workers that do not run the flow.
    elsewhere: HashSet<(String, u32)>,
}

/// Digests of everything that lies beside the stream, each as often as it is named.
fn digests<'a>(records: &[Record], bodies: impl Iterator<Item = &'a Body>) -> Vec<Hash> {
    let beside = bodies.filter_map(|b| match b {
        Body::Blob { digest, .. } => Some(*digest),
        Body::Inline(_) => None,
    });
    tenure_kernel::stream::blobs_of(records).into_iter().chain(beside).collect()
}
