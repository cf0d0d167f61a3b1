//! Checks a file without a store, a server or a network. Finds everything that is wrong, not only the first
//! thing, and says where.

use super::{
    Dossier, Export, FORMAT, Kept, PublicKey, VERSION, account,
    file::{self, ED25519, End, Parsed, Seal},
};
use crate::{
    model::{JobEvent, OwnEvent},
    view::{
        stream::{self, Line},
        verify::{Beside, examine, root},
    },
};
use serde::Serialize;
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt, io,
};
use tenure_kernel::{
    ids::EntityId,
    stream::{Body, Hash, blobs_of},
    table::{Class, Tables},
    verify::Fault,
};
use tenure_steps::{
    canonical,
    effects::{EffectName, Effects},
    events::{CallOutcome, StepEvent, Verdict},
};

/// Something that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The line, from 1; `None` for the file as a whole.
    pub line: Option<usize>,
    /// What is wrong.
    pub says: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "line {line}: {}", self.says),
            None => f.write_str(&self.says),
        }
    }
}

/// Problems that are told. A file can have as many as it has bytes, and so many are enough.
pub const PROBLEMS_MAX: usize = 100;
/// Notes that are told.
pub const NOTES_MAX: usize = 1_000;

/// What is found on the way. Everything is cleaned here, since most of it repeats what stands in the file.
#[derive(Default)]
pub(super) struct Findings {
    problems: Vec<Problem>,
    notes: Vec<String>,
    more_notes: usize,
}

impl Findings {
    pub(super) fn wrong(&mut self, line: Option<usize>, says: String) {
        if self.problems.len() <= PROBLEMS_MAX {
            self.problems.push(Problem { line, says: account::cut(&says, account::LINE) });
        }
    }

    /// No more problems are told.
    pub(super) fn is_enough(&self) -> bool {
        self.problems.len() > PROBLEMS_MAX
    }

    fn note(&mut self, says: &str) {
        match self.notes.len() < NOTES_MAX {
            true => self.notes.push(account::cut(says, account::LINE)),
            false => self.more_notes += 1,
        }
    }

    /// Problems in the order of the file, and notes.
    fn told(mut self) -> (Vec<Problem>, Vec<String>) {
        let more = self.is_enough();
        self.problems.truncate(PROBLEMS_MAX);
        self.problems.sort_by_key(|p| p.line.unwrap_or(0));
        if more {
            self.problems.push(Problem { line: None, says: "and more".to_owned() });
        }
        if self.more_notes > 0 {
            self.notes.push(format!("and {} more", self.more_notes));
        }
        (self.problems, self.notes)
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
    /// What is wrong, in the order of the file: everything, or the first [`PROBLEMS_MAX`].
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

/// What a person reads. The verdict comes last and has a line to itself: whatever a file makes of the lines before,
/// it does not have the last word.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.account.as_deref().unwrap_or_default())?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))?;
        self.problems.iter().try_for_each(|problem| writeln!(f, "WRONG: {problem}"))?;
        writeln!(f, "{}", self.verdict())
    }
}

impl Report {
    fn verdict(&self) -> String {
        match &self.signature {
            _ if !self.ok => "NOT to be trusted".to_owned(),
            Signature::Good { key_id } => {
                format!("intact, and signed with the key you gave ({key_id})")
            }
            Signature::Unvouched { key_id } => format!(
                "intact, and signed with key {key_id}; whose key that is you have to know: --key makes sure"
            ),
            Signature::None | Signature::Bad => {
                "intact, and not signed: anybody who can write such a file may have written it"
                    .to_owned()
            }
        }
    }
}

