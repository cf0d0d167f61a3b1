//! The pod of an attempt, from the task's template. Pure.
//!
//! What is ours wins over what the template says: name, labels, owner, `restartPolicy` (a retry is the task's business, and
//! a container that is started again in place would be a second attempt that nobody counted), and the variables by which
//! a program knows who it is. Everything else is left as it is.

use super::live::MANAGED_BY;
use crate::{
    pod::{Begun, NewPod},
    report::labels,
    task::NewTask,
    verdict::moment,
};
use k8s_openapi::{
    api::core::v1::{Container, EnvVar, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
};
use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};
use tenure_kernel::{ids::EntityId, time::Timestamp};

/// The annotation that says whose pod it is: the entity that stands for it. A pod of the same name without it is
/// somebody else's.
pub const OWNER: &str = "flowforge.io/owner";

/// The annotation that says until when somebody may be responsible for the pod: by then the entity that stands for it is over,
/// whatever happens. And of which pod it says so, because annotations are copied.
pub const OVER_BY: &str = "flowforge.io/over-by";

/// In the place of a template: why there is none, for whoever is told how the task ended.
pub const REFUSED: &str = "refused";

/// The name of a container that has none.
pub const MAIN: &str = "main";

/// Length of a label's value.
const LABEL_BYTES_MAX: usize = 63;

/// The longest `activeDeadlineSeconds` that Kubernetes takes.
const DEADLINE_SECONDS_MAX: i64 = i32::MAX as i64;

/// What a pod is made for.
#[derive(Clone, Copy, Debug)]
pub struct Order<'a> {
    /// The entity that stands for it.
    pub id: EntityId,
    /// What was asked for.
    pub new: &'a NewPod,
    /// The task.
    pub task: &'a NewTask,
    /// Where, and under which name.
    pub at: &'a Begun,
    /// The epoch under which it is made.
    pub epoch: u64,
    /// How long its task still lasts at most.
    pub left: Option<Duration>,
    /// When the entity that stands for it is over at the latest.
    pub over_by: Option<Timestamp>,
}

/// How much later than its task a pod is ended by its node. Everybody else comes first: the timers of the task, the executor, and
/// the time that containers have to end.
const SLACK: Duration = Duration::from_secs(900);

/// The namespace that a task asks for, itself or in its template. `None`: the executor's default.
pub fn namespace_asked(task: &NewTask) -> Option<&str> {
    let within = || task.template["metadata"]["namespace"].as_str();
    task.namespace.as_deref().or_else(within).filter(|n| !n.is_empty())
}

/// Where the pods of a task belong. The task alone says so: its bounds were checked when it was created.
pub fn namespace_of(task: &NewTask, default: &str) -> String {
    namespace_asked(task).unwrap_or(default).to_owned()
}

/// What is wrong with a template, as far as that can be said without a cluster.
pub fn check(template: &Value) -> Result<Pod, String> {
    if let Some(why) = template.get(REFUSED).and_then(Value::as_str) {
        return Err(why.to_owned());
    }
    let Some(members) = template.as_object() else {
        return Err("template: it has to be a pod: an object with `spec`".into());
    };
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    if let Some(other) = members.keys().find(|k| !known.contains(&k.as_str())) {
        return Err(format!(
            "template.{other}: a pod has no such field; it has `metadata` and `spec`"
        ));
    }
    if let Some(kind) = members.get("kind").filter(|k| k.as_str() != Some("Pod")) {
        return Err(format!("template.kind: {kind} can not be run here; it has to be \"Pod\""));
    }
    let mut whole = template.clone();
    if let Some(members) = whole.as_object_mut() {
        members.remove("status");
        members.insert("apiVersion".into(), "v1".into());
        members.insert("kind".into(), "Pod".into());
    }
    named(&mut whole);
    let pod: Pod = serde_json::from_value(whole.clone())
        .map_err(|e| format!("template: it can not be read as a pod: {e}"))?;
    let kept = serde_json::to_value(&pod).unwrap_or_default();
    if let Some(path) = dropped(&whole, &kept, "template") {
        return Err(format!("{path}: Kubernetes knows no such field"));
    }
    if let Some(namespace) = pod.metadata.namespace.as_deref().filter(|n| !is_dns_label(n)) {
        return Err(format!("template.metadata.namespace: {}", no_namespace(namespace)));
    }
    let spec = pod.spec.as_ref().ok_or("template.spec: it is missing")?;
    if spec.containers.is_empty() {
        return Err("template.spec.containers: there has to be one".into());
    }
    for (n, container) in spec.containers.iter().enumerate() {
        if container.name.is_empty() {
            return Err(format!("template.spec.containers[{n}].name: it is missing"));
        }
        if container.image.as_deref().unwrap_or_default().is_empty() {
            return Err(format!("template.spec.containers[{n}].image: it is missing"));
        }
        if spec.containers[..n].iter().any(|c| c.name == container.name) {
            let name = &container.name;
            return Err(format!("template.spec.containers[{n}].name: {name:?} is there twice"));
        }
    }
    Ok(pod)
}

