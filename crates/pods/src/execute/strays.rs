//! Strays: pods of ours that nobody knows any more.
//!
//! Kubernetes can not refuse a request for being late, so one to make a pod may be carried out when everybody has stopped waiting for it
//! ([`Patience::late`](super::shop::Patience)): its attempt is over, and nobody tends what it made. An executor therefore lists
//! all pods of ours now and then and asks the store about each of them.
//!
//! | what the store says of the owner that stands on the pod | what is done |
//! |---|---|
//! | it is open | nothing: whoever holds it tends the pod |
//! | it is over, and left this very pod, or gave up and the pod has ended since | nothing: it is left, as the task said |
//! | it is over, and had this name, but not this pod | a stray |
//! | it never asked for this name, or in another place | nothing: somebody copied our marks |
//! | it does not know it, the pod itself says by when its owner is over, and that was a day ago; and it has not ended | a stray |
//! | it does not know it, otherwise | nothing. Only counted |
//!
//! **Looked at twice.** A stray is one in two rounds, and once more when it is about to go: the pod by name, its owner in
//! the store. Then it is put on record with its task, marked, and deleted by uid with the time that it asks for. Ends are
//! final here, so what is over stays over between the look and the deed.
//!
//! **Not to be known proves nothing.** The owner may be of another installation, or of a tenant that this executor may not see, or
//! younger than the backup that the store was restored from; or it was retired, and then it is over for longer than a store remembers.
//! So where the store is silent the pod's own word counts ([`OVER_BY`](super::make::OVER_BY)): at that moment the entity that stood for it
//! was over, in whichever store, because open entities have an end (law 4). A pod that was left on purpose has ended, and
//! what has ended is not touched. What has begun is ended by its node by then (`activeDeadlineSeconds`), so this is for pods that
//! never began, or whose node is away. Roads not taken: the age of the pod beside the retention of the store (of which an
//! executor elsewhere knows nothing), and the name of the store on the pod (which a restored copy has, too).

use super::{
    cluster::{Cluster, Delete, Trouble},
    live::MANAGED_BY,
    make::{OWNER, over_by},
    shop::PodShop,
    told::is_terminal,
};
use crate::{
    pod::{Begun, Pod as PodMachine, PodState},
    report::labels,
};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tenure_engine::{pipeline::Pipeline, session::Keeper};
use tenure_kernel::{
    error::StoreError,
    evidence::NewEvidence,
    ids::EntityId,
    machine::{Machine as _, decode_state},
    runtime::{First, first},
    stream::Body,
    table::Class,
    time::Timestamp,
};

/// The key of the evidence beside the history of a task; the uid follows.
pub const STRAY: &str = "stray/";

/// The value of the mark on a pod that is deleted as a stray.
const MARK: &str = "stray";

/// How long after its own last moment a pod without a known owner is left alone: clocks are wrong by less, and whoever is responsible
/// has looked by then.
const OUTLIVED: Duration = Duration::from_secs(86_400);

/// Owners that one round asks the store about. Where there are more, the next round goes on.
const OWNERS_MAX: usize = 1_000;

/// What a pod is to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kin {
    /// Somebody tends it, or it was left on purpose, or it goes already.
    Known,
    /// Nobody knows it any more.
    Stray,
    /// The store does not know its owner, which is over by the pod's own word.
    Outlived,
    /// The store does not know its owner.
    Unknown,
    /// It carries our marks, and is not ours.
    Foreign,
}

/// The entity that stands for a pod.
struct Owner {
    /// How it ended, if it has.
    ended: Option<&'static str>,
    state: PodState,
}

/// See the module.
fn kin(owner: Option<&Owner>, pod: &Pod, now: Timestamp) -> Kin {
    let Some(Owner { ended, state }) = owner else {
        let outlived = over_by(pod).is_some_and(|by| now >= by + OUTLIVED);
        let leaves = pod.metadata.deletion_timestamp.is_some();
        return match outlived && !leaves && !is_terminal(pod) {
            true => Kin::Outlived,
            false => Kin::Unknown,
        };
    };
    let Some(ended) = ended.filter(|_| pod.metadata.deletion_timestamp.is_none()) else {
        return Kin::Known;
    };
    if state.begun.as_ref() != Some(&place(pod)) {
        return Kin::Foreign;
    }
    let same = state.uid.is_some() && state.uid == pod.metadata.uid;
    match ended {
        "left" if same => Kin::Known,
        "abandoned" if same && is_terminal(pod) => Kin::Known,
        _ => Kin::Stray,
    }
}