/// Checks a file.
pub fn verify(bytes: &[u8], tables: &Tables, trust: &Trust) -> Report {
    let mut found = Findings::default();
    let seal = file::seal(bytes, &mut found);
    let signature = seal.as_ref().map_or(Signature::Bad, |seal| sealed(seal, trust, &mut found));
    // Whoever names a key wants to hear what it signed, and nothing that anybody else wrote.
    let heard = trust.key.is_none() || matches!(signature, Signature::Good { .. });
    let parsed = match &seal {
        Some(seal) if heard => file::parse(seal.body, tables, &mut found),
        _ => Parsed::default(),
    };
    if !heard {
        found.note("the rest of the file was not looked at: the key that you gave did not sign it");
    }
    let (mut jobs, mut account) = (Vec::new(), None);
    if let Some(export) = &parsed.export {
        let mut look = Look::new(export, &parsed.places, &mut found);
        look.opening(seal.as_ref().and_then(|s| s.end.as_ref()));
        look.blobs();
        look.left_out();
        look.family();
        jobs.extend(export.jobs.iter().map(|dossier| look.job(dossier, tables)));
        account = Some(account::account(export));
    }
    let (problems, notes) = found.told();
    Report { ok: problems.is_empty(), problems, notes, signature, jobs, account }
}

