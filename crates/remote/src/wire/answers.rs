//! What became of operations.

use super::{Digest, Head, Unreadable, Words};
use serde::{Deserialize, Serialize};
use tenure_kernel::{
    commit as k, evidence, ids::EntityId, mail, sessions, store, table, time::Timestamp,
};
use utoipa::ToSchema;

/// The answer to one operation, in the place of the operation.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// To a commit.
    Commit(CommitAnswer),
    /// To a claim by name.
    Claim(ClaimVerdict),
    /// To mail.
    Mail(MailAnswer),
    /// To evidence.
    Evidence(EvidenceAnswer),
    /// To a renewal.
    Renew(RenewalAnswer),
    /// The head was locked: nothing happened, ask again.
    Busy,
}

impl Answer {
    /// For the wire; `None` for answers to what only a server does.
    pub fn of(a: &store::Answer) -> Option<Self> {
        Some(match a {
            store::Answer::Commit(a) => Answer::Commit(CommitAnswer::of(a)),
            store::Answer::Claim(Ok(head)) => {
                Answer::Claim(ClaimVerdict::Held(Box::new(Head::of(head))))
            }
            store::Answer::Claim(Err(a)) => {
                Answer::Claim(ClaimVerdict::Refused(CommitAnswer::of(a)))
            }
            store::Answer::Mail(a) => Answer::Mail(MailAnswer::of(a)),
            store::Answer::Evidence(a) => Answer::Evidence(EvidenceAnswer::of(a)),
            store::Answer::Renew(a) => Answer::Renew(RenewalAnswer::of(a)),
            store::Answer::Busy => Answer::Busy,
            store::Answer::Touch(_) | store::Answer::Deliver(_) => return None,
        })
    }

    /// As it was.
    pub fn read(self, words: &Words) -> Result<store::Answer, Unreadable> {
        Ok(match self {
            Answer::Commit(a) => store::Answer::Commit(a.read(words)),
            Answer::Claim(ClaimVerdict::Held(head)) => {
                store::Answer::Claim(Ok(Box::new(head.read(words)?)))
            }
            Answer::Claim(ClaimVerdict::Refused(a)) => store::Answer::Claim(Err(a.read(words))),
            Answer::Mail(a) => store::Answer::Mail(a.read(words)),
            Answer::Evidence(a) => store::Answer::Evidence(a.read(words)),
            Answer::Renew(a) => store::Answer::Renew(a.read()),
            Answer::Busy => store::Answer::Busy,
        })
    }
}

/// The answer to a claim by name.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClaimVerdict {
    /// It is yours; the head after the claim.
    Held(Box<Head>),
    /// It is not.
    Refused(CommitAnswer),
}

/// What became of a commit.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CommitAnswer {
    /// Durable.
    Committed(Committed),
    /// Another tenure has begun, or this one has ended. The worker MUST stop.
    StaleEpoch {
        /// The epoch now.
        current: u64,
    },
    /// Another commit came first.
    VersionConflict {
        /// The version now.
        current: u64,
    },
    /// The entity is over.
    Final {
        /// Its final status.
        status: String,
    },
    /// Mail has come that the commit has not read.
    MoreMail {
        /// How much there is.
        count: u64,
    },
    /// A unique key is taken, or the entity exists.
    Exists {
        /// By whom.
        #[schema(value_type = String)]
        entity: EntityId,
        /// Whether it was for the same input.
        same: bool,
    },
    /// It can never be accepted as it is.
    Refused(Refusal),
    /// Locked; ask again.
    Busy,
}

/// A commit that is durable.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Committed {
    /// Version of the last event.
    pub version: u64,
    /// The epoch after it.
    pub epoch: u64,
    /// Chain value after it.
    pub chain: Digest,
    /// Its time.
    #[schema(value_type = i64)]
    pub at: Timestamp,
    /// Mail that waits.
    pub mail_waiting: u64,
    /// It was committed by an earlier try.
    #[serde(default)]
    pub repeated: bool,
    /// The queue in which it can be claimed since this commit.
    #[serde(default)]
    pub ready_in: Option<String>,
    /// Whether something became due soon.
    #[serde(default)]
    pub due_soon: bool,
}

