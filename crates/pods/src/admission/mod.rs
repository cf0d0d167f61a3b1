//! Which tasks, pods and budgets may be created: the rules that the judge asks ([`tenure_kernel::admission`]).
//!
//! The right to make pods is the executor's, and the cluster cannot see for which tenant the executor asks. So the tenant's
//! bounds are checked before a task is written: the namespace ([`Namespaces`]) and the template ([`TemplatePolicy`]).
//! Both depend on the tenant of the task alone, and not on the key of the caller.

mod inspect;
pub mod policy;

pub use policy::{Grant, TemplatePolicy};

use crate::{
    budget::{Budget, budget_id},
    execute::make,
    namespaces::{NOBODYS, Namespaces},
    pod::{NewPod, Pod, PodEvent},
    report::{task_of, task_of_label},
    task::{NewTask, Task, TaskEvent, model::tended_id},
};
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tenure_kernel::{
    admission::{Admission, Admissions, Newborn, UnnamedId},
    ids::EntityId,
    machine::Machine,
    stream::NewEvent,
};

/// The bounds of each tenant: where its pods may be, and what they may be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodBounds {
    /// Where.
    pub namespaces: Namespaces,
    /// What.
    pub templates: TemplatePolicy,
}

/// What a task may not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forbidden {
    /// The field of the order, such as `namespace` or `template.spec.hostNetwork`.
    pub field: String,
    /// What is not allowed.
    pub why: String,
    /// The setting by which an operator allows it.
    pub setting: &'static str,
}

impl std::fmt::Display for Forbidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Forbidden { field, why, setting } = self;
        write!(f, "{field}: {why}; an operator can allow it with {setting}")
    }
}

impl PodBounds {
    /// The namespace of a task of this tenant that names none: the first of its own where it may not have the executor's.
    pub fn default_namespace(&self, tenant: &str) -> Option<&str> {
        self.namespaces.default_of(tenant)
    }

    /// What is wrong with a task of this tenant, as far as its bounds go.
    pub fn problem(&self, tenant: &str, task: &NewTask) -> Option<Forbidden> {
        // Pods of a task without a template are made by others, with rights of their own.
        if task.template.is_null() {
            return None;
        }
        if let Some(why) = self.namespaces.problem(tenant, make::namespace_asked(task)) {
            let field = "namespace".to_owned();
            return Some(Forbidden { field, why, setting: "pods.namespaces" });
        }
        self.templates.problem(tenant, &task.template)
    }
}

/// Adds the rules of this crate's kinds.
pub fn admissions(admissions: Admissions, bounds: PodBounds) -> Admissions {
    admissions
        .with(Task::TABLE.kind, Arc::new(TaskRule(bounds)))
        .with(Pod::TABLE.kind, Arc::new(PodRule))
        .with(Budget::TABLE.kind, Arc::new(BudgetRule))
}

/// A task is within its tenant's bounds, says whose it is, and reports to its creator alone.
struct TaskRule(PodBounds);

impl TaskRule {
    /// A task that is found by its label has the id that follows from the label and its tenant: or one tenant could take the
    /// place of another's task.
    fn labelled(&self, newborn: &Newborn<'_>, label: Option<&str>) -> Result<(), String> {
        let Some(label) = label else { return UnnamedId.admit(newborn) };
        // A label can be written as any id: also as one that follows from the name of another tenant's agent, budget or task.
        let is_raw = newborn.tenant == NOBODYS
            && newborn.id == task_of_label(label)
            && (label.parse::<EntityId>().is_err() || !newborn.id.is_named());
        match is_raw || newborn.id == task_of(newborn.tenant, label) {
            true => Ok(()),
            false => Err(format!("label: {label:?} of this tenant has another id")),
        }
    }
}

impl Admission for TaskRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        let new = match first::<TaskEvent>(newborn.events)? {
            TaskEvent::TaskCreated(new) => new,
            // Cancelled before it was created: it never has a pod.
            TaskEvent::TaskCanceled { .. } => return UnnamedId.admit(newborn),
            _ => return Err("the first event of a task is task_created".to_owned()),
        };
        self.labelled(newborn, new.label.as_deref())?;
        if new.tenant_id != newborn.tenant {
            return Err(format!("tenant_id: {:?} is not the tenant of this task", new.tenant_id));
        }
        if let Some(asker) = new.asker.as_ref().filter(|a| Some(a.to) != newborn.creator) {
            return Err(format!("asker: {} did not create this task", asker.to));
        }
        self.0.problem(newborn.tenant, &new).map_or(Ok(()), |forbidden| Err(forbidden.to_string()))
    }
}

/// A pod is an attempt of the task that created it.
struct PodRule;

impl Admission for PodRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        let PodEvent::PodOrdered(new) = first::<PodEvent>(newborn.events)? else {
            return Err("the first event of a pod is pod_ordered".to_owned());
        };
        let NewPod { task, attempt, tenant_id, .. } = *new;
        let fits = newborn.creator == Some(task)
            && newborn.id == tended_id(task, attempt)
            && tenant_id == newborn.tenant;
        if fits { Ok(()) } else { Err("a pod is created by its task, for one attempt".to_owned()) }
    }
}

/// A budget has the id of its tenant: or one tenant could create another's.
struct BudgetRule;

impl Admission for BudgetRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        match newborn.id == budget_id(newborn.tenant) {
            true => Ok(()),
            false => Err("a budget has the id of its tenant".to_owned()),
        }
    }
}

fn first<E: DeserializeOwned>(events: &[NewEvent]) -> Result<E, String> {
    let event = events.first().ok_or("there is no first event")?;
    let bytes = event.body.inline().ok_or("its first event is too large to be checked")?;
    tenure_kernel::stored::from_slice(bytes).map_err(|e| format!("{}: {e}", event.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::time::Timestamp;

    #[test]
    fn a_label_is_no_way_to_an_id_that_follows_from_a_name() {
        let rule = TaskRule(PodBounds::default());
        let admits = |tenant: &str, id: EntityId, label: &str| {
            let newborn = Newborn { id, tenant, creator: None, state: &[], events: &[] };
            rule.labelled(&newborn, Some(label)).is_ok()
        };
        let own = EntityId::derived(EntityId::fixed(1, 1), "x", Timestamp::from_micros(5_000_000));
        assert!(admits(NOBODYS, own, &own.to_string()) && admits(NOBODYS, task_of_label("t"), "t"));
        assert!(!admits("acme", own, &own.to_string()));
        for named in [budget_id("acme"), task_of("acme", "t"), task_of_label("t")] {
            assert!(!admits(NOBODYS, named, &named.to_string()), "{named}");
        }
        assert!(admits("acme", task_of("acme", "t"), "t"));
    }
}
