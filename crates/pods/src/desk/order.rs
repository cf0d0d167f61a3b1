//! Ordering a task. Ordered again under the same key with the same content it is the same task.

use super::{Defaults, Desk, DeskError, label_beside, template, word};
use crate::{
    admission::Forbidden,
    execute::make,
    task::{
        NewTask, RetryPolicy, Task, TaskState,
        model::{Cleanup, OnLost, Times, limits},
    },
    view::stream::first_event,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use std::time::Duration;
use tenure_engine::birth::random;
use tenure_kernel::{
    commit::{Birth, CommitAnswer, Expect, Refusal, UniqueKey},
    error::StoreError,
    ids::EntityId,
    machine::{Cx, Input, Machine as _, draft},
    stream::{Body, Hash},
    time::Timestamp,
};

/// A task that somebody wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Order {
    /// Whose.
    pub tenant: String,
    /// For people, and a part of the pod's name; that of the template without one.
    pub name: String,
    /// What the task belongs to.
    pub workflow_id: String,
    /// The text by which others know it, where that is not to be its id.
    pub task_id: Option<String>,
    /// Its pod: `metadata` and `spec`. Without one pods are made elsewhere and only watched.
    pub template: Value,
    /// Where its pods are made; that of the template without one.
    pub namespace: Option<String>,
    /// Which executors take it: the name of their cluster.
    pub cluster: String,
    /// Which container is the task's.
    pub container: Option<String>,
    /// What differs from the server's retry policy: an object.
    pub retry: Value,
    /// What differs from the server's times: an object.
    pub times: Value,
    /// What becomes of its pods; as the server's settings say without it.
    pub cleanup: Option<Cleanup>,
    /// What to do about a pod that may still run.
    pub on_lost: OnLost,
    /// How long an attempt may run.
    pub timeout: Option<Duration>,
    /// It ends by then.
    pub must_end_in: Option<Duration>,
    /// Higher is sooner.
    pub priority: i16,
    /// Ordered twice under one key it is one task.
    pub key: Option<String>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// The task.
    pub task: EntityId,
    /// It was ordered before.
    pub existed: bool,
}

impl Desk {
    /// Orders a task.
    pub async fn order(&self, order: Order) -> Result<Ordered, DeskError> {
        let mut new = wish(&self.defaults, &order)?;
        let at = self.pipeline.store().now().await?;
        let id = match &order.task_id {
            Some(label) => {
                check_label(label)?;
                let id = self.id_for(&order.tenant, label).await?;
                new.label = label_beside(id, label);
                id
            }
            None => EntityId::new(at, random(&self.pipeline)),
        };
        // A task that brings its own id has that as its key.
        let own = order.task_id.as_ref().map(|l| format!("id/{l}"));
        let key = order.key.as_ref().map(|k| format!("key/{k}")).or(own);
        let key = key.map(|k| unique(&order, &k));
        let (tenant, existing) = (order.tenant, order.task_id.is_some().then_some(id));
        match self.give_birth(id, &tenant, at, &new, key).await? {
            Birthed::Born => Ok(Ordered { task: id, existed: false }),
            Birthed::Same(task) => Ok(Ordered { task, existed: true }),
            Birthed::Other(task) => {
                // Somebody else's is not told apart from nobody's, but the id is taken all the same.
                if existing == Some(task) && self.task(Some(&tenant), task).await.is_err() {
                    let fix = "leave it out, or choose another";
                    return Err(DeskError::bad("task_id", "this id is taken", fix));
                }
                // The id is looked at before the key: what it was ordered with is in its history.
                let was = first_event(self.pipeline.store(), task).await?;
                match existing == Some(task) && was.as_ref() == Some(&new) {
                    true => Ok(Ordered { task, existed: true }),
                    false => Err(DeskError::OtherInput(task)),
                }
            }
        }
    }