impl CommitAnswer {
    fn of(a: &k::CommitAnswer) -> Self {
        match a {
            k::CommitAnswer::Committed(c) => CommitAnswer::Committed(Committed {
                version: c.version,
                epoch: c.epoch,
                chain: Digest(c.chain),
                at: c.at,
                mail_waiting: c.mail_waiting,
                repeated: c.repeated,
                ready_in: c.ready_in.clone(),
                due_soon: c.due_soon,
            }),
            k::CommitAnswer::StaleEpoch { current } => {
                CommitAnswer::StaleEpoch { current: *current }
            }
            k::CommitAnswer::VersionConflict { current } => {
                CommitAnswer::VersionConflict { current: *current }
            }
            k::CommitAnswer::Final { status } => CommitAnswer::Final { status: (*status).into() },
            k::CommitAnswer::MoreMail { count } => CommitAnswer::MoreMail { count: *count },
            k::CommitAnswer::Exists { entity, same } => {
                CommitAnswer::Exists { entity: *entity, same: *same }
            }
            k::CommitAnswer::Refused(r) => CommitAnswer::Refused(Refusal::of(r)),
            k::CommitAnswer::Busy => CommitAnswer::Busy,
        }
    }

    fn read(self, words: &Words) -> k::CommitAnswer {
        match self {
            CommitAnswer::Committed(c) => k::CommitAnswer::Committed(k::Committed {
                version: c.version,
                epoch: c.epoch,
                chain: c.chain.0,
                at: c.at,
                mail_waiting: c.mail_waiting,
                repeated: c.repeated,
                ready_in: c.ready_in,
                due_soon: c.due_soon,
            }),
            CommitAnswer::StaleEpoch { current } => k::CommitAnswer::StaleEpoch { current },
            CommitAnswer::VersionConflict { current } => {
                k::CommitAnswer::VersionConflict { current }
            }
            CommitAnswer::Final { status } => {
                k::CommitAnswer::Final { status: words.keep(&status) }
            }
            CommitAnswer::MoreMail { count } => k::CommitAnswer::MoreMail { count },
            CommitAnswer::Exists { entity, same } => k::CommitAnswer::Exists { entity, same },
            CommitAnswer::Refused(r) => k::CommitAnswer::Refused(r.read(words)),
            CommitAnswer::Busy => k::CommitAnswer::Busy,
        }
    }
}

/// Why something can never be accepted.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// No such entity.
    Unknown {
        /// Which.
        #[schema(value_type = String)]
        entity: EntityId,
    },
    /// The kind has no machine at the server.
    UnknownKind(String),
    /// The transition table does not allow it.
    Illegal {
        /// The machine.
        kind: String,
        /// Where it stands.
        from: String,
        /// What was tried.
        event: String,
    },
    /// It had to say that it has read all mail.
    MailNotRead(String),
    /// The deadline rule.
    Deadline(String),
    /// Tenure change and events do not fit.
    Tenure(String),
    /// A seal from which the rest could not be checked.
    Seal(String),
    /// A named limit was passed.
    Limit {
        /// What was measured.
        what: String,
        /// How much it was.
        actual: usize,
        /// How much it may be.
        limit: usize,
    },
    /// The rule of its kind does not let this entity be created.
    NotAdmitted(String),
    /// The database refused the row.
    Constraint(String),
}

impl Refusal {
    fn of(r: &k::Refusal) -> Self {
        match r {
            k::Refusal::Unknown(id) => Refusal::Unknown { entity: *id },
            k::Refusal::UnknownKind(kind) => Refusal::UnknownKind(kind.clone()),
            k::Refusal::Illegal(i) => Refusal::Illegal {
                kind: i.kind.into(),
                from: i.from.into(),
                event: i.event.clone(),
            },
            k::Refusal::MailNotRead(to) => Refusal::MailNotRead((*to).into()),
            k::Refusal::Deadline(why) => Refusal::Deadline((*why).into()),
            k::Refusal::Tenure(why) => Refusal::Tenure((*why).into()),
            k::Refusal::Seal(why) => Refusal::Seal((*why).into()),
            k::Refusal::Limit { what, actual, limit } => {
                Refusal::Limit { what: (*what).into(), actual: *actual, limit: *limit }
            }
            k::Refusal::NotAdmitted(why) => Refusal::NotAdmitted(why.clone()),
            k::Refusal::Constraint(why) => Refusal::Constraint(why.clone()),
        }
    }

    fn read(self, words: &Words) -> k::Refusal {
        match self {
            Refusal::Unknown { entity } => k::Refusal::Unknown(entity),
            Refusal::UnknownKind(kind) => k::Refusal::UnknownKind(kind),
            Refusal::Illegal { kind, from, event } => k::Refusal::Illegal(table::Illegal {
                kind: words.keep(&kind),
                from: words.keep(&from),
                event,
            }),
            Refusal::MailNotRead(to) => k::Refusal::MailNotRead(words.keep(&to)),
            Refusal::Deadline(why) => k::Refusal::Deadline(words.keep(&why)),
            Refusal::Tenure(why) => k::Refusal::Tenure(words.keep(&why)),
            Refusal::Seal(why) => k::Refusal::Seal(words.keep(&why)),
            Refusal::Limit { what, actual, limit } => {
                k::Refusal::Limit { what: words.keep(&what), actual, limit }
            }
            Refusal::NotAdmitted(why) => k::Refusal::NotAdmitted(why),
            Refusal::Constraint(why) => k::Refusal::Constraint(why),
        }
    }
}

