//! Checks a file without a store, a server or a network. Finds everything that is wrong, not only the first
//! thing, and says where.

use super::{
    Dossier, Export, FORMAT, PublicKey, VERSION, account,
    file::{self, ED25519, End, Parsed},
};
use crate::{
    model::{JobEvent, OwnEvent},
    view::{
        stream::{self, Line},
        verify::{examine, root},
    },
};
use serde::Serialize;
use serde_json::Value;
use std::{collections::BTreeMap, fmt, io};
use tenure_kernel::{
    ids::EntityId,
    stream::{Body, Hash, blobs_of},
    table::{Class, Tables},
    verify::Fault,
};
use tenure_steps::{
    canonical,
    effects::{EffectName, Effects},
    events::StepEvent,
};

/// Something that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The line, from 1; `None` for the file as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub says: String,
}

impl Problem {
    pub(super) fn at(line: usize, says: String) -> Self {
        Problem { line: Some(line), says }
    }

    pub(super) fn whole(says: &str) -> Self {
        Problem { line: None, says: says.to_owned() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.says),
            None => f.write_str(&self.says),
        }
    }
}

/// Whom to believe.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trust {
    /// The file has to be signed with this key. Without one, any key will do and is named.
    pub key: Option<PublicKey>,
    /// A file without a signature will do.
    pub allow_unsigned: bool,
}

/// What the signature says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "state")]
pub enum Signature {
    /// There is none.
    None,
    /// It does not fit, or is of another key than the one that was asked for.
    Bad,
    /// It fits a key that nobody vouched for: anybody may have made it.
    Unvouched {
        /// The key's id.
        key_id: String,
    },
    /// It is of the key that was asked for.
    Good {
        /// The key's id.
        key_id: String,
    },
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Nothing is wrong.
    pub ok: bool,
    /// Everything that is wrong, in the order of the file.
    pub problems: Vec<Problem>,
    /// What a reader should know although it is not wrong.
    pub notes: Vec<String>,
    /// The signature.
    pub signature: Signature,
    /// Chain value and digest of the run, per job.
    pub jobs: Vec<JobReport>,
    /// The short account for people; only of a file that could be read.
    #[serde(skip)]
    pub account: Option<String>,
}

/// What one job of a file comes to.
#[derive(Clone, Debug, Serialize)]
pub struct JobReport {
    /// Which.
    pub id: EntityId,
    /// Its status.
    pub status: String,
    /// Events in the file.
    pub events: u64,
    /// Chain value after the last one, from the bytes.
    pub chain_root: String,
    /// Digest of what the run did; empty where bodies are gone.
    pub execution_hash: String,
}

/// Checks a file.
pub fn verify(bytes: &[u8], tables: &Tables, trust: &Trust) -> Report {
    let mut problems = Vec::new();
    let parsed = file::parse(bytes, tables, &mut problems);
    let signature = sealed(&parsed, trust, &mut problems);
    let mut look = Look { problems, notes: Vec::new(), places: &parsed.places };
    let (mut jobs, mut account) = (Vec::new(), None);
    if let Some(export) = &parsed.export {
        look.opening(export, parsed.end.as_ref());
        look.blobs(export);
        look.family(export);
        for dossier in &export.jobs {
            jobs.push(look.job(export, dossier, tables));
        }
        account = Some(account::account(export));
    }
    let Look { mut problems, notes, .. } = look;
    problems.sort_by_key(|p| p.line.unwrap_or(0));
    Report { ok: problems.is_empty(), problems, notes, signature, jobs, account }
}

/// The digest of the file and its signature.
fn sealed(parsed: &Parsed, trust: &Trust, problems: &mut Vec<Problem>) -> Signature {
    let (Some(end), Some(digest)) = (&parsed.end, parsed.digest) else { return Signature::Bad };
    let last = usize::try_from(parsed.lines).unwrap_or(usize::MAX).saturating_add(1);
    let mut wrong = |says: String| problems.push(Problem::at(last, says));
    if end.lines != parsed.lines {
        wrong(format!(
            "the file says {} lines come before this one; there are {}",
            end.lines, parsed.lines
        ));
    }
    if end.digest != digest.to_string() {
        wrong(format!("the digest of the lines before is {digest}, this says {}", end.digest));
    }
    let Some(signed) = &end.signature else {
        match (trust.key, trust.allow_unsigned) {
            (Some(key), _) => wrong(format!("there is no signature; it should be of key {}", key.id())),
            (None, false) => wrong(
                "there is no signature, so anybody may have written this file; --allow-unsigned accepts that".into(),
            ),
            (None, true) => {}
        }
        return Signature::None;
    };
    let key = match PublicKey::from_text(&signed.key) {
        // In its one form: capital digits would be a second way to write the same file.
        Ok(key) if signed.algorithm == ED25519 && signed.key == key.hex() => key,
        _ => {
            wrong("the signature names no key that can be used".into());
            return Signature::Bad;
        }
    };
    let (id, mut good) = (key.id(), true);
    if signed.key_id != id {
        wrong(format!("the key's id is {id}, this says {}", signed.key_id));
        good = false;
    }
    if !key.agrees(digest, parsed.lines, &signed.value) {
        wrong("the signature does not fit the file".into());
        good = false;
    }
    match trust.key {
        _ if !good => Signature::Bad,
        None => Signature::Unvouched { key_id: id },
        Some(wanted) if wanted == key => Signature::Good { key_id: id },
        Some(wanted) => {
            wrong(format!("signed with key {id}, not with {}", wanted.id()));
            Signature::Bad
        }
    }
}

