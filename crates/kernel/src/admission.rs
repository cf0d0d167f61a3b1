//! Which entities may come into being, beyond what a table says: one rule per kind, asked by the judge for every new entity.
//!
//! Entities are created by the API, by commits of workers, by messages of other entities, by rows of the intake, by
//! schedules and by plans. All of these end in a commit that expects no head ([`crate::commit::Expect::Absent`]), and
//! the judge is the only place that decides a commit. So a rule that stands here holds for every caller.
//!
//! A rule decides from the new entity alone: it may depend on settings, and not on other entities or on the time.

use crate::{ids::EntityId, stream::NewEvent};
use std::{collections::BTreeMap, fmt, sync::Arc};

/// An entity that is about to be created.
#[derive(Clone, Copy, Debug)]
pub struct Newborn<'a> {
    /// Its id.
    pub id: EntityId,
    /// The tenant that it will belong to.
    pub tenant: &'a str,
    /// The entity whose message creates it; `None` for one that is committed directly.
    pub creator: Option<EntityId>,
    /// What its head will keep, as its machine worked it out; a worker that commits one directly could say anything.
    pub state: &'a [u8],
    /// Its first events. Large bodies are blobs by now: a rule that needs to read one refuses it.
    pub events: &'a [NewEvent],
}

/// The rule of one kind.
pub trait Admission: Send + Sync {
    /// Refuses what may not be created, with the reason for the person who asked for it.
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String>;
}

/// The rule of kinds whose entities are not found by a name: their ids are not those that follow from names
/// ([`EntityId::is_named`]). Who creates one chooses its id, and could take the place of another tenant's agent, budget, gate
/// or task.
pub struct UnnamedId;

impl Admission for UnnamedId {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        match newborn.id.is_named() {
            true => {
                Err(format!("id: {} belongs to an entity that is found by its name", newborn.id))
            }
            false => Ok(()),
        }
    }
}

/// The rules of a process, by kind. A kind without one is bound by its table alone.
#[derive(Clone, Default)]
pub struct Admissions(BTreeMap<&'static str, Arc<dyn Admission>>);

impl Admissions {
    /// Adds the rule of a kind; a second one replaces the first.
    pub fn with(mut self, kind: &'static str, rule: Arc<dyn Admission>) -> Self {
        self.0.insert(kind, rule);
        self
    }

    /// Asks the rule of this kind.
    pub fn admit(&self, kind: &str, newborn: &Newborn<'_>) -> Result<(), String> {
        self.0.get(kind).map_or(Ok(()), |rule| rule.admit(newborn))
    }
}

impl fmt::Debug for Admissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        commit::{Birth, Commit, CommitAnswer, Expect, Refusal},
        ids::CommitId,
        judge::Judge,
        sessions::{LANE, lane_id},
        stream::Body,
        table::Tables,
        time::Timestamp,
    };

    /// Only the first lane, only for nobody, and only by a message of the second.
    struct FirstByTheSecond;

    impl Admission for FirstByTheSecond {
        fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
            let fits = newborn.id == lane_id(0)
                && newborn.tenant.is_empty()
                && newborn.creator == Some(lane_id(1))
                && newborn.events.len() == 1;
            if fits { Ok(()) } else { Err("not this one".to_owned()) }
        }
    }

    #[test]
    fn the_judge_asks_the_rule_of_the_kind_for_every_new_entity() {
        let mut tables = Tables::default();
        tables.insert(&LANE);
        let open = Judge::new(tables);
        let rule = Arc::new(FirstByTheSecond);
        let bound = open.clone().admitting(Admissions::default().with(LANE.kind, rule));
        let other = Admissions::default().with("other", Arc::new(FirstByTheSecond));
        let birth = |lane, tenant: &str| {
            let birth =
                Birth { kind: LANE.kind, tenant: tenant.into(), queue: String::new(), priority: 0 };
            let event = NewEvent::new("lane_created", Body::Inline(b"{}".to_vec()));
            let (id, expect) = (CommitId::new(1, 1), Expect::Absent(birth));
            Commit::new(id, lane_id(lane), expect, vec![event])
        };
        let now = Timestamp::from_micros(1);
        let admits = |judge: &Judge, creator, commit: &Commit| match judge
            .commit_of(creator, None, commit, now)
        {
            Ok(_) => true,
            Err(CommitAnswer::Refused(Refusal::NotAdmitted(why))) if why == "not this one" => false,
            Err(answer) => panic!("{answer:?}"),
        };
        assert!(admits(&open, None, &birth(0, "")));
        assert!(admits(&open.clone().admitting(other), None, &birth(0, "")), "another kind's rule");
        assert!(admits(&bound, Some(lane_id(1)), &birth(0, "")));
        assert!(!admits(&bound, None, &birth(0, "")));
        assert!(!admits(&bound, Some(lane_id(2)), &birth(0, "")));
        assert!(!admits(&bound, Some(lane_id(1)), &birth(2, "")));
        assert!(!admits(&bound, Some(lane_id(1)), &birth(0, "acme")));
        // What exists is not asked about again.
        let head = open.commit(None, &birth(2, ""), now).unwrap().head;
        let exists = bound.commit(Some(&head), &birth(2, ""), now).unwrap_err();
        assert!(matches!(exists, CommitAnswer::Exists { .. }), "{exists:?}");
    }
}
