//! The form of the file. Writing is the definition; reading takes what it needs and is then compared with what
//! writing gives (see the essay in the parent module).

use super::{
    Child, Dossier, EXPORT_BYTES_MAX, Export, Kept, LEFT_OUT, LeftOut, Opening, SigningKey,
    check::Findings, keys,
};
use crate::view::{steps::steps, stream};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{DeserializeOwned, IgnoredAny},
};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    iter,
};
use tenure_kernel::{
    codec::{Reader, Writer},
    evidence::{Evidence, NewEvidence},
    head::Head,
    ids::{CommitId, EntityId, SessionId},
    limits,
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
#[derive(Serialize)]
#[serde(tag = "line", rename_all = "snake_case")]
enum Row {
    Export(Opening),
    Job(Box<HeadRow>),
    Record(RecordRow),
    Effect(Shown),
    Kept(KeptRow),
    Evidence(EvidenceRow),
    Session(SessionRow),
    Child(ChildRow),
    Blob(BlobRow),
    LeftOut(LeftOut),
    End(End),
}

/// A part for people, made from the rest of the file. It is compared as it is written, and never read: what it says is
/// known, and what a stranger put there could be anything.
#[derive(Serialize)]
#[serde(transparent)]
struct Shown(Value);

impl<'de> Deserialize<'de> for Shown {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(d).map(|_| Shown(Value::Null))
    }
}

/// The last line.
#[derive(Clone, Debug, Serialize, Deserialize)]
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

/// The largest version or epoch that a store can hold. Whatever is counted on from there fits.
const VERSION_MAX: u64 = i64::MAX as u64;

/// The word for the only algorithm there is.
pub(super) const ED25519: &str = "ed25519";

#[derive(Serialize, Deserialize)]
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
struct RecordRow {
    job: EntityId,
    first: u64,
    count: u32,
    commit: String,
    at: Timestamp,
    epoch: u64,
    hash: String,
    bytes: String,
    /// Made from the bytes.
    events: Shown,
}

#[derive(Serialize, Deserialize)]
struct KeptRow {
    job: EntityId,
    key: String,
    epoch: u64,
    call: u32,
    result: String,
}

#[derive(Serialize, Deserialize)]
struct EvidenceRow {
    job: EntityId,
    key: String,
    epoch: u64,
    call: u32,
    who: String,
    at: Timestamp,
    /// The stored form: bytes in place, or the name of a blob.
    body: String,
    /// Made from the body.
    says: Shown,
}

#[derive(Serialize, Deserialize)]
struct SessionRow {
    job: EntityId,
    session: SessionId,
    name: String,
}

#[derive(Serialize, Deserialize)]
struct ChildRow {
    job: EntityId,
    child: Child,
}

#[derive(Serialize, Deserialize)]
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

