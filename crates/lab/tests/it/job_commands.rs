//! What a person types, against a real server on a real socket.

use crate::console::administrators_key;
use clap::Parser as _;
use serde_json::{Value, json};
use tenure::{
    cli::{Cli, Command, TopCommand},
    commands::{Failure, job::run, limit, schedule},
    config::Settings,
    service::Service,
};
use tenure_lab::lab_process::lab_program;
use tenure_proving::patience;

struct World {
    service: Service,
    /// Removed with the test.
    _dir: tempfile::TempDir,
}

async fn world() -> World {
    let dir = tempfile::tempdir().unwrap();
    let flags = [
        format!("store.url=sqlite:{}", dir.path().display()),
        "server.listen=127.0.0.1:0".to_owned(),
    ];
    let settings = Settings::load(None, std::iter::empty(), &flags).unwrap();
    let service = lab_program().serve(&settings, true).await.unwrap();
    World { service, _dir: dir }
}

async fn typed(server: &str, words: &[&str]) -> Result<String, Failure> {
    typed_with(server, &[], words).await
}

async fn typed_with(server: &str, key: &[&str], words: &[&str]) -> Result<String, Failure> {
    let back = [&["--server", server, "--by", "ada"], key].concat();
    // Without the name of a command it is about jobs.
    let front: &[&str] = match words[0] {
        "schedule" | "limit" => &["tenure"],
        _ => &["tenure", "job"],
    };
    let line = front.iter().chain(words).chain(&back);
    let cli = Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{e}"));
    let TopCommand::Product(command) = &cli.command else {
        panic!("{words:?}: a command of the laboratory")
    };
    match command {
        Command::Job(options) => run(options, cli.common.json).await,
        Command::Schedule(options) => schedule::run(options, cli.common.json).await,
        Command::Limit(options) => limit::run(options, cli.common.json).await,
        _ => panic!("{words:?} is typed by no test"),
    }
}

impl World {
    async fn says(&self, words: &[&str]) -> String {
        typed(&self.service.url(), words).await.unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    /// What somebody is told who may do everything for every tenant.
    async fn tells_administrator(&self, words: &[&str]) -> String {
        let key = administrators_key(&self.service).await;
        let said = typed_with(&self.service.url(), &["--api-key", &key], words).await;
        said.unwrap_or_else(|e| panic!("{words:?}: {e}"))
    }

    async fn refuses(&self, words: &[&str]) -> String {
        match typed(&self.service.url(), words).await {
            Ok(said) => panic!("{words:?}: {said}"),
            Err(e) => e.to_string(),
        }
    }

    async fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        serde_json::from_str(&self.says(&words).await).unwrap()
    }

    async fn submit(&self, flow: &str, input: &Value) -> String {
        let made = self.json(&["submit", flow, &input.to_string()]).await;
        made["id"].as_str().unwrap().to_owned()
    }

    async fn until(&self, id: &str, done: impl Fn(&Value) -> bool) -> Value {
        patience::found(&format!("job {id} is as it should be"), async || {
            let job = self.json(&["show", id]).await;
            if done(&job) { Ok(job) } else { Err(job) }
        })
        .await
    }
}