    pub(super) async fn give_birth(
        &self,
        id: EntityId,
        tenant: &str,
        at: Timestamp,
        new: &NewTask,
        key: Option<UniqueKey>,
    ) -> Result<Birthed, DeskError> {
        let refused = |e: &dyn std::fmt::Display| StoreError::Refused(e.to_string());
        let (body, cx) =
            (Body::json(new), Cx { id, now: at, version: 0, status: None, changed_at: None });
        let input = Input::Create(&body);
        let mut decision = Task::decide(None, &input, &cx).map_err(|e| refused(&e))?;
        decision.keys.extend(key);
        let drafted = draft::<Task>(None, TaskState::default(), decision, &input);
        let drafted = drafted.map_err(|e| refused(&e))?;
        let drafted = drafted.ok_or_else(|| refused(&"a task without events"))?;
        let birth = Birth {
            kind: Task::TABLE.kind,
            tenant: tenant.to_owned(),
            queue: String::new(),
            priority: 0,
        };
        let commit = drafted.into_commit(self.pipeline.commit_id(), id, Expect::Absent(birth));
        match self.pipeline.commit(commit).await? {
            CommitAnswer::Committed(_) => Ok(Birthed::Born),
            CommitAnswer::Exists { entity, same: true } => Ok(Birthed::Same(entity)),
            CommitAnswer::Exists { entity, same: false } => Ok(Birthed::Other(entity)),
            CommitAnswer::Refused(Refusal::NotAdmitted(why)) => {
                let fix =
                    "order a new task within the bounds of its tenant, or ask an operator for more";
                Err(DeskError::NotAllowed { field: "template".to_owned(), why, fix })
            }
            CommitAnswer::Refused(why) => Err(StoreError::Refused(why.to_string()).into()),
            other => Err(StoreError::Refused(format!("the store answered {other:?}")).into()),
        }
    }
}

/// What became of a birth.
pub(super) enum Birthed {
    /// It is there now.
    Born,
    /// It was there, ordered with the same.
    Same(EntityId),
    /// It was there, ordered with something else.
    Other(EntityId),
}

/// What is wrong with a label that somebody outside chose. The lowest ids belong to what exists once per store or tenant
/// (lanes, agents, budgets): a label must not take their place.
pub(super) fn check_label(label: &str) -> Result<(), DeskError> {
    word("task_id", label, limits::NAME_BYTES_MAX)?;
    let parsed: Option<EntityId> = label.parse().ok();
    let reserved = parsed.is_some_and(|id| id.as_bytes()[..6] == [0; 6]);
    match label.is_empty() || reserved {
        true => Err(DeskError::bad(
            "task_id",
            format!("task_id = {label:?} can not be the id of a task"),
            "give a text of your own, or a random or time-ordered uuid",
        )),
        false => Ok(()),
    }
}

/// What the first event will say; everything that can be known to be wrong is refused here.
fn wish(defaults: &Defaults, order: &Order) -> Result<NewTask, DeskError> {
    let Order { name, workflow_id, .. } = order;
    word("name", name, limits::NAME_BYTES_MAX)?;
    word("workflow_id", workflow_id, limits::NAME_BYTES_MAX)?;
    word("cluster", &order.cluster, 63)?;
    let external = order.template.is_null();
    let said = match external {
        true => template::Said::default(),
        false => {
            for (field, value) in [
                ("workflow_id", workflow_id.as_str()),
                ("tenant", &order.tenant),
                ("task_id", order.task_id.as_deref().unwrap_or("")),
            ] {
                labelled(field, value)?;
            }
            template::check(&order.template, order.container.as_deref())?
        }
    };
    if let Some(named) = order.namespace.as_deref().filter(|n| !make::is_dns_label(n)) {
        let fix = "give the name of a namespace as Kubernetes has it, or leave it out";
        return Err(DeskError::bad("namespace", make::no_namespace(named), fix));
    }
    if let (Some(a), Some(b)) = (&order.namespace, &said.namespace)
        && a != b
    {
        let why = format!("namespace is {a:?}, and the template says {b:?}");
        return Err(DeskError::bad("namespace", why, "leave one of them out"));
    }
    let namespace = order.namespace.clone().or(said.namespace);
    let usual = || defaults.bounds.default_namespace(&order.tenant).map(str::to_owned);
    let namespace = if external { namespace } else { namespace.or_else(usual) };
    let retry: RetryPolicy = overlay("retry", &defaults.retry, &order.retry)?;
    if let Some(problem) = retry.problem() {
        return Err(DeskError::bad("retry", problem, "correct it, or leave it out"));
    }
    let times: Times = overlay("times", &defaults.times, &order.times)?;
    if order.timeout.is_some_and(|t| t.is_zero()) {
        let why = "an attempt that may run for 0 seconds ends before it begins";
        return Err(DeskError::bad("timeout_seconds", why, "leave it out for no limit"));
    }
    let ms = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let new = NewTask {
        name: match name.is_empty() {
            true => said.name.unwrap_or_default().trim_end_matches('-').to_owned(),
            false => name.clone(),
        },
        workflow_id: workflow_id.clone(),
        tenant_id: order.tenant.clone(),
        label: None,
        template: order.template.clone(),
        namespace,
        cluster: order.cluster.clone(),
        container: order.container.clone(),
        retry,
        budget: defaults.budget,
        cleanup: order.cleanup.unwrap_or(defaults.cleanup),
        on_lost: order.on_lost,
        times,
        timeout_ms: order.timeout.map(ms),
        must_end_in_ms: ms(order.must_end_in.unwrap_or(defaults.must_end_in)),
        priority: order.priority,
        asker: None,
        retry_of: None,
    };
    // The judge asks the same when the task is written; here the answer names the field.
    match defaults.bounds.problem(&order.tenant, &new) {
        Some(Forbidden { field, why, .. }) => {
            let fix = "leave it out, or ask an operator for it (pods.namespaces, pods.grants)";
            Err(DeskError::NotAllowed { field, why, fix })
        }
        None => Ok(new),
    }
}

