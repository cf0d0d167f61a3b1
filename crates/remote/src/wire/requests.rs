//! Requests and their answers, one pair per endpoint.

use super::{Answer, CommitName, Digest, Head, Mail, Op, Unreadable, Words, micros};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{claims, ids::EntityId, time::Timestamp};
use utoipa::ToSchema;

/// `POST /v1/worker/apply`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApplyRequest {
    /// What to do. Each is decided alone; a refused one fails no other.
    pub ops: Vec<Op>,
}

/// Answers, in the order of the operations.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ApplyAnswer {
    /// One for each operation.
    pub answers: Vec<Answer>,
}

/// `GET /v1/worker/now`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct NowAnswer {
    /// The store's time.
    #[schema(value_type = i64)]
    pub now: Timestamp,
}

/// `GET /v1/worker/ready`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ReadyAnswer {
    /// Groups with ready work.
    pub groups: Vec<Group>,
}

/// A group of ready work.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Higher is sooner.
    pub priority: i16,
    /// Whose.
    pub tenant: String,
}

/// `POST /v1/worker/claim`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ClaimRequest {
    /// The commits of the claims are named after this one.
    pub id: CommitName,
    /// Which session asks.
    #[schema(value_type = String)]
    pub session: EntityId,
    /// For how long the claim itself vouches for the session.
    pub lease_us: u64,
    /// Which queue.
    pub queue: String,
    /// Where to look, in this order.
    pub probes: Vec<Probe>,
    /// No more than this in all.
    pub limit: usize,
}

/// One look into a group.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// The group's priority.
    pub priority: i16,
    /// The group's tenant.
    pub tenant: String,
    /// Ready at or after this moment.
    #[serde(default)]
    #[schema(value_type = i64)]
    pub floor: Timestamp,
    /// How many.
    pub want: usize,
}

impl ClaimRequest {
    /// For the wire.
    pub fn of(r: &claims::ClaimRequest) -> Self {
        let probe = |p: &claims::Probe| Probe {
            priority: p.priority,
            tenant: p.tenant.clone(),
            floor: p.floor,
            want: p.want,
        };
        ClaimRequest {
            id: CommitName(r.id),
            session: r.session,
            lease_us: micros(r.lease),
            queue: r.queue.clone(),
            probes: r.probes.iter().map(probe).collect(),
            limit: r.limit,
        }
    }

    /// As it was.
    pub fn read(self) -> claims::ClaimRequest {
        let probe = |p: Probe| claims::Probe {
            priority: p.priority,
            tenant: p.tenant,
            floor: p.floor,
            want: p.want,
        };
        claims::ClaimRequest {
            id: self.id.0,
            session: self.session,
            lease: Duration::from_micros(self.lease_us),
            queue: self.queue,
            probes: self.probes.into_iter().map(probe).collect(),
            limit: self.limit,
        }
    }
}

/// What a claim found.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct ClaimAnswer {
    /// In order of claim.
    pub claimed: Vec<Claimed>,
    /// How many each probe gave.
    pub found: Vec<usize>,
}

/// An entity that was claimed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Claimed {
    /// The head after the claim.
    pub head: Head,
    /// Unread mail.
    pub mail: Vec<Mail>,
    /// When it became ready.
    #[schema(value_type = i64)]
    pub ready_at: Timestamp,
}

impl ClaimAnswer {
    /// For the wire.
    pub fn of(a: &claims::ClaimAnswer) -> Self {
        let claimed = |c: &claims::Claimed| Claimed {
            head: Head::of(&c.head),
            mail: c.mail.iter().map(Mail::of).collect(),
            ready_at: c.ready_at,
        };
        ClaimAnswer { claimed: a.claimed.iter().map(claimed).collect(), found: a.found.clone() }
    }

    /// As it was.
    pub fn read(self, words: &Words) -> Result<claims::ClaimAnswer, Unreadable> {
        let claimed = |c: Claimed| {
            Ok(claims::Claimed {
                head: c.head.read(words).map_err(|e| e.within("head"))?,
                mail: c.mail.into_iter().map(Mail::read).collect::<Result<_, _>>()?,
                ready_at: c.ready_at,
            })
        };
        let claimed = self.claimed.into_iter().map(claimed).collect::<Result<_, Unreadable>>()?;
        Ok(claims::ClaimAnswer { claimed, found: self.found })
    }
}

/// `PUT /v1/worker/blobs`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub struct BlobAnswer {
    /// The blob's name.
    pub digest: Digest,
}

/// `POST /v1/worker/bell`: waits until one of the topics rings.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BellRequest {
    /// `queue/<name>` and `session/<id>`.
    pub topics: Vec<String>,
    /// How long to wait; at most 30,000.
    pub wait_ms: u64,
    /// `seen` of the last answer: what rang since then is told at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<String>,
}

/// What rang. Empty when the wait was over.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BellAnswer {
    /// Topics of the request. One that may have rung unheard is named too.
    pub rung: Vec<String>,
    /// For the next request; opaque.
    pub seen: String,
}