/// The containers of a template that may be anything.
pub fn containers_of(template: &mut Value) -> Option<&mut Vec<Value>> {
    template.get_mut("spec")?.get_mut("containers")?.as_array_mut()
}

/// The only container is the main one, whatever it is called; where it has no name it gets one.
fn named(template: &mut Value) {
    if let Some([only]) = containers_of(template).map(Vec::as_mut_slice)
        && let Some(container) = only.as_object_mut()
    {
        container.entry("name").or_insert_with(|| MAIN.into());
    }
}

/// The first member that was lost on the way through the types: a word that is written wrong, mostly.
fn dropped(before: &Value, after: &Value, path: &str) -> Option<String> {
    match (before, after) {
        (Value::Object(before), after) => before.iter().find_map(|(name, value)| {
            let path = format!("{path}.{name}");
            match after.get(name) {
                Some(kept) => dropped(value, kept, &path),
                None if is_nothing(value) => None,
                None => Some(path),
            }
        }),
        (Value::Array(before), Value::Array(after)) => before
            .iter()
            .zip(after)
            .enumerate()
            .find_map(|(n, (value, kept))| dropped(value, kept, &format!("{path}[{n}]"))),
        _ => None,
    }
}

/// What a serialiser leaves out.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.values().all(is_nothing),
        _ => false,
    }
}

/// The pod of an order.
pub fn make(order: Order<'_>) -> Result<Pod, String> {
    let Order { id, new, task, at, .. } = order;
    let mut pod = check(&task.template)?;
    let labelled = pod.metadata.labels.get_or_insert_default();
    labelled.extend(labels_of(new)?);
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(OWNER.into(), id.to_string());
    match order.over_by {
        Some(by) => {
            annotations.insert(OVER_BY.into(), format!("{by} {}/{}", at.namespace, at.name))
        }
        None => annotations.remove(OVER_BY),
    };
    // Left over from a pod that the template was copied from.
    annotations.remove(labels::CANCEL);
    annotations.remove(labels::STOPPED);
    annotations.remove(labels::CONTAINER);
    // Whoever else reads the pod has to look at the same container.
    if let Some(main) = &task.container {
        annotations.insert(labels::CONTAINER.into(), main.clone());
    }
    let metadata = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {
        name: Some(at.name.clone()),
        namespace: Some(at.namespace.clone()),
        labels: pod.metadata.labels.take(),
        annotations: pod.metadata.annotations.take(),
        finalizers: pod.metadata.finalizers.take(),
        owner_references: pod.metadata.owner_references.take(),
        ..Default::default()
    };
    pod.metadata = metadata;
    if let Some(spec) = &mut pod.spec {
        spec.restart_policy = Some("Never".into());
        spec.node_name = None;
        // A pod that asks for no account of its own does not get the token of the namespace's default one.
        let named = |name: &Option<String>| name.as_deref().is_some_and(|n| !n.is_empty());
        if !named(&spec.service_account_name) && !named(&spec.service_account) {
            spec.automount_service_account_token.get_or_insert(false);
        }
        // With every server and executor gone, its node still ends it.
        if let Some(left) = order.left {
            let ours = i64::try_from((left + SLACK).as_secs()).unwrap_or(i64::MAX);
            let own = spec.active_deadline_seconds.unwrap_or(i64::MAX);
            spec.active_deadline_seconds = Some(own.min(ours).min(DEADLINE_SECONDS_MAX));
        }
        if let Some(named) = &task.container
            && !spec.containers.iter().any(|c| c.name == *named)
        {
            return Err(format!("container: the template has no container named {named:?}"));
        }
        let own = variables(order);
        spec.containers.iter_mut().for_each(|c| tell(c, &own));
        spec.init_containers.iter_mut().flatten().for_each(|c| tell(c, &own));
    }
    Ok(pod)
}

