//! A commit: the one way to change an entity.

use super::{Body, Bytes, CommitName, Digest, Unreadable, Words, micros};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{commit as k, ids::EntityId, outbox, sessions, stream::NewEvent, timers};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        RefOr,
        schema::{ObjectBuilder, Schema, Type},
    },
};

/// A change to one entity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Commit {
    /// Asking again with the same id is always safe.
    pub id: CommitName,
    /// Which entity.
    #[schema(value_type = String)]
    pub entity: EntityId,
    /// What the committer believes.
    pub expect: Expect,
    /// What happened; at least one.
    pub events: Vec<Event>,
    /// The machine's new state; absent leaves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<Bytes>,
    /// Changes to timers, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timers: Vec<TimerChange>,
    /// What becomes of the tenure.
    #[serde(default)]
    pub tenure: Tenure,
    /// What the committer says about mail.
    #[serde(default)]
    pub mail: MailStance,
    /// `must_end_by` from now, when an entity becomes open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub must_end_in_us: Option<u64>,
    /// Marks the entity for a person, or clears the mark.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention: Option<Attention>,
    /// What it says to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Message>,
    /// Unique rows, inserted with a birth.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub keys: Vec<UniqueKey>,
}

impl Commit {
    /// For the wire.
    pub fn of(c: &k::Commit) -> Self {
        let event = |e: &NewEvent| Event { name: e.name.to_string(), body: Body::of(&e.body) };
        let attention = |a: &Option<String>| match a {
            Some(why) => Attention::Raise(why.clone()),
            None => Attention::Clear,
        };
        Commit {
            id: CommitName(c.id),
            entity: c.entity,
            expect: Expect::of(&c.expect),
            events: c.events.iter().map(event).collect(),
            state: c.state.as_deref().map(Bytes::of),
            timers: c.timers.iter().map(TimerChange::of).collect(),
            tenure: Tenure::of(&c.tenure),
            mail: MailStance::of(c.mail),
            must_end_in_us: c.must_end_in.map(micros),
            attention: c.attention.as_ref().map(attention),
            messages: c.messages.iter().map(Message::of).collect(),
            keys: c.keys.iter().map(UniqueKey::of).collect(),
        }
    }

    /// As it was.
    pub fn read(self, words: &Words) -> Result<k::Commit, Unreadable> {
        let event = |(i, e): (usize, Event)| {
            let body = e.body.read().map_err(|why| why.within(&format!("events[{i}].body")))?;
            Ok(NewEvent::new(e.name, body))
        };
        let message = |(i, m): (usize, Message)| {
            m.read().map_err(|why: Unreadable| why.within(&format!("messages[{i}]")))
        };
        let state = self.state.map(Bytes::read).transpose().map_err(|e| e.within("state"))?;
        Ok(k::Commit {
            id: self.id.0,
            entity: self.entity,
            expect: self.expect.read(words).map_err(|e| e.within("expect"))?,
            events: self.events.into_iter().enumerate().map(event).collect::<Result<_, _>>()?,
            state,
            timers: self.timers.into_iter().map(TimerChange::read).collect(),
            tenure: self.tenure.read(),
            mail: self.mail.read(),
            must_end_in: self.must_end_in_us.map(Duration::from_micros),
            attention: self.attention.map(|a| match a {
                Attention::Raise(why) => Some(why),
                Attention::Clear => None,
            }),
            messages: self
                .messages
                .into_iter()
                .enumerate()
                .map(message)
                .collect::<Result<_, _>>()?,
            keys: self.keys.into_iter().map(UniqueKey::read).collect(),
        })
    }
}

/// Marks an entity for a person, or clears the mark.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attention {
    /// Why a person should look.
    Raise(String),
    /// Nobody has to look any more.
    Clear,
}

/// An event to append.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// Its name in the transition table.
    pub name: String,
    /// What it says.
    pub body: Body,
}