/// What became of mail.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MailAnswer {
    /// It lies in the box.
    Accepted {
        /// Its place.
        seq: u64,
        /// Who holds the entity.
        #[schema(value_type = Option<String>)]
        holder: Option<EntityId>,
    },
    /// It was there already.
    Duplicate,
    /// The entity is over.
    Final {
        /// Its final status.
        status: String,
    },
    /// No such entity.
    Unknown,
    /// It can never be accepted as it is.
    Refused(Refusal),
}

impl MailAnswer {
    fn of(a: &mail::MailAnswer) -> Self {
        match a {
            mail::MailAnswer::Accepted { seq, holder } => {
                MailAnswer::Accepted { seq: *seq, holder: *holder }
            }
            mail::MailAnswer::Duplicate => MailAnswer::Duplicate,
            mail::MailAnswer::Final { status } => MailAnswer::Final { status: (*status).into() },
            mail::MailAnswer::Unknown => MailAnswer::Unknown,
            mail::MailAnswer::Refused(r) => MailAnswer::Refused(Refusal::of(r)),
        }
    }

    fn read(self, words: &Words) -> mail::MailAnswer {
        match self {
            MailAnswer::Accepted { seq, holder } => mail::MailAnswer::Accepted { seq, holder },
            MailAnswer::Duplicate => mail::MailAnswer::Duplicate,
            MailAnswer::Final { status } => mail::MailAnswer::Final { status: words.keep(&status) },
            MailAnswer::Unknown => mail::MailAnswer::Unknown,
            MailAnswer::Refused(r) => mail::MailAnswer::Refused(r.read(words)),
        }
    }
}

/// What became of evidence.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EvidenceAnswer {
    /// Recorded.
    Recorded {
        /// Whether the entity was told.
        mailed: bool,
    },
    /// The same evidence was there.
    Duplicate,
    /// No such entity.
    Unknown,
    /// It can never be accepted as it is.
    Refused(Refusal),
}

impl EvidenceAnswer {
    fn of(a: &evidence::EvidenceAnswer) -> Self {
        match a {
            evidence::EvidenceAnswer::Recorded { mailed } => {
                EvidenceAnswer::Recorded { mailed: *mailed }
            }
            evidence::EvidenceAnswer::Duplicate => EvidenceAnswer::Duplicate,
            evidence::EvidenceAnswer::Unknown => EvidenceAnswer::Unknown,
            evidence::EvidenceAnswer::Refused(r) => EvidenceAnswer::Refused(Refusal::of(r)),
        }
    }

    fn read(self, words: &Words) -> evidence::EvidenceAnswer {
        match self {
            EvidenceAnswer::Recorded { mailed } => evidence::EvidenceAnswer::Recorded { mailed },
            EvidenceAnswer::Duplicate => evidence::EvidenceAnswer::Duplicate,
            EvidenceAnswer::Unknown => evidence::EvidenceAnswer::Unknown,
            EvidenceAnswer::Refused(r) => evidence::EvidenceAnswer::Refused(r.read(words)),
        }
    }
}

/// What became of a renewal.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RenewalAnswer {
    /// Good for another lease.
    Renewed {
        /// The new expiry, on the store's clock.
        #[schema(value_type = i64)]
        expires_at: Timestamp,
        /// Named entities that this session holds no longer. It MUST stop working on them.
        #[schema(value_type = Vec<String>)]
        lost: Vec<EntityId>,
        /// Named entities with unread mail.
        #[schema(value_type = Vec<String>)]
        mail: Vec<EntityId>,
    },
    /// The session is over or unknown. It MUST stop everything and open a new one.
    Ended,
}

impl RenewalAnswer {
    fn of(a: &sessions::RenewalAnswer) -> Self {
        match a {
            sessions::RenewalAnswer::Renewed { expires_at, lost, mail } => RenewalAnswer::Renewed {
                expires_at: *expires_at,
                lost: lost.clone(),
                mail: mail.clone(),
            },
            sessions::RenewalAnswer::Ended => RenewalAnswer::Ended,
        }
    }

    fn read(self) -> sessions::RenewalAnswer {
        match self {
            RenewalAnswer::Renewed { expires_at, lost, mail } => {
                sessions::RenewalAnswer::Renewed { expires_at, lost, mail }
            }
            RenewalAnswer::Ended => sessions::RenewalAnswer::Ended,
        }
    }
}
