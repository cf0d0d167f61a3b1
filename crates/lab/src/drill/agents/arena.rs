//! The world of a case: an agent, a model that counts, and workers that serve nobody else.

use super::witness::{Account, ENDS, Expected, judge};
use crate::drill::{
    ground::{Ground, until},
    matrix::Witnessed,
    processes::Hand,
};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::Duration;
use tenure::commands::{Failure, job::client::Api};
use tenure_tools::scripted::{Gate, Reply, Script, Server};

/// What the agent is told, and what its model then does.
pub const ACT: &str = "please act";
/// The model asks somebody outside.
pub const ASK: &str = "please ask";
/// The model asks two outside at once.
pub const ASK_TWO: &str = "please ask two";
/// The model answers at once.
pub const NEXT: &str = "what is next";
/// What the model delivers in the end.
pub const DONE: &str = "it is done";

/// The world of a case.
pub struct Arena {
    /// Its processes and the world outside.
    pub ground: Ground,
    /// The model, which counts what it is asked.
    pub model: Server,
    agent: String,
}

/// A turn that acts outside once and delivers.
pub fn acting(class: &str) -> Expected {
    Expected { acts: vec![("it".into(), class.into())], ..asking() }
}

/// A turn that asks outside once and delivers.
pub fn asking() -> Expected {
    Expected {
        status: &["success"],
        error: None,
        content: Some(json!(DONE)),
        acts: vec![],
        asked: 2..=2,
        results: vec![],
        may_leave_waits: false,
        rules: &[],
    }
}

/// A turn that was ended by this, with a fallback.
pub fn ended(status: &'static [&'static str], error: &'static str) -> Expected {
    Expected { status, error: Some(error), content: None, may_leave_waits: true, ..asking() }
}

/// The model wants the tool that acts outside, by one of this class.
pub fn calls_act(ground: &Ground, class: &str) -> Reply {
    let lines = json!([{ "act": { "class": class, "name": "it" } }]);
    let act = json!({ "outside": ground.outside.address(), "lines": lines });
    Reply::tool_call("c1", "act", &act)
}

impl Arena {
    /// An agent whose tool acts outside by one of this class. With a gate its model does not answer until it is opened.
    pub async fn open(ground: Ground, class: &str, gate: Option<&Gate>) -> Result<Self, Failure> {
        let held = |reply: Reply| match gate {
            Some(gate) => reply.held(gate),
            None => reply,
        };
        let about = json!({ "about": "rain" });
        let two = Reply::tool_call("c1", "oracle", &about).and_tool_call("c2", "oracle", &about);
        let script = Script::new()
            .when(ACT, held(calls_act(&ground, class)))
            .when(ASK_TWO, held(two))
            .when(ASK, held(Reply::tool_call("c1", "oracle", &about)))
            .otherwise(Reply::text(DONE));
        Arena::with(ground, script).await
    }

    /// An agent whose model says this.
    pub async fn with(mut ground: Ground, script: Script) -> Result<Self, Failure> {
        ground.turns = true;
        let model = Server::start(script).await?;
        let agent = format!("drill-{:x}", tenure::service::random());
        let mut spec = json!({
            "target": ground.target(),
            "channel": "drill",
            "output_box": "drill",
            "profile": {
                "model": { "name": "scripted", "base_url": model.base_url() },
                "tools": [
                    { "name": "act", "run": { "flow": ground.flow() } },
                    { "name": "oracle", "run": { "external": {} } },
                ],
            },
        });
        if let Some(tenant) = &ground.base.tenant {
            spec["tenant"] = json!(tenant);
        }
        ground.api().put(&["agents", &agent], &spec).await?;
        ground.base.agents().push(agent.clone());
        Ok(Arena { ground, model, agent })
    }

    /// A worker process; `point` is what it does to itself.
    pub fn worker(&self, point: Option<&str>) -> Result<Hand, Failure> {
        self.ground.worker(point)
    }

    /// A worker that is ready. One that still begins gives up when the server goes away.
    pub async fn ready_worker(&self) -> Result<Hand, Failure> {
        self.ground.ready_worker(None).await
    }

    /// Sends the agent work.
    pub async fn send(&self, text: &str) -> Result<String, Failure> {
        let mut body = json!({ "message": text });
        if let Some(tenant) = &self.ground.base.tenant {
            body["tenant"] = json!(tenant);
        }
        let sent = self.ground.api().post(&["agents", &self.agent, "turns"], &body).await?;
        Ok(sent["id"].as_str().unwrap_or_default().to_owned())
    }

    /// A turn as the API shows it; `None` while the server does not answer.
    pub async fn turn(&self, id: &str) -> Option<Value> {
        self.ground.api().get(&["turns", id], &[]).await.ok()
    }

    /// Waits for a status. Gives up early if the turn is over and has another.
    pub async fn until_status(&self, id: &str, status: &str) -> Option<Value> {
        let found = until(self.ground.base.patience, || async {
            let turn = self.turn(id).await?;
            (turn["status"] == status || turn["is_final"] == true).then_some(turn)
        });
        found.await.filter(|t| t["status"] == status)
    }

    /// Waits for the end of a turn, whichever.
    pub async fn until_over(&self, id: &str) -> Option<Value> {
        let found = until(self.ground.base.patience, || async {
            self.turn(id).await.filter(|t| t["is_final"] == true)
        });
        found.await
    }

