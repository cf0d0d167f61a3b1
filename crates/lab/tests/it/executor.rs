//! `tenure executor` as a process: killed with SIGKILL at each point of a pod's life and replaced by another; the API server is a
//! double in this process. One pod per attempt, whatever happens.

use crate::{
    console::administrators_key,
    console_cdp::Tab,
    lab::{Hand, Lab, bounded},
    support::{complained, fast, run, said, service},
};
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use tenure::{
    jobs::drive::read_events,
    kernel::{ids::EntityId, store::HeadFilter},
};
use tenure_kubedouble::{Cluster, OnDelete};

struct Town {
    lab: Lab,
    cluster: Cluster,
    kubeconfig: std::path::PathBuf,
    made: Arc<Mutex<Vec<String>>>,
}

impl Town {
    async fn open() -> Self {
        // What the API server of these tests was asked for it does at once.
        let late = "pods.request_late_seconds=1";
        let lab =
            Lab::open(None, &["pods.backoff_seconds=0.05", "pods.backoff_max_seconds=0.1", late])
                .await;
        let cluster = Cluster::start();
        cluster.add_node("node-1");
        let made: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = made.clone();
        cluster.on_create(move |_, pod| noted.lock().unwrap().push(pod.to_owned()));
        let kubeconfig = cluster.kubeconfig(lab.dir());
        Town { lab, cluster, kubeconfig, made }
    }

    fn made(&self) -> Vec<String> {
        self.made.lock().unwrap().clone()
    }

    async fn pod(&self, nth: usize) -> String {
        bounded("a pod", || async { self.made().get(nth - 1).cloned() }).await
    }

    async fn job(&self) -> EntityId {
        let input =
            json!({ "image": "busybox", "command": ["true"], "result_file": "/tmp/result" });
        self.lab.submit("pod", input).await
    }

    async fn task_is(&self, status: &str) -> EntityId {
        let what = format!("a task that is {status}");
        bounded(&what, || async {
            let filter = HeadFilter {
                kind: Some("task".into()),
                status: Some(status.into()),
                ..HeadFilter::default()
            };
            self.lab.store.heads(filter, 1).await.unwrap().first().map(|h| h.id)
        })
        .await
    }

    async fn pod_is(&self, status: &str) {
        let what = format!("the entity of a pod that is {status}");
        bounded(&what, || async {
            let filter = HeadFilter {
                kind: Some("pod".into()),
                status: Some(status.into()),
                ..HeadFilter::default()
            };
            (!self.lab.store.heads(filter, 1).await.unwrap().is_empty()).then_some(())
        })
        .await;
    }

