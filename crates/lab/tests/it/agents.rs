//! Agents as people meet them: typed at a terminal, and pressed in the console. A server with workers in this process, a
//! scripted model, one tool that is a job and one that somebody outside answers.

use crate::{
    console::{World, settings},
    console_cdp::Tab,
    support::{complained, run, said},
};
use serde_json::{Value, json};
use std::process::Output;
use tempfile::TempDir;
use tenure_lab::lab_process::lab_program;
use tenure_proving::patience;
use tenure_tools::scripted::{Reply, Script, Server};

struct Town {
    world: World,
    model: Server,
    dir: TempDir,
}

impl Town {
    /// The model calls a job when it is told to count, asks outside when it is told to ask, and ends otherwise.
    async fn start() -> Self {
        let script = Script::new()
            .when("please count", Reply::tool_call("c1", "count", &json!({ "steps": 2 })))
            .when("please ask", Reply::tool_call("c2", "oracle", &json!({ "about": "rain" })))
            .otherwise(Reply::text("it is done, <script>alert(1)</script>"));
        let model = Server::start(script).await.expect("the model starts");
        let home = tempfile::tempdir().expect("a directory");
        let served = lab_program().serve(&settings(&home, &[]), true).await.expect("it starts");
        let dir = tempfile::tempdir().expect("a directory");
        Town { world: World::around(served, home).await, model, dir }
    }

    fn profile(&self) -> String {
        json!({
            "model": { "name": "scripted", "base_url": self.model.base_url() },
            "tools": [
                { "name": "count", "run": { "flow": "drill.noops@1" } },
                { "name": "oracle", "run": { "external": {} } }
            ]
        })
        .to_string()
    }

    fn type_in(&self, args: &[&str]) -> Output {
        let url = self.world.service.url();
        let mut all = args.to_vec();
        all.extend(["--server", &url]);
        tokio::task::block_in_place(|| run(&all, self.dir.path()))
    }

    fn typed(&self, args: &[&str]) -> String {
        let output = self.type_in(args);
        assert!(output.status.success(), "{args:?}: {}{}", said(&output), complained(&output));
        said(&output)
    }

    fn json(&self, args: &[&str]) -> Value {
        let mut all = args.to_vec();
        all.push("--json");
        serde_json::from_str(&self.typed(&all)).unwrap_or_else(|e| panic!("{args:?}: {e}"))
    }

