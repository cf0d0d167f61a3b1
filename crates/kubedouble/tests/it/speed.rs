//! Many pods and many changes through one watch.

use crate::support::{Tape, pods};
use kube::api::{ListParams, WatchParams};
use serde_json::{Value, json};
use tenure_kubedouble::{Cluster, Life, Step};

fn task(number: usize) -> Value {
    json!({
        "metadata": {"name": format!("p{number}"), "labels": {"flowforge.io/workload": "true"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "work:1"}]},
    })
}

/// The order of one pod's changes is kept, and all come, however fast they are made.
#[tokio::test]
async fn a_crowd_comes_through_one_watch_whole_and_in_order() {
    let cluster = Cluster::start();
    assert_eq!(cluster.load_pods((0..300).map(task)), 300);
    let listed = pods(&cluster).list(&ListParams::default().limit(100)).await.unwrap();
    assert_eq!(listed.items.len(), 100);
    let from = cluster.version();
    let labels = WatchParams::default().labels("flowforge.io/workload=true");
    let mut tape = Tape::from(&cluster, &labels, from).await;
    let steps: Vec<Step> = (0..5)
        .flat_map(|round| {
            (0..300).map(move |number| {
                let name = format!("p{number}");
                match round {
                    0 => Step::Live(name, Life::Creating),
                    1 => Step::Live(name, Life::Running),
                    2 => Step::Patch(name, json!({"metadata": {"annotations": {"a": "b"}}})),
                    3 => Step::Live(name, Life::Ready(false)),
                    _ => Step::Live(name, Life::Stopped { exit_code: 0 }),
                }
            })
        })
        .collect();
    let player = cluster.clone();
    let played = tokio::task::spawn_blocking(move || player.play(None, steps)).await.unwrap();
    assert_eq!(played.steps, 1500);
    assert_eq!(played.moments.last().unwrap().0, from + 1500);
    let lines = tape.take(1500).await;
    let of = |name: &str| {
        let prefix = format!("MODIFIED {name} ");
        lines.iter().filter_map(|l| l.strip_prefix(&prefix)).collect::<Vec<_>>()
    };
    for number in 0..300 {
        assert_eq!(
            of(&format!("p{number}")),
            [
                "Pending waiting=ContainerCreating",
                "Running ready",
                "Running ready",
                "Running",
                "Succeeded exit=0"
            ]
        );
    }
}

#[test]
fn a_rate_is_kept() {
    let cluster = Cluster::start();
    cluster.load_pods((0..10).map(task));
    let steps = (0..10).map(|number| Step::Live(format!("p{number}"), Life::Running));
    let played = cluster.play(Some(200.0), steps);
    assert!(played.took >= std::time::Duration::from_millis(45), "{:?}", played.took);
    assert_eq!(
        cluster.play(None, [Step::Create(task(99)), Step::ForceDelete("p99".to_owned())]).steps,
        2
    );
}