/// What a committer believes about the entity.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Expect {
    /// It does not exist; this commit creates it.
    Absent(Birth),
    /// I hold it.
    Holder {
        /// My epoch.
        epoch: u64,
        /// The version I know.
        version: u64,
    },
    /// Nobody holds it.
    Nobody {
        /// The epoch I saw.
        epoch: u64,
        /// The version I saw.
        version: u64,
    },
    /// A guard ends the tenure of whoever holds it. Not for workers; a server refuses it.
    Overrule {
        /// The epoch I saw.
        epoch: u64,
        /// The version I saw.
        version: u64,
    },
    /// A guard ends the tenure at whatever version. Not for workers; a server refuses it.
    EndTenure {
        /// The epoch I saw.
        epoch: u64,
    },
}

impl Expect {
    fn of(e: &k::Expect) -> Self {
        match *e {
            k::Expect::Absent(ref b) => Expect::Absent(Birth {
                kind: b.kind.to_owned(),
                tenant: b.tenant.clone(),
                queue: b.queue.clone(),
                priority: b.priority,
            }),
            k::Expect::Holder { epoch, version } => Expect::Holder { epoch, version },
            k::Expect::Nobody { epoch, version } => Expect::Nobody { epoch, version },
            k::Expect::Overrule { epoch, version } => Expect::Overrule { epoch, version },
            k::Expect::EndTenure { epoch } => Expect::EndTenure { epoch },
        }
    }

    fn read(self, words: &Words) -> Result<k::Expect, Unreadable> {
        Ok(match self {
            Expect::Absent(b) => k::Expect::Absent(k::Birth {
                kind: words.table(&b.kind).map_err(|e| e.within("absent"))?.kind,
                tenant: b.tenant,
                queue: b.queue,
                priority: b.priority,
            }),
            Expect::Holder { epoch, version } => k::Expect::Holder { epoch, version },
            Expect::Nobody { epoch, version } => k::Expect::Nobody { epoch, version },
            Expect::Overrule { epoch, version } => k::Expect::Overrule { epoch, version },
            Expect::EndTenure { epoch } => k::Expect::EndTenure { epoch },
        })
    }
}

/// What is fixed when an entity is created.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Birth {
    /// Its kind.
    pub kind: String,
    /// Whose it is. A caller with a tenant gets its own, whatever stands here.
    #[serde(default)]
    pub tenant: String,
    /// Its queue.
    #[serde(default)]
    pub queue: String,
    /// Higher is sooner.
    #[serde(default)]
    pub priority: i16,
}

/// What becomes of the tenure.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Tenure {
    /// Nothing.
    #[default]
    Keep,
    /// The session takes it, in this commit.
    Take {
        /// Who.
        #[schema(value_type = String)]
        session: EntityId,
        /// When to look first whether that session lives.
        lease_us: u64,
    },
    /// It ends.
    End,
    /// A new worker session takes itself.
    Open(Opening),
}

/// What opens a worker session: name, role (`worker`) and lease_ms. It is also the body of the session's
/// first event, so the kernel's own form is the stable one and is used as it is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Opening(pub sessions::Opening);

impl PartialSchema for Opening {
    fn schema() -> RefOr<Schema> {
        let text =
            |about: &str| ObjectBuilder::new().schema_type(Type::String).description(Some(about));
        ObjectBuilder::new()
            .property("name", text("Who, for people."))
            .property("role", text("`worker`."))
            .property("lease_ms", ObjectBuilder::new().schema_type(Type::Integer))
            .required("name")
            .required("role")
            .required("lease_ms")
            .into()
    }
}

impl ToSchema for Opening {}

impl Tenure {
    fn of(t: &k::TenureChange) -> Self {
        match t {
            k::TenureChange::Keep => Tenure::Keep,
            k::TenureChange::Take { session, lease } => {
                Tenure::Take { session: *session, lease_us: micros(*lease) }
            }
            k::TenureChange::End => Tenure::End,
            k::TenureChange::Open(o) => Tenure::Open(Opening(o.clone())),
        }
    }

    fn read(self) -> k::TenureChange {
        match self {
            Tenure::Keep => k::TenureChange::Keep,
            Tenure::Take { session, lease_us } => {
                k::TenureChange::Take { session, lease: Duration::from_micros(lease_us) }
            }
            Tenure::End => k::TenureChange::End,
            Tenure::Open(opening) => k::TenureChange::Open(opening.0),
        }
    }
}