/// It waits for something from outside, and nobody holds it.
fn blocked(job: &Value) -> bool {
    job["waits"] != json!([]) && job["holder"].is_null()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_is_submitted_waited_for_and_looked_at() {
    let world = world().await;
    let steps = json!({"steps": 2}).to_string();
    let said = world.says(&["submit", "drill.noops", &steps, "--wait", "--key", "one"]).await;
    let id = said.lines().next().unwrap().to_owned();
    assert_eq!(said, format!("{id}\n2\n"));
    let again = world.says(&["submit", "drill.noops", &steps, "--key", "one"]).await;
    assert_eq!(again, format!("{id}\nIt was there already under this key, and is completed.\n"));
    let shown = world.says(&["show", &id[..30]]).await;
    assert!(shown.starts_with(&format!("{id}  drill.noops@1  completed\n")), "{shown}");
    assert!(shown.contains("noop") && shown.contains("output      2"), "{shown}");
    let listed = world.says(&["list", "--flow", "drill.noops", "--status", "completed"]).await;
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(world.says(&["why", &id]).await.starts_with("Completed "));
    assert!(world.says(&["trace", &id]).await.contains("completed"));
    assert!(world.says(&["verify", &id]).await.contains("nothing is wrong"));
    assert!(world.says(&["replay", &id]).await.contains("leads through the history: 2 steps"));
    let events = world.says(&["events", &id]).await;
    assert!(events.lines().next().unwrap().contains("job_created"));
    assert_eq!(
        world.says(&["events", &id, "--follow", "--from", "1000"]).await,
        "the job is completed\n"
    );
    let lines = world.says(&["events", &id, "--json"]).await;
    assert_eq!(lines.lines().count(), events.lines().count());
    lines
        .lines()
        .for_each(|l| assert!(serde_json::from_str::<Value>(l).unwrap()["name"].is_string()));
    world.service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_are_moved_by_those_who_may() {
    let world = world().await;
    let question = json!({"question": "Ship it?"});
    for (word, approved) in [("approve", true), ("reject", false)] {
        let id = world.submit("ask", &question).await;
        world.until(&id, blocked).await;
        let said = world.says(&[word, &id, "--comment", "because"]).await;
        assert_eq!(said, "answer: heard; the job goes on\n");
        let job = world.until(&id, |j| j["is_final"] == true).await;
        assert_eq!(job["output"], json!({"approved": approved, "by": "ada", "said": "because"}));
    }
    let waits = json!({"lines": [{"signal": "go"}, {"signal": "on"}]});
    let id = world.submit("drill.script", &waits).await;
    world.until(&id, blocked).await;
    assert!(world.says(&["signal", &id, "on", "1", "--early"]).await.contains("kept"));
    assert!(world.says(&["pause", &id, "--why", "lunch"]).await.contains("accepted"));
    world.until(&id, |j| j["paused"] == true).await;
    assert!(world.says(&["pause", &id]).await.contains("already"));
    assert!(world.says(&["resume", &id]).await.contains("accepted"));
    world.until(&id, |j| j["paused"] == false && blocked(j)).await;
    assert!(world.says(&["signal", &id, "go", "{\"n\": 1}"]).await.contains("heard"));
    let job = world.until(&id, |j| j["is_final"] == true).await;
    assert_eq!(job["output"], json!([{"n": 1}, 1]));
    let fork = world.json(&["fork", &id, "--step", "2"]).await;
    assert_eq!(fork["forked_from"]["job"], json!(id));
    let fork = fork["id"].as_str().unwrap().to_owned();
    assert!(world.says(&["cancel", &fork, "--why", "a test"]).await.contains("accepted"));
    world.until(&fork, |j| j["status"] == "cancelled").await;
    let failed = world
        .refuses(&["submit", "drill.script", "{\"lines\":[{\"fail\":\"no\"}]}", "--wait"])
        .await;
    assert!(failed.contains("is failed") && failed.contains("no"), "{failed}");
    let dead = world.json(&["list", "--dead"]).await["jobs"][0]["id"].as_str().unwrap().to_owned();
    for (tenant, there) in [("default", true), ("acme", false)] {
        for list in [&["list", "--dead"][..], &["list", "--status", "failed"][..]] {
            let words = [list, &["--tenant", tenant][..]].concat();
            let said = world.tells_administrator(&words).await;
            assert_eq!(said != "no such jobs\n", there, "{tenant}: {said}");
        }
    }
    assert!(world.says(&["discard", &dead]).await.contains("accepted"));
    assert_eq!(world.says(&["list", "--dead"]).await, "no such jobs\n");
    world.service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calendar_is_looked_at_before_a_schedule_has_it() {
    let world = world().await;
    let berlin = ["schedule", "preview", "--cron", "30 2 * * *", "--zone", "Europe/Berlin"];
    let with = |more: &[&'static str]| [&berlin[..], more].concat();
    let spring = with(&["--after", "2026-03-28T12:00:00Z", "--count", "2"]);
    assert_eq!(
        world.says(&spring).await,
        "2026-03-29T01:00:00Z  2026-03-29T03:00:00+02:00  moved: the clock jumps over 2026-03-29T02:30:00\n\
         2026-03-30T00:30:00Z  2026-03-30T02:30:00+02:00\n"
    );
    let autumn = with(&["--after", "2026-10-24T12:00:00Z", "--count", "1"]);
    assert_eq!(
        world.says(&autumn).await,
        "2026-10-25T00:30:00Z  2026-10-25T02:30:00+02:00  once: not again at 2026-10-25T01:30:00Z, when the clock shows it anew\n"
    );
    let over = with(&["--after", "2026-03-28T12:00:00Z", "--end", "2026-03-28T13:00:00Z"]);
    assert_eq!(world.says(&over).await, "It has no time any more.\n");
    assert_eq!(world.json(&spring).await[0]["moved_from"], "2026-03-29T02:30:00");
    let refused = world.refuses(&["schedule", "preview", "--cron", "61 * * * *"]).await;
    assert!(refused.contains("cron") && refused.contains("61 * * * *"), "{refused}");
    // The other form is as it was.
    let question = json!({"question": "Ship it?"}).to_string();
    let set = ["schedule", "set", "preview", question.as_str(), "--every", "60", "--flow", "ask"];
    world.says(&set).await;
    let times = world.says(&["schedule", "preview", "preview", "--next", "3"]).await;
    assert_eq!(times.lines().count(), 3, "{times}");
    world.service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_for_each_tenant_is_set_listed_and_removed() {
    let world = world().await;
    let limit = |words: &[&'static str]| [&["limit"][..], words].concat();
    let set = limit(&["set", "--tool", "http", "--each-tenant", "--rate", "600/m", "--burst", "3"]);
    let said = world.tells_administrator(&set).await;
    assert!(said.contains("each tenant") && said.contains("600/m"), "{said}");
    world
        .tells_administrator(&limit(&[
            "set", "--tool", "http", "--tenant", "*", "--rate", "6000/m",
        ]))
        .await;
    let each = world.tells_administrator(&limit(&["list", "--each-tenant"])).await;
    let cells: Vec<Vec<&str>> = each
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|c| !c.is_empty()).collect())
        .collect();
    assert_eq!(cells[0][..5], ["TOOL", "TENANT", "RATE", "BURST", "BLOCK"]);
    assert_eq!(cells[1][..5], ["http", "each tenant", "600/m", "3", "10"]);
    assert_eq!(world.tells_administrator(&limit(&["list"])).await.lines().count(), 3);
    let theirs =
        world.tells_administrator(&limit(&["show", "--tool", "http", "--tenant", "acme"])).await;
    assert!(theirs.contains("acme") && theirs.contains("as each tenant has; 0 taken"), "{theirs}");
    world.tells_administrator(&limit(&["delete", "--tool", "http", "--each-tenant"])).await;
    assert_eq!(
        world.tells_administrator(&limit(&["list", "--each-tenant"])).await,
        "There are no limits.\n"
    );
    world.service.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_says_what_was_wrong_which_field_and_what_to_do() {
    let world = world().await;
    let id = world.submit("ask", &json!({"question": "?"})).await;
    world.until(&id, blocked).await;
    let cases: [(&[&str], &[&str]); 9] = [
        (&["submit", "drill.nops"], &["drill.nops", "which  flow", "did you mean drill.noops"]),
        (
            &["submit", "ask", "{\"question\": 1}"],
            &["input/question", "string", "schema_violation"],
        ),
        (&["submit", "ask", "hello"], &["is not JSON", "quotes"]),
        (&["submit", "ask", "@/nowhere"], &["/nowhere can not be read"]),
        (&["submit", "plan"], &["does not fit plan@1", "schema_violation"]),
        (&["signal", &id, "wrong"], &["waits for answer", "which  key", "nobody_waits"]),
        (&["resolve", &id, "--step", "1", "--abandon"], &["which  step", "effect_known"]),
        (&["show", "ffff"], &["no job has an id that begins with ffff", "tenure job list"]),
        (&["list", "--status", "banana"], &["there are queued, running", "which  status"]),
    ];
    for (words, expected) in cases {
        let said = world.refuses(words).await;
        expected.iter().for_each(|e| assert!(said.contains(e), "{words:?}: {e:?} in {said}"));
    }
    let cancelled = world.says(&["cancel", &id]).await;
    assert!(cancelled.contains("accepted"));
    world.until(&id, |j| j["is_final"] == true).await;
    assert!(world.refuses(&["approve", &id]).await.contains("asks nobody anything"));
    assert!(world.refuses(&["approve", &id, "answer"]).await.contains("job_finished"));
    world.service.stop().await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_said_so_with_what_to_do() {
    let said = typed("http://127.0.0.1:1", &["list"]).await.unwrap_err().to_string();
    assert!(
        said.contains("no server at http://127.0.0.1:1") && said.contains("tenure up"),
        "{said}"
    );
    let said = typed("banana", &["list"]).await.unwrap_err().to_string();
    assert!(said.contains("is not the address of a server"), "{said}");
    let away = ["list", "--api-key", "tnr_x"];
    let said = typed("http://example.com", &away).await.unwrap_err().to_string();
    assert!(said.contains("clear text"), "{said}");
}