fn labelled(field: &'static str, value: &str) -> Result<(), DeskError> {
    match template::is_label_value(value) {
        true => Ok(()),
        false => Err(DeskError::bad(
            field,
            format!("{field} = {value:?} can not stand on a pod as a label"),
            "give at most 63 letters, digits, -, _ and ., with a letter or digit at both ends",
        )),
    }
}

/// What was said laid over what holds otherwise; unknown names are refused.
fn overlay<T: Serialize + DeserializeOwned>(
    field: &'static str,
    base: &T,
    over: &Value,
) -> Result<T, DeskError> {
    let fix = "give an object with some of the names that docs/tasks.md lists";
    let mut whole = match serde_json::to_value(base) {
        Ok(Value::Object(whole)) => whole,
        _ => Map::new(),
    };
    match over {
        Value::Null => {}
        Value::Object(over) => whole.extend(over.clone()),
        other => {
            let why = format!("{field} is {other}, and not an object");
            return Err(DeskError::bad(field, why, fix));
        }
    }
    serde_json::from_value(Value::Object(whole))
        .map_err(|e| DeskError::bad(field, format!("{field}: {e}"), fix))
}

/// What is compared is what was said, not what the settings added to it.
fn unique(order: &Order, key: &str) -> UniqueKey {
    let ms = |d: Option<Duration>| d.map(|d| d.as_millis().to_string());
    let said = json!({
        "name": order.name,
        "workflow_id": order.workflow_id,
        "task_id": order.task_id,
        "template": order.template,
        "namespace": order.namespace,
        "cluster": order.cluster,
        "container": order.container,
        "retry": order.retry,
        "times": order.times,
        "cleanup": order.cleanup,
        "on_lost": order.on_lost,
        "timeout": ms(order.timeout),
        "must_end_in": ms(order.must_end_in),
        "priority": order.priority,
    });
    UniqueKey { key: scoped(&order.tenant, key), digest: Hash::of(canonical(&said).as_bytes()) }
}

/// A unique key within a tenant.
pub(super) fn scoped(tenant: &str, key: &str) -> String {
    format!("task/{}/{tenant}/{key}", tenant.len())
}