fn epoch(epoch: u64) -> Result<u64, String> {
    if epoch > VERSION_MAX { Err(format!("no epoch is {epoch}")) } else { Ok(epoch) }
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
            epoch: epoch(self.epoch)?,
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
            events: Shown(events.into_iter().map(event).collect()),
        }
    }

    fn record(self) -> Result<Record, String> {
        if self.first == 0 || self.count == 0 || self.first > VERSION_MAX {
            return Err(format!("no record has {} events from version {}", self.count, self.first));
        }
        if usize::try_from(self.count).is_ok_and(|n| n > limits::EVENTS_PER_COMMIT_MAX) {
            let (count, max) = (self.count, limits::EVENTS_PER_COMMIT_MAX);
            return Err(format!(
                "a record of {count} events: a commit writes at most {max} (EVENTS_PER_COMMIT_MAX)"
            ));
        }
        let commit = u128::from_str_radix(&self.commit, 16);
        let commit = commit.map_err(|_| "commit is not hexadecimal".to_owned())?;
        Ok(Record {
            entity: self.job,
            first: self.first,
            count: self.count,
            commit: CommitId(commit.to_be_bytes()),
            at: self.at,
            epoch: epoch(self.epoch)?,
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
            says: Shown(readable(&said.body)),
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
    /// All lines but the last, one after the other: together they are as large as the file.
    fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let jobs = self.jobs.iter().flat_map(|dossier| self.rows_of(dossier));
        let blobs = self.blobs.iter().map(|(digest, bytes)| {
            let (digest, len) = (digest.to_string(), bytes.len() as u64);
            Row::Blob(BlobRow { digest, len, bytes: encode(bytes) })
        });
        iter::once_with(|| Row::Export(self.opening.clone()))
            .chain(jobs)
            .chain(blobs)
            .chain(self.left_out.iter().cloned().map(Row::LeftOut))
    }

    fn rows_of<'a>(&'a self, dossier: &'a Dossier) -> impl Iterator<Item = Row> + 'a {
        let job = dossier.head.id;
        let effects = iter::once_with(|| effects(dossier, &self.blobs)).flatten();
        let kept = dossier.kept.iter().map(move |k| {
            let (key, result) = (k.key.clone(), encode(&canonical::bytes(&k.result)));
            Row::Kept(KeptRow { job, key, epoch: k.epoch, call: k.call, result })
        });
        let sessions = dossier.sessions.iter().map(move |(session, name)| {
            Row::Session(SessionRow { job, session: *session, name: name.clone() })
        });
        let child = move |child: &Child| Row::Child(ChildRow { job, child: child.clone() });
        iter::once_with(|| Row::Job(Box::new(HeadRow::of(&dossier.head))))
            .chain(dossier.records.iter().map(|r| Row::Record(RecordRow::of(r))))
            .chain(effects.map(|effect| Row::Effect(Shown(effect))))
            .chain(kept)
            .chain(dossier.evidence.iter().map(|e| Row::Evidence(EvidenceRow::of(e))))
            .chain(sessions)
            .chain(dossier.children.iter().map(child))
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

    /// Whether the bodies that are named come to more than this, each as often as it is named.
    fn is_heavier_than(&self, most: u64) -> bool {
        let of = |body: &Body| match body {
            Body::Blob { digest, .. } => self.blobs.get(digest).map_or(0, |b| b.len() as u64),
            Body::Inline(_) => 0,
        };
        let events = |d: &Dossier| -> u64 {
            let records = d.records.iter().filter_map(|r| r.events().ok());
            records.flatten().map(|e| of(&e.body)).fold(0, u64::saturating_add)
        };
        let evidence = |d: &Dossier| -> u64 {
            d.evidence.iter().map(|e| of(&e.said.body)).fold(0, u64::saturating_add)
        };
        let jobs = self.jobs.iter().map(|d| events(d).saturating_add(evidence(d)));
        jobs.fold(0, u64::saturating_add) > most
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

/// Whether the last line of a file has a signature. It is not checked here.
pub fn is_signed(file: &[u8]) -> bool {
    let last = file.trim_ascii_end().rsplit(|b| *b == b'\n').next().unwrap_or_default();
    let end: Option<Value> = serde_json::from_slice(last).ok();
    end.is_some_and(|end| end["signature"].is_object())
}

fn write(row: &Row, out: &mut Vec<u8>) {
    // Rows have string keys and nothing that could fail to serialise.
    let value = serde_json::to_value(row).expect("a row serialises");
    out.extend(canonical::bytes(&value));
    out.push(b'\n');
}

/// What the end of a file says of the rest.
pub(super) struct Seal<'a> {
    /// All lines before the last, or all of them where the last is no end.
    pub body: &'a [u8],
    pub lines: u64,
    /// Of the body.
    pub digest: Hash,
    pub end: Option<End>,
}

/// Finds the end of a file and interprets nothing else.
pub(super) fn seal<'a>(bytes: &'a [u8], found: &mut Findings) -> Option<Seal<'a>> {
    let Some(text) = bytes.strip_suffix(b"\n") else {
        found.wrong(None, "the file does not end with a line end: it was cut off".into());
        return None;
    };
    let at = text.iter().rposition(|b| *b == b'\n').map_or(0, |i| i + 1);
    let last = &text[at..];
    let end = match read(last) {
        Ok(Row::End(end)) => Some(end),
        _ => {
            found.wrong(None, "the last line is missing: the file was cut off".into());
            None
        }
    };
    let body = if end.is_some() { &bytes[..at] } else { bytes };
    let lines = body.iter().filter(|b| **b == b'\n').count() as u64;
    if let Some(end) = &end {
        let mut again = Vec::new();
        write(&Row::End(end.clone()), &mut again);
        if again.strip_suffix(b"\n") != Some(last) {
            found.wrong(Some(place(lines)), "this line is not written as an end is".into());
        }
    }
    Some(Seal { body, lines, digest: Hash::of(body), end })
}

/// The line behind so many.
pub(super) fn place(lines: u64) -> usize {
    usize::try_from(lines).unwrap_or(usize::MAX).saturating_add(1)
}

fn lines_of(body: &[u8]) -> impl Iterator<Item = &[u8]> {
    body.split_inclusive(|b| *b == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line))
}

