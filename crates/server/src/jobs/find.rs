//! Which job, whose, and who asks.

use crate::{App, Caller, Problem, keys::Scope};
use tenure_jobs::Job;
use tenure_kernel::{head::Head, ids::EntityId, machine::Machine as _};

/// A job that is not there, or not the caller's: both look the same, or the difference would tell.
pub(super) fn absent(id: EntityId) -> Problem {
    Problem::not_found(format!("job {id}")).field("id")
}

/// The same of a batch.
pub(super) fn absent_batch(id: EntityId) -> Problem {
    Problem::not_found(format!("batch {id}")).field("id")
}

/// The head of a job that the caller may look at.
pub(super) async fn readable(app: &App, caller: &Caller, id: EntityId) -> Result<Head, Problem> {
    caller.need(Scope::Read)?;
    head(app, caller, id).await
}

/// The head of a job that the caller may change.
pub(super) async fn writable(app: &App, caller: &Caller, id: EntityId) -> Result<Head, Problem> {
    caller.need(Scope::Write)?;
    head(app, caller, id).await
}

async fn head(app: &App, caller: &Caller, id: EntityId) -> Result<Head, Problem> {
    let head = app.pipeline().store().head(id).await?;
    let theirs = |h: &Head| h.kind() == Job::TABLE.kind && caller.sees(&h.tenant);
    head.filter(theirs).ok_or_else(|| absent(id))
}

/// Who asks, for the history. What somebody calls themselves is noted, and so is the key they showed: a name is
/// a claim, a key is not.
pub(crate) fn who(caller: &Caller, claimed: Option<String>) -> String {
    match (claimed.filter(|name| !name.trim().is_empty()), caller.key) {
        (Some(name), Some(key)) => format!("{name} (key {key})"),
        (Some(name), None) => name,
        (None, Some(key)) => format!("key {key}"),
        (None, None) => "somebody on this machine".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_noted_together_with_the_key_that_was_shown() {
        let local = Caller::local();
        assert_eq!(who(&local, None), "somebody on this machine");
        assert_eq!(who(&local, Some("ada".into())), "ada");
        assert_eq!(who(&local, Some("  ".into())), "somebody on this machine");
        let key = EntityId::fixed(9, 1);
        let keyed = Caller { key: Some(key), ..local };
        assert_eq!(who(&keyed, Some("ada".into())), format!("ada (key {key})"));
        assert_eq!(who(&keyed, None), format!("key {key}"));
    }
}
