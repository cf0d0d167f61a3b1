//! Mail: how everybody but the holder speaks to an entity. A durable row, idempotent by its id.
//! Mail is not a commit: it raises the head's mail counter, and nothing else may depend on it until
//! a commit of the entity covers it.

use crate::{
    commit::Refusal,
    head::Head,
    ids::{EntityId, MailId, SessionId},
    judge::{within, within_body, without_nul},
    limits,
    stream::Body,
    table::Class,
    time::Timestamp,
};
use std::borrow::Cow;

/// Kinds of mail that the kernel itself sends or understands.
pub mod kinds {
    /// Asks the entity to end. Of an unknown entity: creates it cancelled.
    pub const CANCEL: &str = "cancel";
    /// A timer of a held entity fired; the body names it.
    pub const TIMER_DUE: &str = "timer_due";
    /// Evidence about an open entity was recorded; the body is the evidence.
    pub const EVIDENCE: &str = "evidence";
    /// A message could not be delivered; the body names it and says why.
    pub const RETURNED: &str = "returned";
    /// A child reports its end to its parent.
    pub const CHILD_ENDED: &str = "child_ended";
}

/// Whether mail of this kind expects an answer: its name ends in `?`. The target of such mail answers it, or the
/// mail comes back to its sender as [`kinds::RETURNED`]: also from a target that is over, where other mail just
/// ends. So whoever hands something out by mail (a permit, a block of tokens) always learns where it is. A mark in
/// the name and not a column: the rule is then in every store, and in every row that was ever written.
pub fn expects_answer(kind: &str) -> bool {
    kind.ends_with('?')
}

/// Mail that somebody wants to send.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewMail {
    /// To whom.
    pub to: EntityId,
    /// Sending the same id to the same entity again is answered, not repeated.
    pub id: MailId,
    /// What it is about; the machine knows the word.
    pub kind: Cow<'static, str>,
    /// What it says.
    pub body: Body,
}

/// Mail as it lies in the entity's box.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mail {
    /// Its place in the box, dense from 1.
    pub seq: u64,
    /// See [`NewMail::id`].
    pub id: MailId,
    /// See [`NewMail::kind`].
    pub kind: String,
    /// See [`NewMail::body`].
    pub body: Body,
    /// When it arrived.
    pub at: Timestamp,
}

/// What became of a mail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum MailAnswer {
    /// It lies in the box, durable.
    Accepted {
        /// Its place.
        seq: u64,
        /// Who holds the entity and is worth a ring; without a holder the due loop is.
        holder: Option<SessionId>,
    },
    /// It was there already, under the same id.
    Duplicate,
    /// The entity is over.
    Final {
        /// Its final status.
        status: &'static str,
    },
    /// No such entity.
    Unknown,
    /// It can never be accepted as it is: a named limit was passed.
    Refused(Refusal),
}

impl NewMail {
    /// Whether it keeps the limits: mail comes from anybody.
    pub fn within_limits(&self) -> Result<(), Refusal> {
        within("mail id in bytes", self.id.0.len(), limits::KEY_BYTES_MAX)?;
        within("mail kind in bytes", self.kind.len(), limits::NAME_BYTES_MAX)?;
        without_nul("mail id", &self.id.0)?;
        without_nul("mail kind", &self.kind)?;
        within_body("mail body in bytes", &self.body)
    }
}

/// Judges one mail on the locked head, after the entity's own commit. On `Accepted` the head's
/// counter is raised and, without a holder, `due` set to now, so that the due loop decides.
/// `finality` is the protection of that name.
pub fn judge_mail(
    head: Option<&mut Head>,
    duplicate: bool,
    finality: bool,
    now: Timestamp,
) -> MailAnswer {
    match head {
        None => MailAnswer::Unknown,
        // Before the final check: a repetition must get the answer of the first time.
        Some(_) if duplicate => MailAnswer::Duplicate,
        Some(head) if finality && head.class() == Class::Final => {
            MailAnswer::Final { status: head.status.name() }
        }
        Some(head) => {
            head.mail_count += 1;
            if head.holder.is_none() {
                head.due = Some(head.due.map_or(now, |due| due.min(now)));
            }
            MailAnswer::Accepted { seq: head.mail_count, holder: head.holder }
        }
    }
}
