//! Evidence: what came to be known about an entity outside its stream. Inserted once, accepted under
//! an old epoch and after the end; it changes no head and no event. If the entity is open, the same
//! transaction mails it, so that whoever decides sees it.

use crate::{
    commit::Refusal,
    ids::EntityId,
    judge::{within, within_body, without_nul},
    limits,
    stream::{Body, Hash},
    time::Timestamp,
};

/// Something that came to be known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewEvidence {
    /// About which entity.
    pub entity: EntityId,
    /// About what of it (an idempotency key, a pod UID).
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
    /// Digest of the body.
    pub fn digest(&self) -> Hash {
        self.body.digest()
    }

    /// Whether it keeps the limits.
    pub fn within_limits(&self) -> Result<(), Refusal> {
        within("evidence key in bytes", self.key.len(), limits::EVIDENCE_KEY_BYTES_MAX)?;
        within("evidence author in bytes", self.who.len(), limits::NAME_BYTES_MAX)?;
        without_nul("evidence key", &self.key)?;
        without_nul("evidence author", &self.who)?;
        within_body("evidence body in bytes", &self.body)
    }

    /// The id of the mail that tells the entity.
    pub fn mail_id(&self) -> crate::ids::MailId {
        crate::ids::MailId(format!(
            "evidence/{}/{}/{}/{}",
            self.key,
            self.epoch,
            self.call,
            self.digest()
        ))
    }
}

/// Evidence as it is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Evidence {
    /// What was said.
    pub said: NewEvidence,
    /// When it was recorded.
    pub at: Timestamp,
}

/// What became of evidence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EvidenceAnswer {
    /// Recorded; `mailed` if the entity was open.
    Recorded {
        /// Whether the entity was told.
        mailed: bool,
    },
    /// The same evidence was there.
    Duplicate,
    /// No such entity.
    Unknown,
    /// It can never be accepted as it is: a named limit was passed.
    Refused(Refusal),
}