/// The same text for the same value, whatever order its names came in.
fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut names: Vec<&String> = map.keys().collect();
            names.sort_unstable();
            let parts = names.iter().map(|n| {
                let value = map.get(*n).map_or_else(String::new, canonical);
                format!("{}:{value}", Value::String((*n).clone()))
            });
            format!("{{{}}}", parts.collect::<Vec<_>>().join(","))
        }
        Value::Array(all) => {
            format!("[{}]", all.iter().map(canonical).collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let pod = json!({ "spec": { "containers": [{ "name": "main", "image": "i" }] } });
        Order { tenant: "acme".into(), template: pod, ..Order::default() }
    }

    fn field(order: &Order) -> String {
        match wish(&Defaults::default(), order).unwrap_err() {
            DeskError::Bad { field, .. } => field,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn what_an_order_says_is_laid_over_the_settings() {
        let mut order = order();
        order.retry = json!({ "app": 7, "backoff_ms": 5 });
        order.times = json!({ "fence_ms": 9 });
        let defaults = Defaults {
            retry: RetryPolicy { oom: 4, ..RetryPolicy::default() },
            ..Defaults::default()
        };
        let new = wish(&defaults, &order).unwrap();
        assert_eq!((new.retry.app, new.retry.oom, new.retry.backoff_ms), (7, 4, 5));
        assert_eq!((new.times.fence_ms, new.times.stop_ms), (9, Times::default().stop_ms));
        assert_eq!(new.must_end_in_ms, 86_400_000);
    }

    #[test]
    fn what_can_not_be_is_refused_with_its_field() {
        let changed = |change: fn(&mut Order)| {
            let mut order = order();
            change(&mut order);
            field(&order)
        };
        assert_eq!(changed(|o| o.retry = json!({ "apps": 1 })), "retry");
        assert_eq!(changed(|o| o.retry = json!(3)), "retry");
        assert_eq!(changed(|o| o.retry = json!({ "factor_percent": 50 })), "retry");
        assert_eq!(changed(|o| o.times = json!({ "fence_ms": "soon" })), "times");
        assert_eq!(changed(|o| o.workflow_id = "a b".into()), "workflow_id");
        assert_eq!(changed(|o| o.tenant = "a/b".into()), "tenant");
        assert_eq!(changed(|o| o.namespace = Some("my team".into())), "namespace");
        assert_eq!(changed(|o| o.namespace = Some("a/b".into())), "namespace");
        assert_eq!(changed(|o| o.timeout = Some(Duration::ZERO)), "timeout_seconds");
        assert_eq!(changed(|o| o.name = "a\nb".into()), "name");
        assert_eq!(changed(|o| o.template = json!({})), "template.spec.containers");
    }

    #[test]
    fn a_tenants_key_has_its_tenants_namespaces_and_no_other() {
        let namespaces = crate::namespaces::Namespaces::read("jobs", "acme=ml").unwrap();
        let bounds = crate::admission::PodBounds { namespaces, ..Default::default() };
        let defaults = Defaults { bounds, ..Defaults::default() };
        let asked = |named: Option<&str>, within: Option<&str>| {
            let mut order = Order { namespace: named.map(str::to_owned), ..order() };
            if let Some(within) = within {
                order.template["metadata"] = json!({ "namespace": within });
            }
            wish(&defaults, &order)
        };
        let refused = |asked: Result<NewTask, DeskError>| matches!(asked, Err(DeskError::NotAllowed { field, .. }) if field == "namespace");
        assert!(asked(Some("ml"), None).is_ok() && asked(None, Some("ml")).is_ok());
        assert_eq!(asked(None, None).unwrap().namespace.as_deref(), Some("ml"));
        assert!(refused(asked(Some("kube-system"), None)) && refused(asked(Some("jobs"), None)));
        assert!(refused(asked(None, Some("kube-system"))));
    }

    #[test]
    fn a_template_beyond_its_tenants_grants_is_refused_with_its_field() {
        let mut order = order();
        order.template["spec"]["serviceAccountName"] = "tenure-executor".into();
        let field = match wish(&Defaults::default(), &order) {
            Err(DeskError::NotAllowed { field, why, .. }) if why.contains("service-accounts") => {
                field
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(field, "template.spec.serviceAccountName");
        let templates = crate::admission::TemplatePolicy::read("acme=service-accounts").unwrap();
        let bounds = crate::admission::PodBounds { templates, ..Default::default() };
        assert!(wish(&Defaults { bounds, ..Defaults::default() }, &order).is_ok());
    }

    #[test]
    fn an_id_of_ones_own_never_takes_the_place_of_something_else() {
        assert!(check_label("wf-7.step-2").is_ok());
        assert!(check_label("0190b5e0-1234-7abc-8def-001122334455").is_ok());
        assert!(check_label(&crate::budget::budget_id("acme").to_string()).is_err());
        assert!(check_label(&EntityId::fixed(1, 1).to_string()).is_err());
        assert!(check_label("").is_err());
    }

    #[test]
    fn the_order_of_names_is_no_content() {
        let (a, b) = (json!({ "x": [1, { "b": 2, "a": "\"" }], "y": null }), "");
        assert_eq!(
            canonical(&a),
            "{\"x\":[1,{\"a\":\"\\\"\",\"b\":2}],\"y\":null}{}".replace("{}", b)
        );
    }
}
