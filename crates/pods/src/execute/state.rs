//! How an executor is: whether it can work, and what it has done, for probes and for Prometheus.
//!
//! It is ready when both its ends answer. The server: its session is alive, without which it may not act for any pod. The API server:
//! asked now and then for a pod of a name that nobody has. That is the cheapest request of all those that it needs, and the answer
//! *there is none* says as well as any that it is reached and lets us in. What happens to its pods says less: an executor
//! without pods asks nothing.

use super::{
    cluster::Trouble,
    shop::{Counts, PodShop},
};
use crate::{numbers::Page, pod::Begun};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tenure_engine::{session::Keeper, slots::Slots};
use tenure_kernel::runtime::{First, Rt, first};

/// How an executor is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExecutorState {
    /// It can work.
    pub ready: bool,
    /// Why not, in words.
    pub not_ready: Option<String>,
    /// Its session is alive.
    pub server_up: bool,
    /// The API server answers, and lets it in.
    pub api_up: bool,
    /// What the API server said last, if that was nothing good.
    pub api_trouble: Option<String>,
    /// Since the API server last answered well.
    pub api_age: Option<Duration>,
    /// Pods that it may tend at once.
    pub slots: usize,
    /// Pods that it tends.
    pub slots_used: usize,
}

/// The name of the pod that is asked for. Whether there is one does not matter.
const NOBODY: &str = "tenure-executor-looks-whether-you-are-there";

/// What is known of the API server.
#[derive(Debug, Default)]
pub(super) struct ApiServer(Mutex<Known>);

#[derive(Clone, Debug, Default)]
struct Known {
    /// `None`: nobody has asked yet.
    last: Option<Result<(), String>>,
    well_at: Option<Duration>,
}

impl ApiServer {
    fn known(&self) -> MutexGuard<'_, Known> {
        // Nothing panics while it holds this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self, at: Duration, answer: Result<(), String>) {
        let mut known = self.known();
        if answer.is_ok() {
            known.well_at = Some(at);
        }
        known.last = Some(answer);
    }

    /// Asks for as long as it is polled.
    pub async fn look(&self, shop: &PodShop, rt: &Rt) {
        let namespace = shop.cluster.default_namespace().to_owned();
        let at = Begun { namespace, name: NOBODY.to_owned() };
        let every = shop.patience.greet;
        loop {
            let answer = match first(shop.cluster.get(&at), rt.sleep(every)).await {
                First::Left(answer) => well(answer.map(|_| ())),
                First::Right(()) => Err("it does not answer".to_owned()),
            };
            self.heard(rt.mono(), answer);
            rt.sleep(every).await;
        }
    }
}

/// Whether an answer says that it is there and lets us in. One that has too much to do is there.
fn well(answer: Result<(), Trouble>) -> Result<(), String> {
    match answer {
        Ok(()) | Err(Trouble::Missing | Trouble::Again { what: "throttled", .. }) => Ok(()),
        Err(trouble) => Err(format!("{}: {trouble}", trouble.class())),
    }
}

/// Whoever asks how an executor is.
pub(super) struct Watcher {
    pub keeper: Keeper,
    pub shop: Arc<PodShop>,
    pub slots: Slots,
    pub api: Arc<ApiServer>,
}

impl Watcher {
    /// As it is now.
    pub fn state(&self) -> ExecutorState {
        let Known { last, well_at } = self.api.known().clone();
        let now = self.keeper.pipeline().rt().mono();
        let mut state = judge(self.keeper.live(), last);
        state.api_age = well_at.map(|at| now.saturating_sub(at));
        // Slots are also taken for a moment while it looks for work: what it holds is what it tends.
        state.slots = self.slots.running() + self.slots.free();
        state.slots_used = self.keeper.held();
        state
    }
}

/// Whether it can work.
fn judge(live: bool, api: Option<Result<(), String>>) -> ExecutorState {
    let unasked = "it was not asked yet".to_owned();
    let api_trouble = api.map_or(Some(unasked), Result::err);
    let server = (!live).then(|| "the server does not renew its session".to_owned());
    let far = api_trouble.as_ref().map(|why| format!("the API server: {why}"));
    let why: Vec<String> = server.into_iter().chain(far).collect();
    ExecutorState {
        ready: why.is_empty(),
        not_ready: (!why.is_empty()).then(|| why.join("; ")),
        server_up: live,
        api_up: api_trouble.is_none(),
        api_trouble,
        ..ExecutorState::default()
    }
}

/// Classes that are there from the start: what grows from nothing to one is not seen to grow.
const CLASSES: [&str; 10] = [
    "conflict",
    "forbidden",
    "quota",
    "refused",
    "service_account",
    "throttled",
    "timeout",
    "unauthorized",
    "unavailable",
    "unreachable",
];