fn place(pod: &Pod) -> Begun {
    let text = |t: &Option<String>| t.clone().unwrap_or_default();
    Begun { namespace: text(&pod.metadata.namespace), name: text(&pod.metadata.name) }
}

/// Whose pod it is, by the marks on it.
fn owner_of(pod: &Pod) -> Option<EntityId> {
    let ours = pod.metadata.labels.as_ref()?.get(labels::MANAGED_BY)? == MANAGED_BY;
    let owner = pod.metadata.annotations.as_ref()?.get(OWNER)?;
    owner.parse().ok().filter(|_| ours)
}

/// Why a round came to nothing.
enum Broken {
    Cluster(Trouble),
    Store(StoreError),
}

impl From<Trouble> for Broken {
    fn from(e: Trouble) -> Self {
        Broken::Cluster(e)
    }
}

impl From<StoreError> for Broken {
    fn from(e: StoreError) -> Self {
        Broken::Store(e)
    }
}

/// Looks for strays.
pub(super) struct Sweeper {
    shop: Arc<PodShop>,
    keeper: Keeper,
    /// What was a stray in the last round, by uid.
    suspects: BTreeSet<String>,
    /// Where the next round goes on.
    after: String,
}

impl Sweeper {
    pub fn new(shop: Arc<PodShop>, keeper: Keeper) -> Self {
        Sweeper { shop, keeper, suspects: BTreeSet::new(), after: String::new() }
    }

    fn pipeline(&self) -> &Pipeline {
        self.keeper.pipeline()
    }

    /// Sweeps for as long as it is polled. Never at the same moment as the executors that started with this one.
    pub async fn run(mut self) {
        let rt = self.pipeline().rt().clone();
        let Some(every) = self.shop.patience.sweep else { return };
        loop {
            let share = f64::from(u32::try_from(rt.random() >> 32).unwrap_or(0));
            rt.sleep(every.mul_f64(0.75 + share / f64::from(u32::MAX) / 2.0)).await;
            // What is over is over; but without a session it hears nothing from the store either.
            if !self.keeper.live() {
                continue;
            }
            match self.round().await {
                Ok(()) => {}
                Err(Broken::Cluster(e)) => tracing::warn!(error = %e, "no look for strays"),
                Err(Broken::Store(e)) => tracing::warn!(error = %e, "no look for strays"),
            }
        }
    }

    async fn ask<T>(&self, work: impl Future<Output = Result<T, Trouble>>) -> Result<T, Trouble> {
        let patience = self.shop.patience.request;
        match first(work, self.pipeline().rt().sleep(patience)).await {
            First::Left(answer) => answer.inspect_err(|e| self.shop.counts.troubled(e)),
            First::Right(()) => Err(Trouble::again("timeout", "the API server did not answer")),
        }
    }

    /// All pods of ours: everywhere, or where we have any, if we may not look everywhere.
    async fn pods(&self) -> Result<Vec<Pod>, Trouble> {
        let cluster: &dyn Cluster = &*self.shop.cluster;
        match self.ask(cluster.list("")).await {
            Ok((pods, _)) => return Ok(pods),
            Err(Trouble::Again { what: "forbidden", .. }) => {}
            Err(trouble) => return Err(trouble),
        }
        let mut all = Vec::new();
        let mut places = self.shop.sight.namespaces();
        places.insert(cluster.default_namespace().to_owned());
        for namespace in places {
            all.extend(self.ask(cluster.list(&namespace)).await?.0);
        }
        Ok(all)
    }

    async fn owner(&self, id: EntityId) -> Result<Option<Owner>, StoreError> {
        let head = self.pipeline().store().head(id).await?;
        let Some(head) = head.filter(|h| h.kind() == PodMachine::TABLE.kind) else {
            return Ok(None);
        };
        let ended = (head.class() == Class::Final).then(|| head.status.name());
        let state = decode_state::<PodMachine>(&head.state);
        let state = state.map_err(|e| StoreError::Corrupt(e.to_string()))?;
        Ok(Some(Owner { ended, state }))
    }