    /// Sends, and waits until the turn stands there.
    async fn turn(&self, text: &str, status: &str) -> String {
        let sent = self.json(&["agent", "send", "ada", text]);
        let id = sent["id"].as_str().expect("an id").to_owned();
        patience::until(&format!("{id} to be {status}"), async || {
            self.json(&["turn", "get", &id])["status"] == status
        })
        .await;
        id
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_are_set_sent_watched_answered_and_stopped_at_a_terminal() {
    let town = Town::start().await;
    assert!(town.typed(&["agent", "list"]).contains("There are no agents"));
    let profile = town.profile();
    let set = town.typed(&["agent", "set", "ada", "--box", "out", &profile]);
    assert!(set.starts_with("ada is idle") && set.contains("output box"), "{set}");
    let bad = town.type_in(&["agent", "set", "a b"]);
    assert!(complained(&bad).contains("which  name"), "{}", complained(&bad));

    let done = town.typed(&["agent", "send", "ada", "please count", "--id", "n-1", "--wait"]);
    assert!(done.contains("it is done"), "{done}");
    let again = town.typed(&["agent", "send", "ada", "please count", "--id", "n-1"]);
    assert!(again.contains("It was sent before"), "{again}");
    let id = again.lines().next().expect("an id").to_owned();
    let other = town.type_in(&["agent", "send", "ada", "something else", "--id", "n-1"]);
    assert!(complained(&other).contains("other_input"), "{}", complained(&other));
    let told = town.typed(&["turn", "timeline", &id]);
    for words in ["suspended, waits for count", "count job ", "ends: success"] {
        assert!(told.contains(words), "{words:?} in {told}");
    }
    let watched = town.typed(&["turn", "watch", &id[..30]]);
    assert!(watched.contains("the turn is success"), "{watched}");
    assert!(town.typed(&["turn", "why", &id]).contains("Ended as success"));
    assert!(town.typed(&["turn", "deliverable", &id]).contains("it is done"));

    let asks = town.turn("please ask", "suspended").await;
    let shown = town.typed(&["turn", "get", &asks]);
    assert!(shown.contains("wait 1.1") && shown.contains("tool_timeout of 1.1"), "{shown}");
    let would = town.typed(&["watchdog", "--turn", &asks]);
    assert!(would.contains("tool_timeout 1.1") && would.contains("must_end_by"), "{would}");
    assert!(town.typed(&["agent", "get", "ada"]).starts_with("ada is suspended"));
    let wrong = town.type_in(&["turn", "result", &asks, "9.9", "1"]);
    assert!(complained(&wrong).contains("unknown_call"), "{}", complained(&wrong));
    assert!(town.typed(&["turn", "result", &asks, "1.1", "{\"rain\": true}"]).contains("accepted"));
    patience::until("its end", async || town.json(&["turn", "get", &asks])["is_final"] == true)
        .await;
    let late = town.type_in(&["turn", "result", &asks, "1.1", "2"]);
    assert!(complained(&late).contains("turn_over"), "{}", complained(&late));
    let items = town.typed(&["inbox", "list", "--turn", &asks]);
    assert!(items.contains("tool_result") && items.contains("turn_over"), "{items}");
    let item = town.json(&["inbox", "list", "--turn", &asks, "--status", "error"]);
    let item = item["items"][0]["id"].as_str().expect("an item").to_owned();
    town.typed(&["inbox", "skip", &asks, &item]);
    let left = town.typed(&["inbox", "list", "--turn", &asks, "--status", "error"]);
    assert!(left.contains("nothing of the kind"), "{left}");

    let given_up = town.turn("please ask", "suspended").await;
    assert!(town.typed(&["turn", "resume", &given_up]).contains("accepted"));
    patience::until("it to go on", async || {
        town.json(&["turn", "get", &given_up])["is_final"] == true
    })
    .await;
    let forced = town.turn("please ask", "suspended").await;
    town.typed(&["turn", "force-finish", &forced, "--status", "partial", "{\"by\": \"hand\"}"]);
    patience::until("its end", async || {
        town.json(&["turn", "get", &forced])["status"] == "partial"
    })
    .await;
    assert!(town.typed(&["turn", "deliverable", &forced]).contains("hand"));
    town.typed(&["agent", "pause", "ada"]);
    let waiting = town.turn("hello", "queued").await;
    // The turn is born before its agent has read of it.
    patience::until("its place in the line", async || {
        town.typed(&["agent", "inbox", "ada", "--status", "queued"]).contains(&waiting)
    })
    .await;
    town.typed(&["turn", "stop", &waiting, "--why", "enough"]);
    patience::until("its end", async || {
        town.json(&["turn", "get", &waiting])["status"] == "canceled"
    })
    .await;
    let listed = town.typed(&["turn", "list", "--agent", "ada", "--status", "canceled,partial"]);
    assert!(listed.contains(&waiting) && listed.contains(&forced), "{listed}");
    town.typed(&["agent", "remove", "ada"]);
    let gone = town.type_in(&["agent", "send", "ada", "hello"]);
    assert!(complained(&gone).contains("agent_removed"), "{}", complained(&gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn agents_and_turns_have_pages_that_escape_what_models_say() {
    let town = Town::start().await;
    let (_, empty) = town.world.get("/agents").await;
    assert!(empty.contains("No agent yet"), "{empty}");
    town.typed(&["agent", "set", "ada", "--box", "out", &town.profile()]);
    let done = town.turn("please count <img src=x onerror=alert(2)>", "success").await;
    let asks = town.turn("please ask", "suspended").await;
    let (_, list) = town.world.get("/agents").await;
    assert!(list.contains("/agents/ada?tenant=default") && list.contains("suspended"), "{list}");
    let (_, agent) = town.world.get("/agents/ada?tenant=default").await;
    for words in ["Send it work", "Inbox", "tool_result", "Last turns", &done[..8]] {
        assert!(agent.contains(words), "{words:?} in {agent}");
    }
    let (_, page) = town.world.get(&format!("/turns/{done}")).await;
    assert!(!page.contains("<script>alert(1)") && !page.contains("<img src=x"), "{page}");
    assert!(page.contains("&lt;script&gt;alert(1)") && page.contains("/jobs/"), "{page}");
    let job = page.split("/jobs/").nth(1).and_then(|r| r.get(..36)).expect("a job").to_owned();
    let (_, job) = town.world.get(&format!("/jobs/{job}")).await;
    assert!(job.contains("tool of turn") && job.contains(&format!("/turns/{done}")), "{job}");
    let (_, page) = town.world.get(&format!("/turns/{asks}")).await;
    for words in ["Hand in", "Wait no longer", "Finish it by hand", "data-until", "tool_timeout"] {
        assert!(page.contains(words), "{words:?} in {page}");
    }
    let profile = town.dir.path().join("profile");
    let Some(mut tab) = Tab::unless_fast(&profile).await else { return };
    let url = town.world.service.url();
    tab.go_live(&format!("{url}/agents")).await;
    tab.picture("agents").await;
    tab.go(&format!("{url}/agents/ada?tenant=default")).await;
    tab.until("document.querySelector('#inbox table')").await;
    tab.picture("agent").await;
    tab.go_live(&format!("{url}/turns/{asks}")).await;
    tab.picture("turn-suspended").await;
    tab.eval("document.querySelector('textarea[name=result]').value = '{\"rain\": true}'").await;
    tab.click("#moves button.go").await;
    tab.until("document.querySelector('.pill.big.completed')").await;
    tab.until("document.querySelector('#deliverable .card')").await;
    tab.picture("turn-done").await;
    assert_eq!(tab.complaints, Vec::<String>::new());
}