/// What [`OVER_BY`] says of this pod, if it is said of this one.
pub fn over_by(pod: &Pod) -> Option<Timestamp> {
    let said = pod.metadata.annotations.as_ref()?.get(OVER_BY)?;
    let (by, place) = said.split_once(' ')?;
    let (namespace, name) = place.split_once('/')?;
    let own = pod.metadata.namespace.as_deref() == Some(namespace)
        && pod.metadata.name.as_deref() == Some(name);
    let by: Time = serde_json::from_value(by.into()).ok()?;
    own.then(|| moment(&by)).flatten()
}

/// Whether Kubernetes takes it as the name of a namespace or a container.
pub fn is_dns_label(text: &str) -> bool {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LABEL_BYTES_MAX).contains(&text.len())
        && text.bytes().all(fine)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// What is wrong with the name of a namespace.
pub fn no_namespace(text: &str) -> String {
    format!(
        "{text:?} can not be the name of a namespace: 1 to {LABEL_BYTES_MAX} small letters, digits and -, no - at either end"
    )
}

/// The text by which others know the task of an order.
pub fn label_of(new: &NewPod) -> String {
    new.label.clone().unwrap_or_else(|| new.task.to_string())
}

fn labels_of(new: &NewPod) -> Result<BTreeMap<String, String>, String> {
    let mut all = BTreeMap::new();
    let mut put = |name: &str, what: &str, value: String| match is_label(&value) {
        true => {
            all.insert(name.to_owned(), value);
            Ok(())
        }
        false => Err(format!(
            "{what}: {value:?} can not be a label of a pod: at most {LABEL_BYTES_MAX} letters, digits, -, _ and ., \
             with a letter or digit at both ends"
        )),
    };
    put(labels::WORKLOAD, "workload", "true".into())?;
    put(labels::TASK_ID, "label", label_of(new))?;
    put(labels::WORKFLOW_ID, "workflow_id", new.workflow_id.clone())?;
    put(labels::TENANT_ID, "tenant_id", new.tenant_id.clone())?;
    put(labels::TASK_NAME, "name", as_label(&new.name))?;
    put(labels::ATTEMPT, "attempt", new.attempt.to_string())?;
    put(labels::MANAGED_BY, "managed-by", MANAGED_BY.into())?;
    Ok(all)
}

/// Whether Kubernetes takes it as the value of a label.
pub fn is_label(value: &str) -> bool {
    let end = |c: Option<char>| c.is_none_or(|c| c.is_ascii_alphanumeric());
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    value.len() <= LABEL_BYTES_MAX
        && value.chars().all(inner)
        && end(value.chars().next())
        && end(value.chars().next_back())
}

/// A name is for people, and may say what a label may not.
fn as_label(name: &str) -> String {
    let kept = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let text: String = name.chars().map(kept).take(LABEL_BYTES_MAX).collect();
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric()).to_owned()
}

/// How a program knows who it is.
fn variables(order: Order<'_>) -> Vec<EnvVar> {
    let Order { new, epoch, .. } = order;
    let own = |name: &str, value: String| EnvVar {
        name: name.into(),
        value: Some(value),
        value_from: None,
    };
    vec![
        own("FLOWFORGE_TASK_ID", label_of(new)),
        own("FLOWFORGE_WORKFLOW_ID", new.workflow_id.clone()),
        own("FLOWFORGE_TENANT_ID", new.tenant_id.clone()),
        own("FLOWFORGE_ATTEMPT", new.attempt.to_string()),
        own("FLOWFORGE_FENCE", fence(new.attempt, epoch).to_string()),
    ]
}

/// A number that is higher for every later pod of a task: what a target may compare to turn an older one away.
pub fn fence(attempt: u32, epoch: u64) -> u64 {
    (u64::from(attempt) << 32) | (epoch & 0xffff_ffff)
}

fn tell(container: &mut Container, own: &[EnvVar]) {
    let env = container.env.get_or_insert_default();
    env.retain(|e| own.iter().all(|o| o.name != e.name));
    // First, so that the template's own may refer to them: $(FLOWFORGE_TASK_ID).
    env.splice(0..0, own.iter().cloned());
}

