//! What a worker asks to be written.

use super::{Body, Commit, CommitName, Unreadable, Words, micros};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    evidence,
    ids::{EntityId, MailId},
    mail, sessions, store,
};
use utoipa::ToSchema;

/// One operation. Touches and deliveries are the server's own and have no word here.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Op {
    /// Changes an entity.
    Commit(Box<Commit>),
    /// Claims one entity by name.
    Claim {
        /// Names the claim's commit.
        id: CommitName,
        /// Which entity.
        #[schema(value_type = String)]
        entity: EntityId,
        /// For which worker session.
        #[schema(value_type = String)]
        session: EntityId,
        /// For how long the claim itself vouches for the session.
        lease_us: u64,
    },
    /// Sends mail.
    Mail(NewMail),
    /// Says what came to be known.
    Evidence(NewEvidence),
    /// Renews a worker session.
    Renew {
        /// Which session.
        #[schema(value_type = String)]
        session: EntityId,
        /// Everything it holds.
        holds: Vec<Hold>,
    },
}

impl Op {
    /// For the wire; `None` for what only a server does.
    pub fn of(op: &store::Op) -> Option<Self> {
        Some(match op {
            store::Op::Commit(c) => Op::Commit(Box::new(Commit::of(c))),
            store::Op::Claim { id, entity, session, lease } => Op::Claim {
                id: CommitName(*id),
                entity: *entity,
                session: *session,
                lease_us: micros(*lease),
            },
            store::Op::Mail(m) => Op::Mail(NewMail::of(m)),
            store::Op::Evidence(e) => Op::Evidence(NewEvidence::of(e)),
            store::Op::Renew(r) => {
                Op::Renew { session: r.session, holds: r.holds.iter().map(Hold::of).collect() }
            }
            store::Op::Touch(_) | store::Op::Deliver(_) => return None,
        })
    }

    /// As it was.
    pub fn read(self, words: &Words) -> Result<store::Op, Unreadable> {
        Ok(match self {
            Op::Commit(c) => {
                store::Op::Commit(Box::new(c.read(words).map_err(|e| e.within("commit"))?))
            }
            Op::Claim { id, entity, session, lease_us } => store::Op::Claim {
                id: id.0,
                entity,
                session,
                lease: Duration::from_micros(lease_us),
            },
            Op::Mail(m) => store::Op::Mail(m.read().map_err(|e| e.within("mail"))?),
            Op::Evidence(e) => store::Op::Evidence(e.read().map_err(|e| e.within("evidence"))?),
            Op::Renew { session, holds } => store::Op::Renew(sessions::Renewal {
                session,
                holds: holds.into_iter().map(Hold::read).collect(),
            }),
        })
    }
}

/// Mail to send.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMail {
    /// To whom.
    #[schema(value_type = String)]
    pub to: EntityId,
    /// Sending the same id to the same entity again is answered, not repeated.
    pub id: String,
    /// What it is about.
    pub kind: String,
    /// What it says.
    pub body: Body,
}

impl NewMail {
    fn of(m: &mail::NewMail) -> Self {
        let (id, kind) = (m.id.0.clone(), m.kind.to_string());
        NewMail { to: m.to, id, kind, body: Body::of(&m.body) }
    }

    fn read(self) -> Result<mail::NewMail, Unreadable> {
        let body = self.body.read().map_err(|e| e.within("body"))?;
        Ok(mail::NewMail { to: self.to, id: MailId(self.id), kind: self.kind.into(), body })
    }
}

/// Something that came to be known.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewEvidence {
    /// About which entity.
    #[schema(value_type = String)]
    pub entity: EntityId,
    /// About what of it.
    pub key: String,
    /// Under which epoch it was gathered; an old one is fine.
    pub epoch: u64,
    /// The call it belongs to.
    pub call: u32,
    /// Who says so.
    pub who: String,
    /// What they say.
    pub body: Body,
}

impl NewEvidence {
    pub(super) fn of(e: &evidence::NewEvidence) -> Self {
        NewEvidence {
            entity: e.entity,
            key: e.key.clone(),
            epoch: e.epoch,
            call: e.call,
            who: e.who.clone(),
            body: Body::of(&e.body),
        }
    }

    pub(super) fn read(self) -> Result<evidence::NewEvidence, Unreadable> {
        let NewEvidence { entity, key, epoch, call, who, body } = self;
        let body = body.read().map_err(|e| e.within("body"))?;
        Ok(evidence::NewEvidence { entity, key, epoch, call, who, body })
    }
}

/// One entity that a session says it holds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Which.
    #[schema(value_type = String)]
    pub entity: EntityId,
    /// Under which epoch.
    pub epoch: u64,
    /// Rises with progress.
    pub mark: u64,
}

impl Hold {
    pub(super) fn of(h: &sessions::Hold) -> Self {
        Hold { entity: h.entity, epoch: h.epoch, mark: h.mark }
    }

    pub(super) fn read(self) -> sessions::Hold {
        sessions::Hold { entity: self.entity, epoch: self.epoch, mark: self.mark }
    }
}