    /// Waits until somebody else goes on with the turn after a worker was lost, and says how long that took: a claim
    /// above this epoch, or the end.
    pub async fn taken_over(&self, id: &str, before: u64) -> Option<Duration> {
        let rt = tenure_edge::TokioRuntime::current();
        let mono = || tenure_kernel::runtime::Runtime::mono(&rt);
        let from = mono();
        let taken = |e: &Value| {
            let is_it = e["name"] == "tenure_claimed" || ENDS.iter().any(|n| e["name"] == *n);
            is_it && e["epoch"].as_u64() > Some(before)
        };
        until(self.ground.base.patience, || async {
            self.events(id).await.iter().any(taken).then_some(())
        })
        .await?;
        Some(mono().saturating_sub(from))
    }

    /// The epoch of the newest event.
    pub async fn epoch(&self, id: &str) -> u64 {
        self.events(id).await.last().and_then(|e| e["epoch"].as_u64()).unwrap_or_default()
    }

    /// The events of a turn.
    pub async fn events(&self, id: &str) -> Vec<Value> {
        let (mut all, mut from) = (Vec::new(), 1u64);
        loop {
            let query = [("from", from.to_string()), ("limit", "1000".to_owned())];
            let page = self.ground.api().get(&["turns", id, "events"], &query).await;
            let Ok(page) = page else { return all };
            all.extend(page["events"].as_array().cloned().unwrap_or_default());
            match page["next"].as_u64() {
                Some(next) => from = next,
                None => return all,
            }
        }
    }

    /// Waits until so many events of a name are on record.
    pub async fn until_event(&self, id: &str, name: &str, count: usize) -> Result<(), Failure> {
        let found = until(self.ground.base.patience, || async {
            let events = self.events(id).await;
            (events.iter().filter(|e| e["name"] == name).count() >= count).then_some(())
        });
        found.await.ok_or_else(|| Failure::System(format!("turn {id} never recorded {name}")))
    }

    /// Says something to a turn: the status and the body of the answer.
    pub async fn say(&self, id: &str, what: &str, body: &str) -> Result<(u16, Value), Failure> {
        let api = self.ground.api();
        let request = api.request(Method::POST, &["turns", id, what]);
        let request = request.header("content-type", "application/json").body(body.to_owned());
        let response = request.send().await.map_err(|e| api.unreachable(&e))?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(|e| api.unreachable(&e))?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    /// A result that has to be accepted; asked again until somebody answers.
    pub async fn answer(&self, id: &str, wait: &str, result: &Value) -> Result<(), Failure> {
        let body = json!({ "wait": wait, "result": result }).to_string();
        let said = until(self.ground.base.patience, || async {
            self.say(id, "results", &body).await.ok()
        });
        match said.await {
            Some((200 | 202, _)) => Ok(()),
            other => Err(Failure::System(format!("a good result was answered {other:?}"))),
        }
    }

    /// How often the model was asked for a task.
    pub fn asked(&self, task: &str) -> usize {
        let about = |body: &Value| {
            let messages = body["messages"].as_array().into_iter().flatten();
            messages.into_iter().any(|m| m["role"] == "user" && m["content"] == task)
        };
        self.model.requests().iter().filter(|r| about(&r.body)).count()
    }

    async fn agent(&self) -> Value {
        let tenant = self.ground.base.tenant.clone().map(|t| ("tenant", t));
        let query: Vec<_> = tenant.into_iter().collect();
        self.ground.api().get(&["agents", &self.agent], &query).await.unwrap_or_default()
    }

    /// Waits for the end, sends the agent its next turn, and judges by everything that can be read then.
    pub async fn judged(
        &self,
        id: &str,
        task: &str,
        expected: &Expected,
    ) -> Result<Witnessed, Failure> {
        self.until_over(id).await;
        let next = self.send(NEXT).await?;
        self.until_over(&next).await;
        // The turn's end is read by its agent a moment later.
        let idle = || async { Some(self.agent().await).filter(|a| a["status"] == "idle") };
        let idle = until(self.ground.base.patience, idle).await;
        if let Some(bus) = &self.ground.bus {
            let told = || {
                bus.heard()
                    .iter()
                    .any(|h| h.subject.ends_with(".task") && h.body["agent_turn_id"] == next)
            };
            until(self.ground.base.patience, || async { told().then_some(()) }).await;
        }
        let account = Account {
            turn: self.turn(id).await,
            events: self.events(id).await,
            asked: self.asked(task),
            done: self.ground.outside.done(),
            next: self.turn(&next).await,
            agent: match idle {
                Some(agent) => agent,
                None => self.agent().await,
            },
            heard: self.ground.bus.as_ref().map(|b| b.heard()),
        };
        Ok(judge(expected, &account))
    }
}

/// Leaves nothing of an agent behind on somebody's deployment: its turns are stopped, and it takes no more.
pub async fn leave(api: &Api, tenant: Option<&str>, agent: &str) -> Result<(), Failure> {
    let mut query = vec![];
    query.extend(tenant.map(|t| ("tenant", t.to_owned())));
    api.delete(&["agents", agent], &query).await?;
    let open = [("agent", agent.to_owned()), ("status", "open".to_owned())];
    let page = api.get(&["turns"], &open).await?;
    for turn in page["turns"].as_array().into_iter().flatten() {
        let id = turn["id"].as_str().unwrap_or_default();
        let why = json!({ "why": "the drill that made it is over" });
        // It may have ended meanwhile.
        let _ = api.post(&["turns", id, "stop"], &why).await;
    }
    Ok(())
}
