//! Many pods and many changes, without HTTP: for benchmarks and storms.

use crate::{cluster::Cluster, kubelet::key, life::Life, resource::PODS};
use serde_json::Value;
use std::time::{Duration, Instant};

/// One change of one pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// It is created.
    Create(Value),
    /// It gets a node.
    Bind(String, String),
    /// Something happens to it.
    Live(String, Life),
    /// A merge patch of the whole pod.
    Patch(String, Value),
    /// Somebody deletes it, without grace.
    ForceDelete(String),
}

/// What came of a play.
#[derive(Clone, Debug)]
pub struct Played {
    /// How many steps were taken.
    pub steps: usize,
    /// From the first to the last.
    pub took: Duration,
    /// For every step the version that it made, and when it was there.
    pub moments: Vec<(u64, Instant)>,
}

impl Cluster {
    /// Creates many pods at once.
    ///
    /// # Panics
    /// If the server would refuse one.
    pub fn load_pods(&self, pods: impl IntoIterator<Item = Value>) -> usize {
        let mut count = 0;
        self.must(|store| {
            for pod in pods {
                let namespace =
                    pod["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
                store.create(&PODS, &namespace, pod)?;
                count += 1;
            }
            Ok(())
        });
        count
    }

    /// Takes these steps, on the calling thread, at most so many a second (as fast as it goes if there is no rate).
    ///
    /// # Panics
    /// If a step is not possible.
    #[expect(
        clippy::disallowed_methods,
        reason = "a double is outside of what runs in the simulation"
    )]
    pub fn play(&self, rate: Option<f64>, steps: impl IntoIterator<Item = Step>) -> Played {
        let start = Instant::now();
        let mut moments = Vec::new();
        for (number, step) in steps.into_iter().enumerate() {
            if let Some(rate) = rate {
                let due = start + Duration::from_secs_f64(number as f64 / rate);
                let left = due.saturating_duration_since(Instant::now());
                // Sleeping is only good for so fine a time: what is late is made up for by the next ones.
                if left > Duration::from_micros(200) {
                    std::thread::sleep(left);
                }
            }
            let version = self.step(step);
            moments.push((version, Instant::now()));
        }
        Played { steps: moments.len(), took: start.elapsed(), moments }
    }

    fn step(&self, step: Step) -> u64 {
        match step {
            Step::Create(pod) => {
                self.load_pods([pod]);
                self.version()
            }
            Step::Bind(pod, node) => self.bind(&pod, &node),
            Step::Live(pod, life) => {
                self.must_get(|store| store.live(&key(&pod), &life).map(|object| object.version()))
            }
            Step::Patch(pod, patch) => self.patch(&pod, &patch),
            Step::ForceDelete(pod) => self.force_delete(&pod),
        }
    }
}
