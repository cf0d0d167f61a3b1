//! What a worker reads.

use super::{Body, Bytes, CommitName, Digest, Event, Hold, NewEvidence, Unreadable, Words};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    codec::Writer,
    evidence, head,
    ids::{EntityId, MailId},
    mail, sessions, stream,
    time::Timestamp,
    timers::Timers,
};
use utoipa::ToSchema;

/// A stretch of something long.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// In order.
    pub items: Vec<T>,
    /// Whether the page was closed before its end: ask again from after the last item.
    #[serde(default)]
    pub more: bool,
}

/// Where an entity stands.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Head {
    /// Which entity.
    #[schema(value_type = String)]
    pub id: EntityId,
    /// Its kind; together with the status a row of a transition table.
    pub kind: String,
    /// Its status.
    pub status: String,
    /// Whose it is.
    pub tenant: String,
    /// Its queue.
    pub queue: String,
    /// Higher is sooner.
    pub priority: i16,
    /// Version of the last event.
    pub version: u64,
    /// The fencing token.
    pub epoch: u64,
    /// Who holds it.
    #[schema(value_type = Option<String>)]
    pub holder: Option<EntityId>,
    /// Chain value after the last event.
    pub chain: Digest,
    /// Time of the first event.
    #[schema(value_type = i64)]
    pub created_at: Timestamp,
    /// Time of the last event.
    #[schema(value_type = i64)]
    pub changed_at: Timestamp,
    /// Mail that has arrived.
    pub mail_count: u64,
    /// Mail covered by commits.
    pub mail_read: u64,
    /// When something has to be looked at.
    #[schema(value_type = Option<i64>)]
    pub due: Option<Timestamp>,
    /// By when it ends, whatever happens.
    #[schema(value_type = Option<i64>)]
    pub must_end_by: Option<Timestamp>,
    /// When the holder's session is looked at next.
    #[schema(value_type = Option<i64>)]
    pub check_at: Option<Timestamp>,
    /// Failed decisions in a row.
    pub faults: u16,
    /// Since when it stands in its queue.
    #[schema(value_type = Option<i64>)]
    pub ready_at: Option<Timestamp>,
    /// Why a person should look.
    pub attention: Option<String>,
    /// Version of the last seal.
    pub sealed: u64,
    /// Named timers.
    pub timers: Vec<Timer>,
    /// The machine's own state.
    pub state: Bytes,
}

/// A timer that is set.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Timer {
    /// Its name.
    pub name: String,
    /// When it fires.
    #[schema(value_type = i64)]
    pub at: Timestamp,
    /// Served by the due loop even while the entity is held.
    pub guard: bool,
}

impl Head {
    /// For the wire.
    pub fn of(h: &head::Head) -> Self {
        let timer = |t: &tenure_kernel::timers::Timer| Timer {
            name: t.name.to_string(),
            at: t.at,
            guard: t.guard,
        };
        Head {
            id: h.id,
            kind: h.kind().to_owned(),
            status: h.status.name().to_owned(),
            tenant: h.tenant.clone(),
            queue: h.queue.clone(),
            priority: h.priority,
            version: h.version,
            epoch: h.epoch,
            holder: h.holder,
            chain: Digest(h.chain),
            created_at: h.created_at,
            changed_at: h.changed_at,
            mail_count: h.mail_count,
            mail_read: h.mail_read,
            due: h.due,
            must_end_by: h.must_end_by,
            check_at: h.check_at,
            faults: h.faults,
            ready_at: h.ready_at,
            attention: h.attention.clone(),
            sealed: h.sealed,
            timers: h.timers.iter().map(timer).collect(),
            state: Bytes::of(&h.state),
        }
    }

    /// As it was.
    pub fn read(self, words: &Words) -> Result<head::Head, Unreadable> {
        Ok(head::Head {
            id: self.id,
            status: words.status(&self.kind, &self.status)?,
            tenant: self.tenant,
            queue: self.queue,
            priority: self.priority,
            version: self.version,
            epoch: self.epoch,
            holder: self.holder,
            chain: self.chain.0,
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
            timers: timers(&self.timers)?,
            state: self.state.read().map_err(|e| e.within("state"))?,
        })
    }
}

/// Through the stored form, the only way to set a timer at a moment instead of after a while.
fn timers(timers: &[Timer]) -> Result<Timers, Unreadable> {
    let mut w = Writer::default();
    w.uint(timers.len() as u64);
    for t in timers {
        w.bytes(t.name.as_bytes());
        w.time(t.at);
        w.u8(u8::from(t.guard));
    }
    Timers::from_bytes(&w.0).map_err(|e| Unreadable::new("timers", e.to_string()))
}

/// Mail as it lies in the box.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Mail {
    /// Its place, dense from 1.
    pub seq: u64,
    /// Its id.
    pub id: String,
    /// What it is about.
    pub kind: String,
    /// What it says.
    pub body: Body,
    /// When it arrived.
    #[schema(value_type = i64)]
    pub at: Timestamp,
}

impl Mail {
    /// For the wire.
    pub fn of(m: &mail::Mail) -> Self {
        let (id, kind) = (m.id.0.clone(), m.kind.clone());
        Mail { seq: m.seq, id, kind, body: Body::of(&m.body), at: m.at }
    }