    async fn output(&self, job: EntityId) -> Value {
        self.lab.until(job, "completed").await;
        for record in self.lab.store.stream(job, 1, 1_000).await.unwrap() {
            for event in read_events(&self.lab.store, &record).await.unwrap().1 {
                if event.name == "job_completed" {
                    let body: Value = serde_json::from_slice(event.body.inline().unwrap()).unwrap();
                    return body["output"].clone();
                }
            }
        }
        panic!("no output");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_process_that_is_killed_anywhere_leaves_one_pod() {
    for point in ["pod_claimed", "pod_begun", "pod_created", "pod_made"] {
        let town = Town::open().await;
        let _worker = town.lab.worker();
        let mut first = town.lab.executor(&town.kubeconfig, Some(point));
        let job = town.job().await;
        first.ended().await;
        assert!(first.said().contains(&format!("drill: {point}:1")), "{}", first.said());
        let mut second = town.lab.executor(&town.kubeconfig, None);
        let pod = town.pod(1).await;
        town.cluster.bind(&pod, "node-1");
        town.cluster.running(&pod);
        town.task_is("RUNNING").await;
        // And once more, in the middle of its run.
        second.kill();
        town.cluster.log(&pod, "main", "nobody listens");
        town.cluster.terminate(&pod, 0, "Completed", "{\"rows\": 7}");
        let _third = town.lab.executor(&town.kubeconfig, None);
        let output = town.output(job).await;
        assert_eq!(
            (&output["result"], &output["attempt"]),
            (&json!({ "rows": 7 }), &json!(1)),
            "{point}"
        );
        town.pod_is("cleared").await;
        assert_eq!(town.made().len(), 1, "{point}: one pod, ever");
        town.lab.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_process_that_is_killed_while_it_stops_a_pod_has_it_stopped_by_the_next() {
    for point in ["pod_marked", "pod_deleted"] {
        let town = Town::open().await;
        let _worker = town.lab.worker();
        let mut first = town.lab.executor(&town.kubeconfig, Some(point));
        let job = town.job().await;
        let pod = town.pod(1).await;
        town.cluster.bind(&pod, "node-1");
        town.cluster.running(&pod);
        town.task_is("RUNNING").await;
        town.lab.cancel(job).await;
        first.ended().await;
        let _second = town.lab.executor(&town.kubeconfig, None);
        town.task_is("CANCELED").await;
        town.lab.until(job, "cancelled").await;
        town.pod_is("cleared").await;
        assert!(town.cluster.pod(&pod).is_none(), "{point}");
        assert_eq!(town.made().len(), 1, "{point}");
        town.lab.close().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_asks_for_no_more_than_its_role_grants() {
    let town = Town::open().await;
    let _worker = town.lab.worker();
    let granted = tenure_pods::access::EXECUTOR.iter().flat_map(|access| {
        let verbs = access.verbs.iter();
        verbs.map(|verb| (access.group.to_owned(), access.resource.to_owned(), (*verb).to_owned()))
    });
    town.cluster.allow_only(granted);
    let executor = town.lab.executor(&town.kubeconfig, None);
    let job = town.job().await;
    let pod = town.pod(1).await;
    town.cluster.bind(&pod, "node-1");
    town.cluster.running(&pod);
    town.cluster.log(&pod, "main", "hello");
    town.cluster.terminate(&pod, 0, "Completed", "");
    town.output(job).await;
    town.pod_is("cleared").await;
    // Asked to end, it ends well.
    executor.send(rustix::process::Signal::TERM);
    let mut executor = executor;
    assert!(executor.ended().await.success(), "{}", executor.said());
    let refused: Vec<_> =
        town.cluster.requests().into_iter().filter(|r| r.code == Some(403)).collect();
    assert!(refused.is_empty(), "{refused:?}");
    town.lab.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_has_a_pod_that_does_not_go_taken_away_by_force() {
    let town = Town::open().await;
    town.cluster.on_delete(OnDelete::WhenTold);
    let _executor = town.lab.executor(&town.kubeconfig, None);
    let typed = |args: &[&str]| {
        let url = town.lab.service.url();
        let args: Vec<&str> = args.iter().copied().chain(["--server", &url]).collect();
        tokio::task::block_in_place(|| run(&args, town.lab.dir()))
    };
    let template = json!({ "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "name": "main", "image": "busybox" }] } });
    let ordered = typed(&["task", "run", &template.to_string(), "--name", "work"]);
    assert!(ordered.status.success(), "{}", complained(&ordered));
    let pod = town.pod(1).await;
    town.cluster.bind(&pod, "node-1");
    town.cluster.running(&pod);
    let task = town.task_is("RUNNING").await.to_string();
    let early = typed(&["task", "force-delete", &task, "--why", "no patience"]);
    assert!(
        !early.status.success() && complained(&early).contains("not told to go"),
        "{}",
        complained(&early)
    );
    assert!(typed(&["task", "cancel", &task]).status.success());
    bounded("its pod goes", || async {
        let pod = town.cluster.pod(&pod)?;
        pod["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    let asked = typed(&["task", "force-delete", &task, "--why", "node-1 burnt down"]);
    assert!(asked.status.success(), "{}", complained(&asked));
    town.task_is("CANCELED").await;
    town.pod_is("cleared").await;
    assert!(town.cluster.pod(&pod).is_none());
    let timeline = said(&typed(&["task", "timeline", &task]));
    assert!(
        timeline.contains("taken away by force") && timeline.contains("node-1 burnt down"),
        "{timeline}"
    );
    assert!(timeline.contains("its pod may still run"), "{timeline}");
    town.lab.close().await;
}

/// Where a process that prints its address answers.
async fn address_of(hand: &Hand) -> String {
    bounded("its address", || async {
        let said = hand.said();
        let at = said.find("at http://")? + 3;
        said[at..].split_whitespace().next().map(str::to_owned)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_process_answers_probes_and_shows_its_numbers() {
    let town = Town::open().await;
    let _worker = town.lab.worker();
    let executor = town.lab.executor(&town.kubeconfig, None);
    let url = address_of(&executor).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let get = async |path: &str| {
        let answer = http.get(format!("{url}{path}")).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert_eq!(get("/healthz").await, (200, "ok\n".to_owned()));
    bounded("it is ready", || async { (get("/readyz").await.0 == 200).then_some(()) }).await;
    let job = town.job().await;
    let pod = town.pod(1).await;
    town.cluster.bind(&pod, "node-1");
    town.cluster.running(&pod);
    town.cluster.log(&pod, "main", "hello");
    town.cluster.terminate(&pod, 0, "Completed", "");
    town.output(job).await;
    town.pod_is("cleared").await;
    let (_, numbers) = get("/metrics").await;
    for line in [
        "tenure_executor_ready 1",
        "tenure_executor_pods_made_total 1",
        "tenure_executor_pods_stopped_total 1",
        "tenure_executor_requests_refused_total{class=\"forbidden\"} 0",
    ] {
        assert!(numbers.lines().any(|l| l == line), "{line} in {numbers}");
    }
    // Without its server it may not act for any pod, and says so.
    town.lab.close().await;
    let how = bounded("it is not ready", || async {
        let (code, how) = get("/readyz").await;
        (code == 503).then(|| serde_json::from_str::<Value>(&how).unwrap())
    })
    .await;
    assert_eq!((&how["server"]["up"], &how["api_server"]["up"]), (&json!(false), &json!(true)));
    assert!(how["why_not"].as_str().unwrap().contains("session"), "{how}");
    assert_eq!(get("/healthz").await.0, 200, "it lives, and goes on when the server is back");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_inside_a_server_has_its_numbers_among_the_servers() {
    let cluster = Cluster::start();
    let home = tempfile::tempdir().unwrap();
    let kubeconfig = cluster.kubeconfig(home.path());
    let kubeconfig = format!("kubernetes.kubeconfig={}", kubeconfig.display());
    let lab = Lab::open(None, &["pods.executor=true", &kubeconfig]).await;
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let numbers = format!("{}/metrics", lab.service.url());
    let key = administrators_key(&lab.service).await;
    bounded("it is ready", || async {
        let text = http.get(&numbers).bearer_auth(&key).send().await.unwrap().text().await.unwrap();
        let both =
            text.contains("\ntenure_store_up 1\n") && text.contains("tenure_executor_ready 1\n");
        both.then_some(())
    })
    .await;
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_of_a_task_follows_its_pod_and_its_log() {
    if fast() {
        println!("skipped: needs Chromium, and this is a fast check");
        return;
    }
    let chromium = service("TENURE_TEST_CHROMIUM");
    let town = Town::open().await;
    let _worker = town.lab.worker();
    let _executor = town.lab.executor(&town.kubeconfig, None);
    let job = town.job().await;
    let pod = town.pod(1).await;
    town.cluster.bind(&pod, "node-1");
    town.cluster.running(&pod);
    town.cluster.log(&pod, "main", "reading 4 files");
    town.cluster.log(&pod, "main", "<b>epoch 1</b>: loss 0.31");
    let task = town.task_is("RUNNING").await;
    let mut tab = Tab::open(&chromium, &town.lab.dir().join("profile")).await;
    // From the job to the task of its step, and back.
    let url = town.lab.service.url();
    tab.go(&format!("{url}/jobs/{job}")).await;
    tab.until(&format!("document.querySelector('.facts a[href=\"/tasks/{task}\"]')")).await;
    tab.picture("job-of-a-pod").await;
    tab.go(&format!("{url}/tasks/{task}")).await;
    tab.until(&format!("document.querySelector('.facts a[href=\"/jobs/{job}\"]')")).await;
    tab.until("document.getElementById('live').dataset.state === 'live'").await;
    tab.until("document.querySelector('#log pre')?.textContent.includes('loss 0.31')").await;
    tab.until("document.querySelector('#attempts td code')").await;
    tab.picture("task-running").await;
    town.cluster.log(&pod, "main", "epoch 2: loss 0.12");
    tab.until("document.querySelector('#log pre').textContent.includes('loss 0.12')").await;
    assert_eq!(tab.eval("!!document.querySelector('#log b')").await, json!(false));
    town.cluster.terminate(&pod, 0, "Completed", "{\"rows\": 7}");
    tab.until("document.querySelector('.pill.big.completed')").await;
    assert_eq!(tab.complaints, Vec::<String>::new());
    town.lab.close().await;
}

/// Its containers end when they like: their node does not answer.
#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_does_not_go_is_taken_away_from_the_page_of_its_task() {
    let town = Town::open().await;
    town.cluster.on_delete(OnDelete::WhenTold);
    let _worker = town.lab.worker();
    let _executor = town.lab.executor(&town.kubeconfig, None);
    let template = json!({ "spec": { "terminationGracePeriodSeconds": 1, "containers": [{ "image": "busybox" }] } });
    let job = town.lab.submit("pod", json!({ "template": template })).await;
    let pod = town.pod(1).await;
    town.cluster.bind(&pod, "node-1");
    town.cluster.running(&pod);
    let task = town.task_is("RUNNING").await;
    let page = format!("{}/tasks/{task}", town.lab.service.url());
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let shown = async || http.get(&page).send().await.unwrap().text().await.unwrap();
    let press = async |fields: &'static str| {
        let form = "application/x-www-form-urlencoded";
        let request = http.post(format!("{page}/force-delete")).header("content-type", form);
        let answer = request.header("sec-fetch-site", "same-origin").body(fields).send().await;
        let answer = answer.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    assert!(!shown().await.contains("by force"), "nobody has told it to go");
    let (status, early) = press("attempt=1&why=x").await;
    assert!(status == 409 && early.contains("was not told to go"), "{status} {early}");
    town.lab.cancel(job).await;
    let offered = bounded("the button", || async {
        Some(shown().await).filter(|page| page.contains("force-1"))
    });
    let offered = offered.await;
    for words in
        [pod.as_str(), "its containers may run on where nobody sees them", "Take it away by force"]
    {
        assert!(offered.contains(words), "{words:?} in {offered}");
    }
    let (status, silent) = press("attempt=1&why=+").await;
    assert!(status == 422 && silent.contains("Take it away by force"), "{status} {silent}");
    assert!(town.cluster.pod(&pod).is_some());
    match Tab::unless_fast(&town.lab.dir().join("profile")).await {
        None => assert_eq!(press("attempt=1&why=node-1+burnt+down").await.0, 200),
        Some(mut tab) => {
            tab.go_live(&page).await;
            tab.click("#force-1 summary").await;
            tab.until("document.querySelector('#force-1').open").await;
            tab.picture("task-force").await;
            // Without a reason the browser does not send it.
            tab.click("#force-1 button.no").await;
            assert_eq!(
                tab.eval("document.querySelector('#force-1 form').checkValidity()").await,
                json!(false)
            );
            tab.eval(
                "document.querySelector('#force-1 input[name=why]').value = 'node-1 burnt down'",
            )
            .await;
            tab.click("#force-1 button.no").await;
            tab.until("location.search === '?did=force-delete'").await;
            assert_eq!(tab.complaints, Vec::<String>::new());
        }
    }
    town.cluster.until("its object is gone", |cluster| cluster.pod(&pod).is_none()).await;
    town.task_is("CANCELED").await;
    town.pod_is("cleared").await;
    let after = shown().await;
    assert!(after.contains("node-1 burnt down") && !after.contains("force-1"), "{after}");
    town.lab.close().await;
}