struct Look<'a> {
    problems: Vec<Problem>,
    notes: Vec<String>,
    places: &'a BTreeMap<(EntityId, u64), usize>,
}

impl Look<'_> {
    fn wrong(&mut self, line: Option<usize>, says: String) {
        self.problems.push(Problem { line, says });
    }

    fn opening(&mut self, export: &Export, end: Option<&End>) {
        let opening = &export.opening;
        if (opening.format.as_str(), opening.version) != (FORMAT, VERSION) {
            let says = format!(
                "this is {} version {}, and not {FORMAT} version {VERSION}",
                opening.format, opening.version
            );
            self.wrong(Some(1), says);
        }
        if opening.exported_at_text != opening.exported_at.to_string() {
            self.wrong(Some(1), format!("exported_at is {}", opening.exported_at));
        }
        let signed = end.and_then(|e| e.signature.as_ref()).map(|s| s.key_id.clone());
        if end.is_some() && signed != opening.signed_by {
            let names = |id: &Option<String>| id.clone().unwrap_or_else(|| "nobody".into());
            let (says, is) = (names(&opening.signed_by), names(&signed));
            self.wrong(Some(1), format!("the file says it is signed by {says}, its end by {is}"));
        }
        let Some(first) = export.jobs.first() else {
            self.wrong(None, "there is no job in the file".into());
            return;
        };
        let head = &first.head;
        let (status, is_final) = (head.status.name(), head.class() == Class::Final);
        if (opening.job, opening.status.as_str(), opening.is_final) != (head.id, status, is_final) {
            self.wrong(Some(1), format!("the first job is {}, which is {status}", head.id));
        }
        if !is_final {
            self.notes.push(format!(
                "the job was {status} when it was exported: this is the beginning of a history that goes on"
            ));
        }
    }

    fn blobs(&mut self, export: &Export) {
        let mut named = Vec::new();
        for dossier in &export.jobs {
            named.extend(blobs_of(&dossier.records));
            named.extend(dossier.evidence.iter().filter_map(|e| match e.said.body {
                Body::Blob { digest, .. } => Some(digest),
                Body::Inline(_) => None,
            }));
        }
        for (digest, bytes) in &export.blobs {
            let found = Hash::of(bytes);
            if found != *digest {
                self.wrong(None, format!("blob {digest} has other content: its digest is {found}"));
            }
            if !named.contains(digest) {
                self.wrong(None, format!("blob {digest} belongs to nothing in the file"));
            }
        }
        named.sort_unstable();
        named.dedup();
        for digest in named.iter().filter(|d| !export.blobs.contains_key(*d)) {
            match is_left_out(export, "blob", &digest.to_string()) {
                true => self.notes.push(format!(
                    "blob {digest} was erased; the chain covers its digest, and what stands on its content is not checked"
                )),
                false => self.wrong(None, format!("blob {digest} is missing, and the file does not say why")),
            }
        }
        for left in &export.left_out {
            if left.what != "blob" {
                self.notes.push(format!("left out: {} {} ({})", left.what, left.name, left.why));
            }
        }
    }

    /// Who is whose child.
    fn family(&mut self, export: &Export) {
        let mut parents: BTreeMap<EntityId, (EntityId, u32)> = BTreeMap::new();
        for dossier in &export.jobs {
            for child in &dossier.children {
                parents.insert(child.id, (dossier.head.id, child.ordinal));
                let here = export.jobs.iter().any(|d| d.head.id == child.id);
                if export.opening.with_children
                    && !here
                    && !is_left_out(export, "job", &child.id.to_string())
                {
                    let says =
                        format!("child {} is missing, and the file does not say why", child.id);
                    self.wrong(self.head_line(dossier), says);
                }
                if here && child.root.is_some() {
                    let says =
                        format!("child {} is in the file, and so is a short form of it", child.id);
                    self.wrong(self.head_line(dossier), says);
                }
            }
        }
        for dossier in export.jobs.iter().skip(1) {
            if !parents.contains_key(&dossier.head.id) {
                let says =
                    format!("job {} is no child of another one in the file", dossier.head.id);
                self.wrong(self.head_line(dossier), says);
            }
        }
        for dossier in &export.jobs {
            let Ok(lines) = stream::lines_in(&dossier.records, &export.blobs) else { continue };
            let born = lines.iter().find_map(|l| match &l.read {
                Some(JobEvent::Own(OwnEvent::JobCreated(new))) => Some(new.parent),
                _ => None,
            });
            let told = parents.get(&dossier.head.id).copied();
            let says = born.flatten().map(|p| (p.job, p.ordinal));
            if told.is_some() && born.is_some() && told != says {
                let says =
                    format!("job {} says that it is a child of another job", dossier.head.id);
                self.wrong(self.head_line(dossier), says);
            }
            let started = children(&lines);
            let listed: Vec<_> = dossier.children.iter().map(|c| (c.id, c.ordinal)).collect();
            if started != listed {
                let says = format!(
                    "job {} started {} children, and the file lists {}, or others",
                    dossier.head.id,
                    started.len(),
                    listed.len()
                );
                self.wrong(self.head_line(dossier), says);
            }
        }
    }

    fn job(&mut self, export: &Export, dossier: &Dossier, tables: &Tables) -> JobReport {
        let head = &dossier.head;
        let lines = stream::lines_in(&dossier.records, &export.blobs);
        let erased = blobs_of(&dossier.records).iter().any(|d| !export.blobs.contains_key(d));
        let kept = KeptEffects(dossier);
        let effects: Option<&dyn Effects> =
            if dossier.kept.is_empty() { None } else { Some(&kept) };
        let read = lines.as_deref().map_err(ToString::to_string);
        let found = examine(head, &dossier.records, read, tables, effects);
        if let Err(fault) = &found.chain {
            self.wrong(self.place(dossier, fault), fault.to_string());
        }
        // The chain was said with its place; a body that is gone was said as a blob.
        let skip = usize::from(found.chain.is_err());
        for says in found.problems.into_iter().skip(skip) {
            if !(erased && lines.is_err()) {
                self.wrong(self.head_line(dossier), format!("job {}: {says}", head.id));
            }
        }
        if dossier.records.iter().any(|r| r.entity != head.id) {
            self.wrong(self.head_line(dossier), format!("job {} has records of another", head.id));
        }
        JobReport {
            id: head.id,
            status: head.status.name().to_owned(),
            events: found.events,
            chain_root: root(&dossier.records).to_string(),
            execution_hash: found.execution_hash,
        }
    }

    fn head_line(&self, dossier: &Dossier) -> Option<usize> {
        self.places.get(&(dossier.head.id, 0)).copied()
    }

    /// The line of the record that a fault is about, or of the head.
    fn place(&self, dossier: &Dossier, fault: &Fault) -> Option<usize> {
        let version = match fault {
            Fault::Broken { version, .. } | Fault::Backwards { version, .. } => Some(*version),
            Fault::Gap { found, .. } => Some(*found),
            _ => None,
        };
        let record = dossier
            .records
            .iter()
            .find(|r| version.is_some_and(|v| (r.first..=r.last()).contains(&v)));
        let first = record.map_or(0, |r| r.first);
        self.places.get(&(dossier.head.id, first)).copied()
    }
}

fn is_left_out(export: &Export, what: &str, name: &str) -> bool {
    export.left_out.iter().any(|l| l.what == what && l.name == name)
}

fn children(lines: &[Line]) -> Vec<(EntityId, u32)> {
    let started = |line: &Line| match &line.read {
        Some(JobEvent::Step(StepEvent::ChildStarted { child, ordinal, .. })) => {
            Some((*child, *ordinal))
        }
        _ => None,
    };
    lines.iter().filter_map(started).collect()
}

/// What the file says lay in the effect store.
struct KeptEffects<'a>(&'a Dossier);

impl Effects for KeptEffects<'_> {
    fn put(&self, _: EffectName<'_>, _: &Value) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "an export is only read"))
    }

    fn get(&self, name: EffectName<'_>) -> io::Result<Option<Value>> {
        let mut found = self
            .0
            .kept
            .iter()
            .filter(|k| (k.key.as_str(), k.epoch, k.call) == (name.key, name.epoch, name.call));
        let first = found.next();
        if found.any(|k| {
            Some(canonical::bytes(&k.result)) != first.map(|f| canonical::bytes(&f.result))
        }) {
            return Err(io::Error::other("two results under one name"));
        }
        Ok(first.map(|k| k.result.clone()))
    }
}