    async fn round(&mut self) -> Result<(), Broken> {
        let mut found: Vec<(String, EntityId, Pod)> = Vec::new();
        for pod in self.pods().await? {
            if let (Some(uid), Some(owner)) = (pod.metadata.uid.clone(), owner_of(&pod)) {
                found.push((uid, owner, pod));
            }
        }
        let suspected = std::mem::take(&mut self.suspects);
        // Those that were suspected first; then from where the last round had to stop.
        let after = std::mem::take(&mut self.after);
        found.sort_by(|(a, ..), (b, ..)| {
            let order = |uid: &String| (!suspected.contains(uid), *uid <= after);
            order(a).cmp(&order(b)).then_with(|| a.cmp(b))
        });
        let (mut unknown, now) = (0, self.pipeline().store().now().await?);
        for (uid, owner, pod) in found.into_iter().take(OWNERS_MAX) {
            match kin(self.owner(owner).await?.as_ref(), &pod, now) {
                Kin::Known | Kin::Foreign => {}
                Kin::Unknown => unknown += 1,
                Kin::Stray | Kin::Outlived if suspected.contains(&uid) => {
                    self.remove(&uid, owner, &pod, now).await?;
                }
                Kin::Stray | Kin::Outlived => {
                    self.suspects.insert(uid.clone());
                }
            }
            self.after = uid;
        }
        self.shop.counts.unknown.set(unknown);
        Ok(())
    }

    /// Deletes a stray, after one more look.
    async fn remove(
        &self,
        uid: &str,
        owner: EntityId,
        pod: &Pod,
        now: Timestamp,
    ) -> Result<(), Broken> {
        let (at, cluster) = (place(pod), &self.shop.cluster);
        let Some(found) = self.ask(cluster.get(&at)).await? else { return Ok(()) };
        if found.metadata.uid.as_deref() != Some(uid) || owner_of(&found) != Some(owner) {
            return Ok(());
        }
        let known = self.owner(owner).await?;
        match (kin(known.as_ref(), &found, now), known) {
            (Kin::Stray, Some(Owner { state, .. })) => self.testify(uid, &at, &state).await?,
            // There is no history that it could be written beside.
            (Kin::Outlived, _) => {}
            _ => return Ok(()),
        }
        tracing::warn!(pod = %at.name, namespace = %at.namespace, %uid, %owner, "a pod that nobody knows any more is deleted");
        match self.ask(cluster.annotate(&at, uid, labels::STOPPED, MARK)).await {
            // A cluster that will not have the mark does not keep the pod alive by that.
            Ok(()) | Err(Trouble::Conflict(_) | Trouble::Again { what: "forbidden", .. }) => {}
            Err(Trouble::Missing) => return Ok(()),
            Err(trouble) => return Err(trouble.into()),
        }
        match self.ask(cluster.delete(&at, uid, Delete::Gently)).await {
            Ok(()) => self.shop.counts.strays.add(1),
            Err(Trouble::Missing | Trouble::Conflict(_)) => {}
            Err(trouble) => return Err(trouble.into()),
        }
        Ok(())
    }

    /// Puts it on record, beside the history of its task: that may be over, and so is the entity of the pod.
    async fn testify(&self, uid: &str, at: &Begun, state: &PodState) -> Result<(), StoreError> {
        let Some(new) = &state.new else { return Ok(()) };
        let Some(task) = self.pipeline().store().head(new.task).await? else { return Ok(()) };
        let said = json!({
            "attempt": new.attempt, "namespace": at.namespace, "pod": at.name, "uid": uid,
        });
        let evidence = NewEvidence {
            entity: new.task,
            key: format!("{STRAY}{uid}"),
            epoch: task.epoch,
            call: 0,
            who: format!("executor {}", self.keeper.id()),
            body: Body::json(&said),
        };
        self.pipeline().evidence(evidence).await?;
        Ok(())
    }
}