/// Whether a pod that was found is the one of this entity.
pub fn is_ours(pod: &Pod, id: EntityId) -> bool {
    let owner = pod.metadata.annotations.as_ref().and_then(|a| a.get(OWNER));
    owner.is_some_and(|owner| *owner == id.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::pod_name;
    use serde_json::json;

    fn new() -> NewPod {
        NewPod {
            task: EntityId::fixed(7, 1),
            attempt: 2,
            name: "Train the model!".into(),
            workflow_id: "wf-1".into(),
            tenant_id: "acme".into(),
            label: None,
            namespace: None,
            cluster: String::new(),
            priority: 0,
            must_end_in_ms: 1_000,
        }
    }

    fn made(template: Value) -> Result<Pod, String> {
        let new = new();
        let task = NewTask { template, ..NewTask::default() };
        let at = Begun { namespace: "work".into(), name: pod_name(&new) };
        let (id, left) = (EntityId::fixed(8, 1), None);
        make(Order { id, new: &new, task: &task, at: &at, epoch: 3, left, over_by: None })
    }

    #[test]
    fn its_node_ends_a_pod_that_everybody_else_forgot() {
        let deadline = |own: Option<i64>, left: u64| {
            let mut template = json!({ "spec": { "containers": [{ "image": "i" }] } });
            if let Some(own) = own {
                template["spec"]["activeDeadlineSeconds"] = own.into();
            }
            let (new, task) = (new(), NewTask { template, ..NewTask::default() });
            let at = Begun { namespace: "work".into(), name: pod_name(&new) };
            let (id, left) = (EntityId::fixed(8, 1), Some(Duration::from_secs(left)));
            let pod =
                make(Order { id, new: &new, task: &task, at: &at, epoch: 3, left, over_by: None })
                    .unwrap();
            pod.spec.unwrap().active_deadline_seconds
        };
        assert_eq!(deadline(None, 3_600), Some(3_600 + 900));
        assert_eq!(deadline(Some(60), 3_600), Some(60), "the template's own is stricter");
        assert_eq!(deadline(Some(100_000), 3_600), Some(4_500));
        assert_eq!(deadline(None, u64::from(u32::MAX)), Some(DEADLINE_SECONDS_MAX));
    }

    #[test]
    fn whoever_reads_the_pod_looks_at_the_container_that_the_order_names() {
        use crate::verdict::{Policy, main_container};
        let template = json!({ "spec": { "containers": [
            { "name": "main", "image": "i" }, { "name": "train", "image": "i" }
        ] } });
        let (new, at) = (new(), Begun { namespace: "work".into(), name: "p".into() });
        let main_of = |container: Option<&str>| {
            let container = container.map(str::to_owned);
            let task = NewTask { template: template.clone(), container, ..NewTask::default() };
            let (id, left) = (EntityId::fixed(8, 1), None);
            let pod =
                make(Order { id, new: &new, task: &task, at: &at, epoch: 3, left, over_by: None })
                    .unwrap();
            let lean = crate::follow::LeanPod(Box::new(pod.clone()));
            let recalled = crate::follow::LeanPod::recall(&lean.remember(""));
            let policy = Policy::default();
            assert_eq!(main_container(&pod, &policy), main_container(&recalled.0, &policy));
            main_container(&pod, &policy)
        };
        assert_eq!(main_of(Some("train")).as_deref(), Some("train"));
        assert_eq!(main_of(None).as_deref(), Some("main"));
    }

    #[test]
    fn a_pod_says_whose_it_is_and_its_program_too() {
        let pod = made(json!({
            "metadata": { "labels": { "team": "red", "flowforge.io/attempt": "9" }, "name": "mine" },
            "spec": { "restartPolicy": "Always", "containers": [{
                "image": "busybox", "env": [{ "name": "A", "value": "$(FLOWFORGE_TASK_ID)" }, { "name": "FLOWFORGE_ATTEMPT", "value": "99" }]
            }] }
        }))
        .unwrap();
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(labels["flowforge.io/workload"], "true");
        assert_eq!(labels["flowforge.io/task-id"], EntityId::fixed(7, 1).to_string());
        assert_eq!(labels["flowforge.io/attempt"], "2");
        assert_eq!(labels["flowforge.io/task-name"], "Train-the-model");
        assert_eq!(labels["team"], "red");
        assert_eq!(pod.metadata.annotations.unwrap()[OWNER], EntityId::fixed(8, 1).to_string());
        assert_eq!(pod.metadata.namespace.as_deref(), Some("work"));
        assert!(pod.metadata.name.unwrap().starts_with("ff-wf-1-train-the-model"));
        let spec = pod.spec.unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec.containers[0].name, "main");
        let env = spec.containers[0].env.as_ref().unwrap();
        let names: Vec<&str> = env.iter().map(|e| e.name.as_str()).collect();
        let own = ["TASK_ID", "WORKFLOW_ID", "TENANT_ID", "ATTEMPT", "FENCE"];
        let own: Vec<String> = own.iter().map(|n| format!("FLOWFORGE_{n}")).collect();
        assert_eq!(names[..5], own.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(names[5..], ["A"]);
        assert_eq!(env[3].value.as_deref(), Some("2"));
    }

    #[test]
    fn a_template_that_is_wrong_says_where() {
        let cases = [
            (json!([]), "template: it has to be a pod"),
            (json!("x"), "template: it has to be a pod"),
            (json!({ "spec": "x" }), "template: it can not be read as a pod"),
            (json!({ "spec": [] }), "template"),
            (
                json!({ "metadata": { "namespace": "my team" }, "spec": { "containers": [{ "image": "i" }] } }),
                "template.metadata.namespace: \"my team\" can not be",
            ),
            (
                json!({ "spec": { "containers": [] } }),
                "template.spec.containers: there has to be one",
            ),
            (
                json!({ "spec": { "containers": [{}] } }),
                "template.spec.containers[0].image: it is missing",
            ),
            (
                json!({ "spec": { "containers": [{ "image": "a", "comand": ["x"] }] } }),
                "template.spec.containers[0].comand: Kubernetes knows no such field",
            ),
            (json!({ "kind": "Deployment", "spec": {} }), "template.kind"),
            (json!({ "containers": [] }), "template.containers: a pod has no such field"),
            (json!({ "spec": { "containers": "main" } }), "template: it can not be read as a pod"),
            (
                json!({ "spec": { "containers": [{ "name": "a", "image": "i" }, { "name": "a", "image": "i" }] } }),
                "template.spec.containers[1].name: \"a\" is there twice",
            ),
            (
                json!({ "spec": { "containers": [{ "name": "a", "image": "i" }, { "image": "i" }] } }),
                "template.spec.containers[1].name: it is missing",
            ),
        ];
        for (template, expected) in cases {
            let said = made(template.clone()).unwrap_err();
            assert!(said.contains(expected), "{template}: {said}");
        }
    }

    #[test]
    fn a_label_that_kubernetes_would_refuse_is_refused_by_name() {
        let task = NewTask {
            template: json!({ "spec": { "containers": [{ "image": "i" }] } }),
            ..NewTask::default()
        };
        let new = NewPod { workflow_id: "a b".into(), ..new() };
        let at = Begun { namespace: "work".into(), name: pod_name(&new) };
        let id = EntityId::fixed(8, 1);
        let order =
            Order { id, new: &new, task: &task, at: &at, epoch: 1, left: None, over_by: None };
        let said = make(order).unwrap_err();
        assert!(said.starts_with("workflow_id: \"a b\" can not be a label"), "{said}");
    }

    #[test]
    fn a_pod_says_until_when_somebody_is_responsible_and_a_copy_of_it_does_not() {
        let template = json!({
            "metadata": { "annotations": { OVER_BY: "2000-01-01T00:00:00Z work/copied" } },
            "spec": { "containers": [{ "image": "i" }] },
        });
        let task = NewTask { template, ..NewTask::default() };
        let (new, id) = (new(), EntityId::fixed(8, 1));
        let at = Begun { namespace: "work".into(), name: pod_name(&new) };
        let by = Some(Timestamp::from_micros(1_900_000_000_000_001));
        let order =
            |over_by| Order { id, new: &new, task: &task, at: &at, epoch: 1, left: None, over_by };
        let mut pod = make(order(by)).unwrap();
        assert_eq!(over_by(&pod), by);
        pod.metadata.name = Some("copied".into());
        assert_eq!(over_by(&pod), None);
        assert_eq!(
            over_by(&make(order(None)).unwrap()),
            None,
            "nor what the template was copied with"
        );
        for nonsense in ["", "soon work/copied", "2000-01-01T00:00:00Z", "2000-01-01T00:00:00Z x"] {
            let annotations = pod.metadata.annotations.as_mut().unwrap();
            annotations.insert(OVER_BY.into(), nonsense.into());
            assert_eq!(over_by(&pod), None, "{nonsense}");
        }
    }

    #[test]
    fn the_fence_rises_with_every_later_pod() {
        assert!(fence(1, 40) < fence(2, 1));
        assert!(fence(2, 1) < fence(2, 3));
    }
}