/// One line. What kind it is is looked at first, so that each field goes where it belongs at once: readers that find
/// that out on the way keep all of a line in a form that is many times as large.
fn read(line: &[u8]) -> Result<Row, String> {
    #[derive(Deserialize)]
    struct Kind {
        line: String,
    }
    fn of<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
        tenure_kernel::stored::from_slice(line).map_err(|e| e.to_string())
    }
    Ok(match of::<Kind>(line)?.line.as_str() {
        "export" => Row::Export(of(line)?),
        "job" => Row::Job(of(line)?),
        "record" => Row::Record(of(line)?),
        "effect" => Row::Effect(Shown(Value::Null)),
        "kept" => Row::Kept(of(line)?),
        "evidence" => Row::Evidence(of(line)?),
        "session" => Row::Session(of(line)?),
        "child" => Row::Child(of(line)?),
        "blob" => Row::Blob(of(line)?),
        "left_out" => Row::LeftOut(of(line)?),
        "end" => Row::End(of(line)?),
        other => return Err(format!("no line of a file is called {other:?}")),
    })
}

/// What reading gave.
#[derive(Default)]
pub(super) struct Parsed {
    pub export: Option<Export>,
    /// The line of each record, by job and first version; of a head under version 0.
    pub places: BTreeMap<(EntityId, u64), usize>,
}

/// Reads everything before the end, strictly. Whatever is wrong is noted with its line, and reading goes on until
/// enough is wrong.
pub(super) fn parse(body: &[u8], tables: &Tables, found: &mut Findings) -> Parsed {
    let mut parsed = Parsed::default();
    let mut file = Draft::default();
    for (i, line) in lines_of(body).enumerate() {
        if let Err(why) = read(line).and_then(|row| file.take(row, i + 1, tables, &mut parsed)) {
            found.wrong(Some(i + 1), why);
        }
        if found.is_enough() {
            return parsed;
        }
    }
    let Some(opening) = file.opening else {
        found.wrong(Some(1), "the line that says what this file is is missing".into());
        return parsed;
    };
    let export = Export { opening, jobs: file.jobs, blobs: file.blobs, left_out: file.left_out };
    if export.is_heavier_than(EXPORT_BYTES_MAX) {
        let says = format!(
            "the blobs that events and evidence name, each as often as it is named, have more than {EXPORT_BYTES_MAX} bytes \
             (EXPORT_BYTES_MAX): no server writes such a file"
        );
        found.wrong(None, says);
        return parsed;
    }
    if let Some(line) = differs(body, &export) {
        let why =
            "this line is not what the rest of the file gives: changed, moved, doubled or dropped";
        found.wrong(Some(line), why.to_owned());
    }
    parsed.export = Some(export);
    parsed
}

/// The rule that covers every byte: the first line that is not the one that writing gives.
fn differs(body: &[u8], export: &Export) -> Option<usize> {
    let (mut lines, mut count) = (lines_of(body), 0);
    let mut again = Vec::new();
    for row in export.rows() {
        count += 1;
        again.clear();
        write(&row, &mut again);
        if lines.next() != again.strip_suffix(b"\n") {
            return Some(count);
        }
    }
    lines.next().map(|_| count + 1)
}

#[derive(Default)]
struct Draft {
    opening: Option<Opening>,
    jobs: Vec<Dossier>,
    /// Where each of them stands.
    at: HashMap<EntityId, usize>,
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
                self.at.entry(head.id).or_insert(self.jobs.len());
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
                let result = tenure_kernel::stored::from_slice(&result)
                    .map_err(|e| format!("result: {e}"))?;
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
            Row::LeftOut(left) if LEFT_OUT.contains(&left.what.as_str()) => {
                self.left_out.push(left);
            }
            Row::LeftOut(left) => return Err(format!("{:?} is never left out", left.what)),
            Row::End(_) => return Err("the line that ends the file is not the last one".into()),
        }
        Ok(())
    }

    fn of(&mut self, job: EntityId) -> Result<&mut Dossier, String> {
        let dossier = self.at.get(&job).and_then(|at| self.jobs.get_mut(*at));
        dossier.ok_or_else(|| format!("job {job} has no line of its own before this one"))
    }
}