/// The digest of the file and its signature.
fn sealed(seal: &Seal<'_>, trust: &Trust, found: &mut Findings) -> Signature {
    let Some(end) = &seal.end else { return Signature::Bad };
    let (last, digest) = (file::place(seal.lines), seal.digest);
    let mut wrong = |says: String| found.wrong(Some(last), says);
    if end.lines != seal.lines {
        wrong(format!(
            "the file says {} lines come before this one; there are {}",
            end.lines, seal.lines
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
    if !key.agrees(digest, seal.lines, &signed.value) {
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
    export: &'a Export,
    places: &'a BTreeMap<(EntityId, u64), usize>,
    found: &'a mut Findings,
    /// What is in the file.
    jobs: HashSet<EntityId>,
    /// What the file says it does not hold: what and name.
    left_out: HashSet<(&'a str, &'a str)>,
    /// Results that are missing in the effect store.
    lost: BTreeSet<&'a str>,
}

impl<'a> Look<'a> {
    fn new(
        export: &'a Export,
        places: &'a BTreeMap<(EntityId, u64), usize>,
        found: &'a mut Findings,
    ) -> Self {
        let left_out = export.left_out.iter().map(|l| (l.what.as_str(), l.name.as_str()));
        let left_out: HashSet<_> = left_out.collect();
        let lost = left_out.iter().filter(|(what, _)| *what == "kept").map(|(_, name)| *name);
        Look {
            export,
            places,
            found,
            jobs: export.jobs.iter().map(|d| d.head.id).collect(),
            lost: lost.collect(),
            left_out,
        }
    }

    fn wrong(&mut self, line: Option<usize>, says: String) {
        self.found.wrong(line, says);
    }

    fn is_left_out(&self, what: &str, name: &str) -> bool {
        self.left_out.contains(&(what, name))
    }

    fn opening(&mut self, end: Option<&End>) {
        let opening = &self.export.opening;
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
        let Some(first) = self.export.jobs.first() else {
            self.wrong(None, "there is no job in the file".into());
            return;
        };
        let head = &first.head;
        let (status, is_final) = (head.status.name(), head.class() == Class::Final);
        if (opening.job, opening.status.as_str(), opening.is_final) != (head.id, status, is_final) {
            self.wrong(Some(1), format!("the first job is {}, which is {status}", head.id));
        }
        if !is_final {
            self.found.note(&format!(
                "the job was {status} when it was exported: this is the beginning of a history that goes on"
            ));
        }
    }

    fn blobs(&mut self) {
        let export = self.export;
        let mut named = BTreeSet::new();
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
        for digest in named.iter().filter(|d| !export.blobs.contains_key(*d)) {
            match self.is_left_out("blob", &digest.to_string()) {
                true => self.found.note(&format!(
                    "blob {digest} was erased; the chain covers its digest, and what stands on its content is not checked"
                )),
                false => self.wrong(None, format!("blob {digest} is missing, and the file does not say why")),
            }
        }
    }

    fn left_out(&mut self) {
        for left in self.export.left_out.iter().filter(|l| l.what != "blob") {
            self.found.note(&format!("left out: {} {} ({})", left.what, left.name, left.why));
        }
        for Dossier { head, .. } in &self.export.jobs {
            let unread = head.mail_count.saturating_sub(head.mail_read);
            if unread > 0 && !self.is_left_out("mail", &head.id.to_string()) {
                let id = head.id;
                self.found.note(&format!("job {id} had messages that it had not read: {unread}"));
            }
        }
    }

    /// Who is whose child.
    fn family(&mut self) {
        let export = self.export;
        let mut parents: HashMap<EntityId, (EntityId, u32)> = HashMap::new();
        for dossier in &export.jobs {
            for child in &dossier.children {
                parents.insert(child.id, (dossier.head.id, child.ordinal));
                let here = self.jobs.contains(&child.id);
                if export.opening.with_children
                    && !here
                    && !self.is_left_out("job", &child.id.to_string())
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

    fn job(&mut self, dossier: &Dossier, tables: &Tables) -> JobReport {
        let (export, head) = (self.export, &dossier.head);
        let lines = stream::lines_in(&dossier.records, &export.blobs);
        let erased = blobs_of(&dossier.records).iter().any(|d| !export.blobs.contains_key(d));
        let kept = KeptEffects::of(dossier);
        let beside = Beside { effects: &kept, lost: &self.lost };
        let beside = Some(beside).filter(|_| !dossier.kept.is_empty());
        let read = lines.as_deref().map_err(ToString::to_string);
        let found = examine(head, &dossier.records, read, tables, beside.as_ref());
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
        if let Ok(lines) = &lines {
            let known = recorded(lines);
            for Kept { key, epoch, call, .. } in &dossier.kept {
                if !known.contains(&(key.as_str(), *call)) {
                    self.found.note(&format!(
                        "the effect store has a result of call {call} of {key} (epoch {epoch}) that job {} never recorded",
                        head.id
                    ));
                }
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

fn children(lines: &[Line]) -> Vec<(EntityId, u32)> {
    let started = |line: &Line| match &line.read {
        Some(JobEvent::Step(StepEvent::ChildStarted { child, ordinal, .. })) => {
            Some((*child, *ordinal))
        }
        _ => None,
    };
    lines.iter().filter_map(started).collect()
}

/// Calls whose result the job has on record, whoever saw it.
fn recorded(lines: &[Line]) -> HashSet<(&str, u32)> {
    let mut known = HashSet::new();
    for line in lines {
        if let Some(JobEvent::Step(
            StepEvent::ToolInvocationFinished { key, call, outcome: CallOutcome::Success, .. }
            | StepEvent::EffectSettled { key, call, verdict: Verdict::Happened, .. }
            | StepEvent::EffectCorrected { key, call, verdict: Verdict::Happened, .. },
        )) = &line.read
        {
            known.insert((key.as_str(), *call));
        }
    }
    known
}

/// What the file says lay in the effect store. `None` where it says two things.
struct KeptEffects<'a>(HashMap<(&'a str, u64, u32), Option<&'a Value>>);

impl<'a> KeptEffects<'a> {
    fn of(dossier: &'a Dossier) -> Self {
        let mut by_name = HashMap::new();
        for Kept { key, epoch, call, result } in &dossier.kept {
            let at = by_name.entry((key.as_str(), *epoch, *call)).or_insert(Some(result));
            if at.is_some_and(|first| canonical::bytes(first) != canonical::bytes(result)) {
                *at = None;
            }
        }
        KeptEffects(by_name)
    }
}

impl Effects for KeptEffects<'_> {
    fn put(&self, _: EffectName<'_>, _: &Value) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "an export is only read"))
    }

    fn get(&self, name: EffectName<'_>) -> io::Result<Option<Value>> {
        match self.0.get(&(name.key, name.epoch, name.call)) {
            None => Ok(None),
            Some(Some(result)) => Ok(Some((*result).clone())),
            Some(None) => Err(io::Error::other("two results under one name")),
        }
    }
}