    /// As it was.
    pub fn read(self) -> Result<mail::Mail, Unreadable> {
        let body = self.body.read().map_err(|e| e.within("body"))?;
        Ok(mail::Mail { seq: self.seq, id: MailId(self.id), kind: self.kind, body, at: self.at })
    }
}

/// One committed row of a stream. Events and meta are there, or the bytes where they have another form.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Record {
    /// Whose stream.
    #[schema(value_type = String)]
    pub entity: EntityId,
    /// Version of the first event.
    pub first: u64,
    /// How many events.
    pub count: u32,
    /// The commit's id.
    pub commit: CommitName,
    /// The store's time.
    #[schema(value_type = i64)]
    pub at: Timestamp,
    /// The epoch it was written under.
    pub epoch: u64,
    /// Chain value after the last event.
    pub hash: Digest,
    /// What else the commit changed, as it is hashed; base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meta: Option<String>,
    /// The events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Event>,
    /// The whole row, where it is not exactly its meta and events; base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<String>,
}

impl Record {
    /// For the wire.
    pub fn of(r: &stream::Record) -> Self {
        let (meta, events, raw) = match opened(r) {
            Some((meta, events)) => (Some(meta), events, None),
            None => (None, Vec::new(), Some(STANDARD.encode(&r.bytes))),
        };
        Record {
            entity: r.entity,
            first: r.first,
            count: r.count,
            commit: CommitName(r.commit),
            at: r.at,
            epoch: r.epoch,
            hash: Digest(r.hash),
            meta,
            events,
            raw,
        }
    }

    /// As it was.
    pub fn read(self) -> Result<stream::Record, Unreadable> {
        let decode = |field: &str, text: &str| {
            STANDARD.decode(text).map_err(|e| Unreadable::new(field, e.to_string()))
        };
        let bytes = match (self.raw, self.meta) {
            (Some(raw), _) => decode("raw", &raw)?,
            (None, Some(meta)) => {
                let events = self.events.into_iter().map(|e| Ok((e.name, e.body.read()?)));
                closed(&decode("meta", &meta)?, &events.collect::<Result<Vec<_>, Unreadable>>()?)
            }
            (None, None) => return Err(Unreadable::new("meta", "a record has meta or raw")),
        };
        Ok(stream::Record {
            entity: self.entity,
            first: self.first,
            count: self.count,
            commit: self.commit.0,
            at: self.at,
            epoch: self.epoch,
            hash: self.hash.0,
            bytes,
        })
    }
}

/// Meta and events of a record, if the record's bytes can be made from them again.
fn opened(r: &stream::Record) -> Option<(String, Vec<Event>)> {
    let (meta, events) = (r.meta().ok()?, r.events().ok()?);
    let pairs: Vec<_> = events.into_iter().map(|e| (e.name, e.body)).collect();
    let event =
        |(name, body): &(String, stream::Body)| Event { name: name.clone(), body: Body::of(body) };
    (closed(meta, &pairs) == r.bytes)
        .then(|| (STANDARD.encode(meta), pairs.iter().map(event).collect()))
}

/// The bytes of a record, as the kernel packs them.
fn closed(meta: &[u8], events: &[(String, stream::Body)]) -> Vec<u8> {
    let mut w = Writer::default();
    w.bytes(meta);
    for (name, body) in events {
        w.bytes(name.as_bytes());
        body.write(&mut w);
    }
    w.0
}

/// Evidence as it is kept.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Evidence {
    /// What was said.
    pub said: NewEvidence,
    /// When it was recorded.
    #[schema(value_type = i64)]
    pub at: Timestamp,
}

impl Evidence {
    /// For the wire.
    pub fn of(e: &evidence::Evidence) -> Self {
        Evidence { said: NewEvidence::of(&e.said), at: e.at }
    }

    /// As it was.
    pub fn read(self) -> Result<evidence::Evidence, Unreadable> {
        Ok(evidence::Evidence {
            said: self.said.read().map_err(|e| e.within("said"))?,
            at: self.at,
        })
    }
}

/// The soft row of a worker session.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Which.
    #[schema(value_type = String)]
    pub id: EntityId,
    /// Who, for people.
    pub name: String,
    /// `server` or `worker`.
    pub role: String,
    /// How long a renewal lasts.
    pub lease_us: u64,
    /// When it was renewed last.
    #[schema(value_type = i64)]
    pub renewed_at: Timestamp,
    /// Until when it is believed alive.
    #[schema(value_type = i64)]
    pub expires_at: Timestamp,
    /// What it holds, as of the last renewal.
    pub holds: Vec<Hold>,
    /// It is over.
    pub ended: bool,
}

impl Session {
    /// For the wire.
    pub fn of(s: &sessions::Session) -> Self {
        Session {
            id: s.id,
            name: s.name.clone(),
            role: s.role.clone(),
            lease_us: super::micros(s.lease),
            renewed_at: s.renewed_at,
            expires_at: s.expires_at,
            holds: s.holds.iter().map(Hold::of).collect(),
            ended: s.ended,
        }
    }

    /// As it was.
    pub fn read(self) -> sessions::Session {
        sessions::Session {
            id: self.id,
            name: self.name,
            role: self.role,
            lease: Duration::from_micros(self.lease_us),
            renewed_at: self.renewed_at,
            expires_at: self.expires_at,
            holds: self.holds.into_iter().map(Hold::read).collect(),
            ended: self.ended,
        }
    }
}