/// What a committer says about mail.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailStance {
    /// Read nothing new.
    #[default]
    Unread,
    /// This commit covers everything up to that count.
    Read(u64),
    /// The same, and there must be no more.
    ReadAll(u64),
    /// Whatever lies there, it happens: a release or a forced end.
    Regardless,
}

impl MailStance {
    fn of(m: k::MailStance) -> Self {
        match m {
            k::MailStance::Unread => MailStance::Unread,
            k::MailStance::Read(n) => MailStance::Read(n),
            k::MailStance::ReadAll(n) => MailStance::ReadAll(n),
            k::MailStance::Regardless => MailStance::Regardless,
        }
    }

    fn read(self) -> k::MailStance {
        match self {
            MailStance::Unread => k::MailStance::Unread,
            MailStance::Read(n) => k::MailStance::Read(n),
            MailStance::ReadAll(n) => k::MailStance::ReadAll(n),
            MailStance::Regardless => k::MailStance::Regardless,
        }
    }
}

/// A change to a timer. Durations count from the commit's own store time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TimerChange {
    /// Sets or replaces.
    Set {
        /// Which.
        name: String,
        /// From the commit's time.
        after_us: u64,
        /// Served by the due loop even while the entity is held.
        #[serde(default)]
        guard: bool,
    },
    /// Removes, if set.
    Clear {
        /// Which.
        name: String,
    },
    /// Removes all.
    ClearAll,
}

impl TimerChange {
    fn of(t: &timers::TimerChange) -> Self {
        match t {
            timers::TimerChange::Set { name, after, guard } => {
                TimerChange::Set { name: name.to_string(), after_us: micros(*after), guard: *guard }
            }
            timers::TimerChange::Clear { name } => TimerChange::Clear { name: name.to_string() },
            timers::TimerChange::ClearAll => TimerChange::ClearAll,
        }
    }

    fn read(self) -> timers::TimerChange {
        match self {
            TimerChange::Set { name, after_us, guard } => timers::TimerChange::Set {
                name: name.into(),
                after: Duration::from_micros(after_us),
                guard,
            },
            TimerChange::Clear { name } => timers::TimerChange::Clear { name: name.into() },
            TimerChange::ClearAll => timers::TimerChange::ClearAll,
        }
    }
}

/// A message that a commit sends.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    /// Where to.
    pub to: Target,
    /// What it is about.
    pub kind: String,
    /// What it says.
    pub body: Body,
}

/// Where a message goes.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Target {
    /// Mail to an entity.
    Mail {
        /// Which.
        #[schema(value_type = String)]
        entity: EntityId,
    },
    /// A new entity.
    Create {
        /// Its id, chosen by the creator.
        #[schema(value_type = String)]
        id: EntityId,
        /// Its kind.
        kind: String,
    },
    /// A subject outside.
    Wire(String),
}

impl Message {
    fn of(m: &outbox::Message) -> Self {
        let to = match &m.to {
            outbox::Target::Mail(id) => Target::Mail { entity: *id },
            outbox::Target::Create { id, kind } => {
                Target::Create { id: *id, kind: kind.to_string() }
            }
            outbox::Target::Wire(subject) => Target::Wire(subject.clone()),
        };
        Message { to, kind: m.kind.to_string(), body: Body::of(&m.body) }
    }

    fn read(self) -> Result<outbox::Message, Unreadable> {
        let to = match self.to {
            Target::Mail { entity } => outbox::Target::Mail(entity),
            Target::Create { id, kind } => outbox::Target::Create { id, kind: kind.into() },
            Target::Wire(subject) => outbox::Target::Wire(subject),
        };
        let body = self.body.read().map_err(|e| e.within("body"))?;
        Ok(outbox::Message { to, kind: self.kind.into(), body })
    }
}

/// A row that can exist once.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UniqueKey {
    /// `kind/length of the tenant's name/tenant/key`.
    pub key: String,
    /// Digest of what was submitted.
    pub digest: Digest,
}

impl UniqueKey {
    fn of(u: &k::UniqueKey) -> Self {
        UniqueKey { key: u.key.clone(), digest: Digest(u.digest) }
    }

    fn read(self) -> k::UniqueKey {
        k::UniqueKey { key: self.key, digest: self.digest.0 }
    }
}