/// Everything, in the words of Prometheus.
pub(super) fn text(state: &ExecutorState, counts: &Counts) -> String {
    let (c, g) = ("counter", "gauge");
    let flag = |b: bool| f64::from(u8::from(b));
    let mut page = Page::default();
    let ready = "Whether it reaches its server and its API server.";
    page.one("tenure_executor_ready", g, ready, flag(state.ready));
    let up = "Whether its session with the server is alive.";
    page.one("tenure_executor_server_up", g, up, flag(state.server_up));
    let up = "Whether the API server answers, and lets it in.";
    page.one("tenure_executor_api_up", g, up, flag(state.api_up));
    let age = state.api_age.map_or(f64::NAN, |a| a.as_secs_f64());
    let help = "Since the API server last answered well when it was asked whether it is there.";
    page.one("tenure_executor_api_age_seconds", g, help, age);
    let help = "Pods that it may tend at once.";
    page.one("tenure_executor_slots", g, help, state.slots as f64);
    let help = "Pods that it tends.";
    page.one("tenure_executor_slots_used", g, help, state.slots_used as f64);
    let share = state.slots_used as f64 / state.slots.max(1) as f64;
    let help = "How much of its room is taken, from 0 to 1.";
    page.one("tenure_executor_slots_used_ratio", g, help, share);
    let counters = [
        ("pods_made_total", "Pods made.", &counts.created),
        ("pods_adopted_total", "Pods found that somebody before had made.", &counts.adopted),
        (
            "pods_refused_total",
            "Pods that will never be: the API server, or we, would not have them.",
            &counts.refused,
        ),
        ("pods_stopped_total", "Deletions that the API server took.", &counts.deleted),
        (
            "pods_forced_total",
            "Objects of pods taken away by force; their containers may have run on.",
            &counts.forced,
        ),
        ("strays_total", "Pods that nobody knew any more, found and deleted.", &counts.strays),
        ("reports_total", "Reports to tasks.", &counts.reports),
        ("log_bytes_total", "Bytes of logs that were kept.", &counts.log_bytes),
    ];
    for (name, help, count) in counters {
        page.one(&format!("tenure_executor_{name}"), c, help, count.get() as f64);
    }
    let help = "Pods with our marks whose owner this store does not know: another installation's, or long over. They are left alone.";
    page.one("tenure_executor_pods_unknown", g, help, counts.unknown.get() as f64);
    let name = "tenure_executor_requests_refused_total";
    page.head(name, c, "Requests that the API server did not do, by class; most are asked again.");
    let mut troubles = counts.troubles();
    CLASSES.into_iter().for_each(|class| *troubles.entry(class).or_default() += 0);
    for (class, n) in troubles {
        page.line(name, &[("class", class)], n as f64);
    }
    let name = "tenure_executor_waits_total";
    page.head(name, c, "Times that a pod had to wait before it could be gone on with, by reason.");
    for (reason, n) in counts.waits() {
        page.line(name, &[("reason", reason)], n as f64);
    }
    page.done()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_ready_when_both_its_ends_answer() {
        assert!(judge(true, Some(Ok(()))).ready);
        let early = judge(true, None);
        assert_eq!((early.ready, early.api_up), (false, false), "nobody has asked yet");
        let both = judge(false, Some(Err("timeout: no answer".into())));
        assert_eq!((both.ready, both.server_up), (false, false));
        let words = both.not_ready.unwrap();
        assert!(words.contains("session") && words.contains("timeout: no answer"), "{words}");
        assert!(!judge(false, Some(Ok(()))).ready);
    }

    #[test]
    fn an_answer_that_there_is_none_is_an_answer() {
        assert_eq!(well(Ok(())), Ok(()));
        assert_eq!(well(Err(Trouble::Missing)), Ok(()));
        assert_eq!(well(Err(Trouble::again("throttled", "too many requests"))), Ok(()));
        let no = well(Err(Trouble::again("forbidden", "User \"x\" cannot get resource \"pods\"")));
        assert!(no.unwrap_err().starts_with("forbidden: "));
        assert!(well(Err(Trouble::again("unconnected", "refused"))).is_err());
    }

    #[test]
    fn its_numbers_are_there_from_the_start_and_rise() {
        let counts = Counts::default();
        let value = |text: &str, metric: &str| {
            let line = text.lines().find_map(|l| l.strip_prefix(metric)).map(str::trim);
            line.unwrap_or_else(|| panic!("{metric} in {text}")).to_owned()
        };
        let state = ExecutorState { slots: 4, slots_used: 1, ..judge(true, Some(Ok(()))) };
        let first = text(&state, &counts);
        assert_eq!(value(&first, "tenure_executor_ready "), "1");
        assert_eq!(value(&first, "tenure_executor_slots_used_ratio "), "0.25");
        let forbidden = "tenure_executor_requests_refused_total{class=\"forbidden\"} ";
        assert_eq!(value(&first, forbidden), "0");
        counts.created.add(2);
        counts.waited("late");
        counts.troubled(&Trouble::again("forbidden", "no"));
        counts.troubled(&Trouble::Expired);
        let then = text(&state, &counts);
        assert_eq!(value(&then, "tenure_executor_pods_made_total "), "2");
        assert_eq!(value(&then, forbidden), "1");
        assert_eq!(value(&then, "tenure_executor_requests_refused_total{class=\"expired\"} "), "1");
        assert_eq!(value(&then, "tenure_executor_waits_total{reason=\"late\"} "), "1");
    }
}
