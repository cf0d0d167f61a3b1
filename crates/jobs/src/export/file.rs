//! The form of the file. Writing is the definition; reading takes what it needs and is then compared with what
//! writing gives (see the essay in the parent module).

use super::{Child, Dossier, Export, Kept, LeftOut, Opening, SigningKey, check::Problem, keys};
use crate::view::{steps::steps, stream};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tenure_kernel::{
    codec::{Reader, Writer},
    evidence::{Evidence, NewEvidence},
    head::Head,
    ids::{CommitId, EntityId, SessionId},
    stream::{Body, Hash, Record},
    table::Tables,
    time::Timestamp,
    timers::Timers,
};
use tenure_steps::canonical;

/// How deep a readable body may be nested; a deeper one is only there as bytes. A reader of JSON has a limit of
/// its own, and the lines must stay below it.
const DEPTH_MAX: usize = 64;

/// One line.
#[derive(Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Row {
    Export(Opening),
    Job(Box<HeadRow>),
    Record(RecordRow),
    Effect(Value),
    Kept(KeptRow),
    Evidence(EvidenceRow),
    Session(SessionRow),
    Child(ChildRow),
    Blob(BlobRow),
    LeftOut(LeftOut),
    End(End),
}

/// The last line.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct End {
    /// Lines before it.
    pub lines: u64,
    /// SHA-256 of their bytes.
    pub digest: String,
    pub signature: Option<Signed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Signed {
    pub algorithm: String,
    pub key: String,
    pub key_id: String,
    pub value: String,
}