/// How often an executor looks for strays, unless it is told otherwise.
pub(super) const EVERY: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::{super::make::OVER_BY, *};
    use serde_json::Value;

    fn pod(uid: &str, phase: &str, more: Value) -> Pod {
        let mut whole = json!({
            "metadata": {
                "namespace": "work", "name": "ff-a-1", "uid": uid,
                "labels": { "app.kubernetes.io/managed-by": "tenure" },
                "annotations": { OWNER: EntityId::fixed(8, 1).to_string() },
            },
            "status": { "phase": phase },
        });
        for (key, value) in more.as_object().into_iter().flatten() {
            whole["metadata"][key] = value.clone();
        }
        serde_json::from_value(whole).unwrap()
    }

    const NOW: Timestamp = Timestamp::from_micros(1_900_000_000_000_000);

    fn owner(ended: Option<&'static str>, uid: Option<&str>) -> Option<Owner> {
        let begun = Begun { namespace: "work".into(), name: "ff-a-1".into() };
        let uid = uid.map(str::to_owned);
        let state = PodState { begun: Some(begun), uid, ..PodState::default() };
        Some(Owner { ended, state })
    }

    #[test]
    fn a_pod_is_a_stray_only_if_its_owner_is_over_without_it() {
        let runs = |uid| pod(uid, "Running", Value::Null);
        for uid in [None, Some("a"), Some("b")] {
            assert_eq!(
                kin(owner(None, uid).as_ref(), &runs("a"), NOW),
                Kin::Known,
                "a live attempt"
            );
        }
        assert_eq!(kin(None, &runs("a"), NOW), Kin::Unknown, "somebody else's");
        assert_eq!(kin(owner(Some("left"), Some("a")).as_ref(), &runs("a"), NOW), Kin::Known);
        assert_eq!(kin(owner(Some("left"), Some("a")).as_ref(), &runs("b"), NOW), Kin::Stray);
        assert_eq!(kin(owner(Some("cleared"), Some("a")).as_ref(), &runs("b"), NOW), Kin::Stray);
        assert_eq!(kin(owner(Some("not_made"), None).as_ref(), &runs("b"), NOW), Kin::Stray);
        // Nobody could say what became of it: what has ended since is left, what runs is not.
        let ended = pod("a", "Failed", Value::Null);
        assert_eq!(kin(owner(Some("abandoned"), Some("a")).as_ref(), &ended, NOW), Kin::Known);
        assert_eq!(kin(owner(Some("abandoned"), Some("a")).as_ref(), &runs("a"), NOW), Kin::Stray);
    }

    #[test]
    fn what_goes_already_and_what_only_looks_like_ours_is_left_alone() {
        let goes = pod("b", "Running", json!({ "deletionTimestamp": "2030-01-01T00:00:00Z" }));
        assert_eq!(kin(owner(Some("cleared"), Some("a")).as_ref(), &goes, NOW), Kin::Known);
        // Marks that were copied to another pod, and an owner that never asked for one.
        let copied = pod("b", "Running", json!({ "name": "mine" }));
        assert_eq!(kin(owner(Some("cleared"), Some("a")).as_ref(), &copied, NOW), Kin::Foreign);
        let elsewhere = pod("b", "Running", json!({ "namespace": "theirs" }));
        assert_eq!(kin(owner(Some("cleared"), Some("a")).as_ref(), &elsewhere, NOW), Kin::Foreign);
        let mut unasked = owner(Some("not_made"), None);
        unasked.as_mut().unwrap().state.begun = None;
        assert_eq!(kin(unasked.as_ref(), &pod("b", "Running", Value::Null), NOW), Kin::Foreign);
        let strange = pod("b", "Running", json!({ "labels": { "app": "x" } }));
        assert_eq!(owner_of(&strange), None);
        let unmarked = pod("b", "Running", json!({ "annotations": {} }));
        assert_eq!(owner_of(&unmarked), None);
        assert_eq!(owner_of(&copied), Some(EntityId::fixed(8, 1)));
    }

    #[test]
    fn of_an_owner_that_the_store_does_not_know_only_the_pods_own_word_counts() {
        let says = |by: Timestamp, name: &str, phase: &str, goes: Value| {
            let marks = json!({
                OWNER: EntityId::fixed(8, 1).to_string(),
                OVER_BY: format!("{by} work/{name}"),
            });
            pod("a", phase, json!({ "annotations": marks, "deletionTimestamp": goes }))
        };
        let (past, soon) = (NOW - OUTLIVED, NOW - OUTLIVED + Duration::from_secs(1));
        for phase in ["Pending", "Running", "Unknown"] {
            assert_eq!(kin(None, &says(past, "ff-a-1", phase, Value::Null), NOW), Kin::Outlived);
            assert_eq!(kin(None, &says(soon, "ff-a-1", phase, Value::Null), NOW), Kin::Unknown);
            let copied = says(past, "ff-b-1", phase, Value::Null);
            assert_eq!(kin(None, &copied, NOW), Kin::Unknown, "said of another pod");
            let goes = says(past, "ff-a-1", phase, json!("2030-01-01T00:00:00Z"));
            assert_eq!(kin(None, &goes, NOW), Kin::Unknown, "it goes already");
        }
        // What was left to be looked at has ended; nobody minds for how long.
        for phase in ["Succeeded", "Failed"] {
            assert_eq!(kin(None, &says(past, "ff-a-1", phase, Value::Null), NOW), Kin::Unknown);
        }
        // Who knows the owner does not ask the pod.
        let known = owner(None, Some("a"));
        assert_eq!(
            kin(known.as_ref(), &says(past, "ff-a-1", "Running", Value::Null), NOW),
            Kin::Known
        );
    }
}