/// The word for the only algorithm there is.
pub(super) const ED25519: &str = "ed25519";

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeadRow {
    job: EntityId,
    kind: String,
    status: String,
    tenant: String,
    queue: String,
    priority: i16,
    version: u64,
    epoch: u64,
    holder: Option<SessionId>,
    chain: String,
    created_at: Timestamp,
    changed_at: Timestamp,
    mail_count: u64,
    mail_read: u64,
    due: Option<Timestamp>,
    must_end_by: Option<Timestamp>,
    check_at: Option<Timestamp>,
    faults: u16,
    ready_at: Option<Timestamp>,
    attention: Option<String>,
    sealed: u64,
    timers: String,
    state: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RecordRow {
    job: EntityId,
    first: u64,
    count: u32,
    commit: String,
    at: Timestamp,
    epoch: u64,
    hash: String,
    bytes: String,
    /// For people; made from the bytes.
    events: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeptRow {
    job: EntityId,
    key: String,
    epoch: u64,
    call: u32,
    result: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EvidenceRow {
    job: EntityId,
    key: String,
    epoch: u64,
    call: u32,
    who: String,
    at: Timestamp,
    /// The stored form: bytes in place, or the name of a blob.
    body: String,
    /// For people; made from the body.
    says: Value,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionRow {
    job: EntityId,
    session: SessionId,
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChildRow {
    job: EntityId,
    child: Child,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlobRow {
    digest: String,
    len: u64,
    bytes: String,
}

fn encode(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn decode(field: &str, text: &str) -> Result<Vec<u8>, String> {
    BASE64_STANDARD.decode(text).map_err(|e| format!("{field} is not base64: {e}"))
}

fn hash(field: &str, text: &str) -> Result<Hash, String> {
    keys::bytes32(text).map(Hash).ok_or_else(|| format!("{field} is not a digest"))
}

/// A body as people read it; `null` where it is not JSON, or nested too deeply for a line.
fn readable(body: &Body) -> Value {
    match body {
        Body::Blob { digest, len } => json!({ "blob": digest, "len": len }),
        Body::Inline(bytes) => serde_json::from_slice(bytes)
            .ok()
            .filter(|value| depth(value, DEPTH_MAX))
            .unwrap_or_default(),
    }
}

fn depth(value: &Value, left: usize) -> bool {
    match value {
        Value::Array(items) => left > 0 && items.iter().all(|v| depth(v, left - 1)),
        Value::Object(map) => left > 0 && map.values().all(|v| depth(v, left - 1)),
        _ => true,
    }
}

fn body_bytes(body: &Body) -> Vec<u8> {
    let mut w = Writer::default();
    body.write(&mut w);
    w.0
}

impl HeadRow {
    fn of(head: &Head) -> Self {
        HeadRow {
            job: head.id,
            kind: head.kind().to_owned(),
            status: head.status.name().to_owned(),
            tenant: head.tenant.clone(),
            queue: head.queue.clone(),
            priority: head.priority,
            version: head.version,
            epoch: head.epoch,
            holder: head.holder,
            chain: head.chain.to_string(),
            created_at: head.created_at,
            changed_at: head.changed_at,
            mail_count: head.mail_count,
            mail_read: head.mail_read,
            due: head.due,
            must_end_by: head.must_end_by,
            check_at: head.check_at,
            faults: head.faults,
            ready_at: head.ready_at,
            attention: head.attention.clone(),
            sealed: head.sealed,
            timers: encode(&head.timers.to_bytes()),
            state: encode(&head.state),
        }
    }

    fn head(self, tables: &Tables) -> Result<Head, String> {
        let table =
            tables.get(&self.kind).ok_or_else(|| format!("unknown kind {:?}", self.kind))?;
        let status = table.status(&self.status);
        let timers = Timers::from_bytes(&decode("timers", &self.timers)?);
        Ok(Head {
            id: self.job,
            status: status.ok_or_else(|| format!("unknown status {:?}", self.status))?,
            tenant: self.tenant,
            queue: self.queue,
            priority: self.priority,
            version: self.version,
            epoch: self.epoch,
            holder: self.holder,
            chain: hash("chain", &self.chain)?,
            created_at: self.created_at,
            changed_at: self.changed_at,
            mail_count: self.mail_count,
            mail_read: self.mail_read,
            due: self.due,
            must_end_by: self.must_end_by,
            check_at: self.check_at,
            faults: self.faults,
            ready_at: self.ready_at,
            attention: self.attention,
            sealed: self.sealed,
            timers: timers.map_err(|e| format!("timers: {e}"))?,
            state: decode("state", &self.state)?,
        })
    }
}

impl RecordRow {
    fn of(record: &Record) -> Self {
        let events = record.events().unwrap_or_default();
        let event = |e: tenure_kernel::stream::Event| json!({ "version": e.version, "name": e.name, "body": readable(&e.body) });
        RecordRow {
            job: record.entity,
            first: record.first,
            count: record.count,
            commit: canonical::hex(&record.commit.0),
            at: record.at,
            epoch: record.epoch,
            hash: record.hash.to_string(),
            bytes: encode(&record.bytes),
            events: events.into_iter().map(event).collect(),
        }
    }

    fn record(self) -> Result<Record, String> {
        let commit = u128::from_str_radix(&self.commit, 16);
        let commit = commit.map_err(|_| "commit is not hexadecimal".to_owned())?;
        Ok(Record {
            entity: self.job,
            first: self.first,
            count: self.count,
            commit: CommitId(commit.to_be_bytes()),
            at: self.at,
            epoch: self.epoch,
            hash: hash("hash", &self.hash)?,
            bytes: decode("bytes", &self.bytes)?,
        })
    }
}

impl EvidenceRow {
    fn of(evidence: &Evidence) -> Self {
        let said = &evidence.said;
        EvidenceRow {
            job: said.entity,
            key: said.key.clone(),
            epoch: said.epoch,
            call: said.call,
            who: said.who.clone(),
            at: evidence.at,
            body: encode(&body_bytes(&said.body)),
            says: readable(&said.body),
        }
    }

    fn evidence(self) -> Result<Evidence, String> {
        let bytes = decode("body", &self.body)?;
        let body = Body::read(&mut Reader::new(&bytes)).map_err(|e| format!("body: {e}"))?;
        let (entity, key, epoch, call, who) = (self.job, self.key, self.epoch, self.call, self.who);
        Ok(Evidence { said: NewEvidence { entity, key, epoch, call, who, body }, at: self.at })
    }
}

/// What the calls of a job were, for people; nothing where bodies are gone.
fn effects(dossier: &Dossier, blobs: &BTreeMap<Hash, Vec<u8>>) -> Vec<Value> {
    let Ok(lines) = stream::lines_in(&dossier.records, blobs) else { return Vec::new() };
    let mut rows = Vec::new();
    for step in steps(&lines) {
        for call in &step.calls {
            rows.push(json!({ "job": dossier.head.id, "step": step.step, "tool": step.of, "copied": step.copied, "call": call }));
        }
    }
    rows
}

impl Export {
    fn rows(&self) -> Vec<Row> {
        let mut rows = vec![Row::Export(self.opening.clone())];
        for dossier in &self.jobs {
            let job = dossier.head.id;
            rows.push(Row::Job(Box::new(HeadRow::of(&dossier.head))));
            rows.extend(dossier.records.iter().map(|r| Row::Record(RecordRow::of(r))));
            rows.extend(effects(dossier, &self.blobs).into_iter().map(Row::Effect));
            rows.extend(dossier.kept.iter().map(|k| {
                let (key, result) = (k.key.clone(), encode(&canonical::bytes(&k.result)));
                Row::Kept(KeptRow { job, key, epoch: k.epoch, call: k.call, result })
            }));
            rows.extend(dossier.evidence.iter().map(|e| Row::Evidence(EvidenceRow::of(e))));
            rows.extend(dossier.sessions.iter().map(|(session, name)| {
                Row::Session(SessionRow { job, session: *session, name: name.clone() })
            }));
            let child = |child: &Child| Row::Child(ChildRow { job, child: child.clone() });
            rows.extend(dossier.children.iter().map(child));
        }
        rows.extend(self.blobs.iter().map(|(digest, bytes)| {
            let (digest, len) = (digest.to_string(), bytes.len() as u64);
            Row::Blob(BlobRow { digest, len, bytes: encode(bytes) })
        }));
        rows.extend(self.left_out.iter().cloned().map(Row::LeftOut));
        rows
    }

    /// The lines before the last, and how many there are.
    fn body(&self) -> (Vec<u8>, u64) {
        let (mut out, mut lines) = (Vec::new(), 0);
        for row in self.rows() {
            write(&row, &mut out);
            lines += 1;
        }
        (out, lines)
    }

    /// The file. A key signs it; the opening has to name it.
    pub fn to_bytes(&self, key: Option<&SigningKey>) -> Vec<u8> {
        let (mut out, lines) = self.body();
        let digest = Hash::of(&out);
        let signature = key.map(|key| Signed {
            algorithm: ED25519.to_owned(),
            key: key.public().hex(),
            key_id: key.public().id(),
            value: key.sign(digest, lines),
        });
        write(&Row::End(End { lines, digest: digest.to_string(), signature }), &mut out);
        out
    }
}

fn write(row: &Row, out: &mut Vec<u8>) {
    // Rows have string keys and nothing that could fail to serialise.
    let value = serde_json::to_value(row).expect("a row serialises");
    out.extend(canonical::bytes(&value));
    out.push(b'\n');
}

/// What reading gave.
#[derive(Default)]
pub(super) struct Parsed {
    pub export: Option<Export>,
    pub end: Option<End>,
    /// Of everything before the last line.
    pub digest: Option<Hash>,
    pub lines: u64,
    /// The line of each record, by job and first version; of a head under version 0.
    pub places: BTreeMap<(EntityId, u64), usize>,
}

/// Reads a file, strictly. Whatever is wrong is noted with its line, and reading goes on.
pub(super) fn parse(bytes: &[u8], tables: &Tables, problems: &mut Vec<Problem>) -> Parsed {
    let mut parsed = Parsed::default();
    let Some(text) = bytes.strip_suffix(b"\n") else {
        problems.push(Problem::whole("the file does not end with a line end: it was cut off"));
        return parsed;
    };
    let lines: Vec<&[u8]> = text.split(|b| *b == b'\n').collect();
    // Behind the last line end but one.
    let last = lines.last().map_or(0, |l| l.len()) + 1;
    parsed.digest = Some(Hash::of(&bytes[..bytes.len() - last]));
    parsed.lines = lines.len() as u64 - 1;
    let mut file = Draft::default();
    for (i, line) in lines.iter().enumerate() {
        let row = serde_json::from_slice::<Row>(line).map_err(|e| e.to_string());
        let taken = row.and_then(|row| file.take(row, i + 1, tables, &mut parsed));
        if let Err(why) = taken {
            problems.push(Problem::at(i + 1, why));
        }
    }
    match parsed.end {
        None => problems.push(Problem::whole("the last line is missing: the file was cut off")),
        Some(_) if !lines.last().is_some_and(|line| is_end(line)) => {
            problems.push(Problem::whole("the line that ends the file is not the last one"));
        }
        Some(_) => {}
    }
    let Some(opening) = file.opening else {
        problems.push(Problem::at(1, "the line that says what this file is is missing".into()));
        return parsed;
    };
    let export = Export { opening, jobs: file.jobs, blobs: file.blobs, left_out: file.left_out };
    // The rule that covers every byte.
    let (again, _) = export.body();
    let again: Vec<&[u8]> =
        again.strip_suffix(b"\n").unwrap_or(&again).split(|b| *b == b'\n').collect();
    let body = &lines[..lines.len() - 1];
    let differs = body.iter().zip(&again).position(|(a, b)| a != b);
    if let Some(i) = differs.or((body.len() != again.len()).then(|| body.len().min(again.len()))) {
        let why =
            "this line is not what the rest of the file gives: changed, moved, doubled or dropped";
        problems.push(Problem::at(i + 1, why.to_owned()));
    }
    if let (Some(end), Some(line)) = (&parsed.end, lines.last()) {
        let mut again = Vec::new();
        write(&Row::End(end.clone()), &mut again);
        if again.strip_suffix(b"\n") != Some(*line) {
            problems.push(Problem::at(lines.len(), "this line is not written as an end is".into()));
        }
    }
    parsed.export = Some(export);
    parsed
}

fn is_end(line: &[u8]) -> bool {
    matches!(serde_json::from_slice::<Row>(line), Ok(Row::End(_)))
}

#[derive(Default)]
struct Draft {
    opening: Option<Opening>,
    jobs: Vec<Dossier>,
    blobs: BTreeMap<Hash, Vec<u8>>,
    left_out: Vec<LeftOut>,
}

impl Draft {
    fn take(
        &mut self,
        row: Row,
        line: usize,
        tables: &Tables,
        parsed: &mut Parsed,
    ) -> Result<(), String> {
        match row {
            Row::Export(opening) => self.opening = Some(opening),
            Row::Job(row) => {
                let head = row.head(tables)?;
                parsed.places.insert((head.id, 0), line);
                self.jobs.push(Dossier {
                    head,
                    records: Vec::new(),
                    kept: Vec::new(),
                    evidence: Vec::new(),
                    sessions: Vec::new(),
                    children: Vec::new(),
                });
            }
            Row::Record(row) => {
                let record = row.record()?;
                parsed.places.insert((record.entity, record.first), line);
                self.of(record.entity)?.records.push(record);
            }
            // Made from the records: compared, not taken.
            Row::Effect(_) => {}
            Row::Kept(row) => {
                let result = decode("result", &row.result)?;
                let result = serde_json::from_slice(&result).map_err(|e| format!("result: {e}"))?;
                let kept = Kept { key: row.key, epoch: row.epoch, call: row.call, result };
                self.of(row.job)?.kept.push(kept);
            }
            Row::Evidence(row) => {
                let evidence = row.evidence()?;
                self.of(evidence.said.entity)?.evidence.push(evidence);
            }
            Row::Session(row) => self.of(row.job)?.sessions.push((row.session, row.name)),
            Row::Child(row) => self.of(row.job)?.children.push(row.child),
            Row::Blob(row) => {
                self.blobs.insert(hash("digest", &row.digest)?, decode("bytes", &row.bytes)?);
            }
            Row::LeftOut(left) => self.left_out.push(left),
            Row::End(end) => parsed.end = Some(end),
        }
        Ok(())
    }

    fn of(&mut self, job: EntityId) -> Result<&mut Dossier, String> {
        let dossier = self.jobs.iter_mut().find(|d| d.head.id == job);
        dossier.ok_or_else(|| format!("job {job} has no line of its own before this one"))
    }
}
