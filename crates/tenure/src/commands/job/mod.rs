//! `tenure job`: jobs of a server, over HTTP. Nothing here knows a store: what the CLI can do, every program can.

pub mod args;
mod bulk;
pub mod client;
pub(super) mod follow;
pub(super) mod text;

use super::{Failure, files, ids};
use crate::{terminal, times};
use args::{Action, Job};
use client::Api;
use serde_json::{Map, Value, json};
use std::{path::Path, time::Duration};
use tenure_edge::SystemClock;
use tenure_jobs::view::{EventView, JobView, Replayed, Timeline, Verification, render_text};
use tenure_kernel::runtime::Clock as _;
use tenure_steps::events::WaitKind;

/// How long one request waits for a job; then it asks again.
const WAIT: Duration = Duration::from_secs(30);

/// Does what was asked for.
pub async fn run(options: &Job, json: bool) -> Result<String, Failure> {
    let cli = Cli { api: Api::new(&options.server, json)?, by: options.server.by.clone(), json };
    match &options.action {
        Action::Submit(o) => cli.submit(o).await,
        Action::List(o) => cli.list(o).await,
        Action::Show(o) => cli.show(&o.id).await,
        Action::Trace(o) => cli.trace(&o.id).await,
        Action::Events(o) => cli.events(o).await,
        Action::Watch(o) => {
            let id = cli.id(&o.id).await?;
            follow::follow(&cli.api, &id, 1, json).await
        }
        Action::Signal(o) => cli.signal(o).await,
        Action::Approve(o) => cli.decide(o, "approve").await,
        Action::Reject(o) => cli.decide(o, "reject").await,
        Action::Cancel(o) => cli.ask(&o.job.id, "cancel", o.why.as_deref()).await,
        Action::Pause(o) => cli.ask(&o.job.id, "pause", o.why.as_deref()).await,
        Action::Resume(o) => cli.ask(&o.job.id, "resume", o.why.as_deref()).await,
        Action::Discard(o) => cli.ask(&o.id, "discard", None).await,
        Action::Retry(o) => cli.retry(o).await,
        Action::Fork(o) => cli.fork(o).await,
        Action::Resolve(o) => cli.resolve(o).await,
        Action::Verify(o) => cli.verify(&o.id).await,
        Action::Replay(o) => cli.replay(&o.id).await,
        Action::Why(o) => cli.why(&o.id).await,
        Action::Bulk(o) => cli.bulk(o).await,
    }
}

struct Cli {
    api: Api,
    by: Option<String>,
    json: bool,
}

/// A body of the fields that have a value.
pub(super) fn fields<const N: usize>(all: [(&str, Option<Value>); N]) -> Value {
    let given = all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(given.collect::<Map<_, _>>())
}

fn labels(given: &[(String, String)]) -> Map<String, Value> {
    given.iter().map(|(name, value)| (name.clone(), json!(value))).collect()
}

/// A body with one more field, whose JSON is not touched.
fn with_plan(body: &Value, plan: &str) -> String {
    let body = body.to_string();
    format!("{{\"plan\":{plan},{}", body.trim_start_matches('{'))
}

/// JSON from an argument, a file or standard input.
pub(super) fn input(text: Option<&str>) -> Result<Value, Failure> {
    let (whence, text) = match text {
        None => return Ok(Value::Null),
        Some("-") => ("standard input", files::read(Path::new("-"))?),
        Some(text) => match text.strip_prefix('@') {
            Some(file) => (file, files::read(Path::new(file))?),
            None => ("the argument", text.to_owned()),
        },
    };
    serde_json::from_str(&text).map_err(|e| {
        Failure::System(format!(
            "{whence} is not JSON: {e}\n        a text needs its quotes: '\"like this\"'; @FILE reads a file, - standard input"
        ))
    })
}

impl Cli {
    /// The API's JSON, or the text.
    fn say(&self, answer: &Value, text: impl FnOnce() -> String) -> String {
        if self.json { format!("{answer}\n") } else { text() }
    }

    /// The whole id.
    async fn id(&self, given: &str) -> Result<String, Failure> {
        whole_id(&self.api, given).await
    }

    async fn submit(&self, o: &args::Submit) -> Result<String, Failure> {
        // The text of a plan goes as it is, so that the server sees a key that stands twice.
        let plan = o.plan.as_deref().map(files::read).transpose()?;
        let (flow, given) = match &plan {
            Some(_) => (None, o.flow.as_deref()),
            None => (o.flow.as_deref(), o.input.as_deref()),
        };
        let body = fields([
            ("batch", o.batch.as_ref().map(|key| {
                json!({ "key": key, "max": o.max, "within_seconds": o.within })
            })),
            ("debounce", o.debounce.as_ref().map(|key| {
                json!({ "key": key, "quiet_seconds": o.quiet, "within_seconds": o.within })
            })),
            ("flow", flow.map(|f| json!(f))),
            ("input", Some(input(given)?)),
            ("version", o.flow_version.map(Value::from)),
            ("priority", Some(json!(o.priority))),
            ("must_end_in_seconds", o.must_end_in.map(Value::from)),
            ("start_in_seconds", o.start_in.map(Value::from)),
            ("start_at", o.start_at.as_ref().map(|t| json!(t))),
            (
                "gate",
                o.gate.as_ref().map(|name| match o.gate_limit {
                    Some(limit) => json!({ "name": name, "limit": limit }),
                    None => json!(name),
                }),
            ),
            ("queue", o.queue.as_ref().map(|q| json!(q))),
            ("needs", (!o.needs.is_empty()).then(|| json!(o.needs))),
            ("labels", (!o.labels.is_empty()).then(|| Value::Object(labels(&o.labels)))),
            ("key", o.key.as_ref().map(|k| json!(k))),
            ("tenant", o.tenant.as_ref().map(|t| json!(t))),
            ("by", self.by.as_ref().map(|b| json!(b))),
        ]);
        let made = match plan {
            Some(plan) => self.api.post_text(&["jobs"], &[], &with_plan(&body, &plan)).await?,
            None => self.api.post(&["jobs"], &body).await?,
        };
        self.made(made, o.wait).await
    }

    /// A job that was just made, or its end.
    async fn made(&self, made: Value, wait: Option<f64>) -> Result<String, Failure> {
        if let Some(batch) = made["batch"].as_str() {
            return Ok(self.say(&made, || {
                format!(
                    "{batch}\nIt is collected. `tenure batch show {batch}` says what becomes of it.\n"
                )
            }));
        }
        let id = made["id"].as_str().unwrap_or_default().to_owned();
        let Some(wait) = wait else {
            let (status, flow) = (&made["status"], &made["flow"]);
            return Ok(self.say(&made, || {
                let status = status.as_str().unwrap_or("");
                match made["existed"] == true {
                    true => {
                        format!("{id}\nIt was there already under this key, and is {status}.\n")
                    }
                    false => format!(
                        "{id}\n{} is {status}. `tenure job show {id}` says more.\n",
                        flow.as_str().unwrap_or("")
                    ),
                }
            }));
        };
        let mut left = Duration::try_from_secs_f64(wait).unwrap_or(Duration::MAX);
        loop {
            let turn = left.min(WAIT);
            let job = self.api.wait(&["jobs", &id], turn).await?;
            left = left.saturating_sub(turn);
            if job["is_final"] == true || left.is_zero() {
                return self.ended(&job);
            }
        }
    }

    /// The output of a completed job; everything else is an error for whoever waits.
    fn ended(&self, answer: &Value) -> Result<String, Failure> {
        let job: JobView = text::read(answer.clone())?;
        let said = self.say(answer, || {
            let output = job.output.clone().unwrap_or(Value::Null);
            format!("{}\n{}\n", job.id, serde_json::to_string_pretty(&output).unwrap_or_default())
        });
        if job.status == "completed" {
            return Ok(said);
        }
        if self.json {
            terminal::print(&said);
        }
        let why = answer["why"].as_str().unwrap_or("");
        let why = times::local(why);
        Err(Failure::of_wait(job.is_final, format!("job {} is {}: {why}", job.id, job.status)))
    }

    async fn list(&self, o: &args::List) -> Result<String, Failure> {
        let mut query = vec![("limit", o.limit.to_string())];
        query.extend(o.before.clone().map(|b| ("before", b)));
        query.extend(o.status.clone().map(|s| ("status", s)));
        query.extend(o.flow.clone().map(|f| ("flow", f)));
        query.extend(o.tenant.clone().map(|t| ("tenant", t)));
        query.extend(o.name.clone().map(|n| ("name", n)));
        query.extend(o.key.clone().map(|k| ("key", k)));
        if !o.labels.is_empty() {
            let words: Vec<String> = o.labels.iter().map(|(n, v)| format!("{n}={v}")).collect();
            query.push(("label", words.join(",")));
        }
        query.extend(o.since.clone().map(|m| ("created_after", m)));
        query.extend(o.until.clone().map(|m| ("created_before", m)));
        if o.attention {
            query.push(("attention", "true".to_owned()));
        }
        let path = if o.dead { "dead-letters" } else { "jobs" };
        let page = self.api.get(&[path], &query).await?;
        if self.json { Ok(format!("{page}\n")) } else { text::jobs(page, SystemClock.now()) }
    }

    async fn show(&self, id: &str) -> Result<String, Failure> {
        let id = self.id(id).await?;
        let job = self.api.get(&["jobs", &id], &[]).await?;
        if self.json {
            return Ok(format!("{job}\n"));
        }
        let steps = self.api.get(&["jobs", &id, "steps"], &[]).await?;
        text::job(job, text::read(steps)?)
    }

    async fn trace(&self, id: &str) -> Result<String, Failure> {
        let id = self.id(id).await?;
        let trace = self.api.get(&["jobs", &id, "trace"], &[]).await?;
        if self.json {
            return Ok(format!("{trace}\n"));
        }
        let timeline: Timeline = text::read(trace)?;
        let drawn = render_text(&timeline, text::width());
        Ok(format!("{}\n", drawn.trim_end()))
    }

    async fn events(&self, o: &args::Events) -> Result<String, Failure> {
        let id = self.id(&o.job.id).await?;
        if o.follow {
            return follow::follow(&self.api, &id, o.from, self.json).await;
        }
        let (mut out, mut from) = (String::new(), o.from);
        loop {
            let query = [("from", from.to_string()), ("limit", "1000".to_owned())];
            let page = self.api.get(&["jobs", &id, "events"], &query).await?;
            let next = page["next"].as_u64();
            let events: Vec<Value> = text::read(page["events"].clone())?;
            for event in events {
                // One event per line, whatever the form: a long stream is read by other programs.
                if self.json {
                    out.push_str(&format!("{event}\n"));
                } else {
                    out.push_str(&text::event(&text::read::<EventView>(event)?));
                }
            }
            match next {
                Some(next) => from = next,
                None => return Ok(out),
            }
        }
    }

    async fn signal(&self, o: &args::Signal) -> Result<String, Failure> {
        let id = self.id(&o.job.id).await?;
        let body = fields([
            ("key", Some(json!(o.key))),
            ("payload", Some(input(o.payload.as_deref())?)),
            ("early", Some(json!(o.early))),
            ("by", self.by.as_ref().map(|b| json!(b))),
        ]);
        let answer = self.api.post_once(&["jobs", &id, "signal"], &body).await?;
        Ok(self.say(&answer, || heard(&answer, &o.key)))
    }

    async fn decide(&self, o: &args::Decision, word: &str) -> Result<String, Failure> {
        let id = self.id(&o.job.id).await?;
        let key = match &o.key {
            Some(key) => key.clone(),
            None => self.only_question(&id).await?,
        };
        let body = fields([
            ("key", Some(json!(key))),
            ("comment", o.comment.as_ref().map(|c| json!(c))),
            ("by", self.by.as_ref().map(|b| json!(b))),
        ]);
        let answer = self.api.post(&["jobs", &id, word], &body).await?;
        Ok(self.say(&answer, || heard(&answer, &key)))
    }

    /// The one question that a job asks a person.
    async fn only_question(&self, id: &str) -> Result<String, Failure> {
        let job: JobView = text::read(self.api.get(&["jobs", id], &[]).await?)?;
        let asked = job.waits.iter().filter(|w| w.kind == WaitKind::Human);
        let keys: Vec<&str> = asked.map(|w| w.key.as_str()).collect();
        match keys[..] {
            [one] => Ok(one.to_owned()),
            [] => {
                Err(Failure::System(format!("job {id} is {} and asks nobody anything", job.status)))
            }
            _ => Err(Failure::System(format!(
                "job {id} asks several things: {}\n        say which: tenure job approve {id} KEY",
                keys.join(", ")
            ))),
        }
    }

    async fn ask(&self, id: &str, what: &str, why: Option<&str>) -> Result<String, Failure> {
        let id = self.id(id).await?;
        let body =
            fields([("why", why.map(Value::from)), ("by", self.by.as_ref().map(|b| json!(b)))]);
        let answer = self.api.post(&["jobs", &id, what], &body).await?;
        Ok(self.say(&answer, || match answer["outcome"].as_str() {
            Some("already") => format!("{what}: it is so already\n"),
            _ => format!("{what}: accepted; the job follows\n"),
        }))
    }

    async fn retry(&self, o: &args::Retry) -> Result<String, Failure> {
        let id = self.id(&o.job.id).await?;
        let by = self.by.as_ref().map(|b| json!(b));
        let repeat = o.repeat.then_some(Value::Bool(true));
        let version = o.flow_version.map(Value::from);
        let body = fields([("version", version), ("by", by), ("repeat", repeat)]);
        let made = self.api.post(&["jobs", &id, "retry"], &body).await?;
        self.made(made, o.wait).await
    }

    async fn fork(&self, o: &args::Fork) -> Result<String, Failure> {
        let id = self.id(&o.job.id).await?;
        let body = fields([
            ("step", Some(json!(o.step))),
            ("version", o.flow_version.map(Value::from)),
            ("repeat", o.repeat.then_some(Value::Bool(true))),
            ("by", self.by.as_ref().map(|b| json!(b))),
        ]);
        let made = self.api.post(&["jobs", &id, "fork"], &body).await?;
        self.made(made, None).await
    }

    async fn resolve(&self, o: &args::Resolve) -> Result<String, Failure> {
        let id = self.id(&o.job.id).await?;
        let (verdict, result) = match (&o.happened, o.did_not_happen) {
            (Some(result), _) => ("happened", Some(input(Some(result))?)),
            (None, true) => ("did_not_happen", None),
            (None, false) => ("abandoned", None),
        };
        let body = fields([
            ("step", Some(json!(o.step))),
            ("verdict", Some(json!(verdict))),
            ("result", result),
            ("note", o.note.as_ref().map(|n| json!(n))),
            ("correct", o.correct.then_some(Value::Bool(true))),
            ("by", self.by.as_ref().map(|b| json!(b))),
        ]);
        let answer = self.api.post(&["jobs", &id, "resolve"], &body).await?;
        Ok(self.say(&answer, || match answer["outcome"].as_str() {
            Some("duplicate") => "the same was said before\n".to_owned(),
            Some("recorded_after_the_end") => {
                format!(
                    "the job is over: it is kept beside its history, which stays as it is; `tenure job retry {id}` goes on from it\n"
                )
            }
            Some("corrected") => {
                format!("step {} is {verdict}, corrected; the job goes on from it\n", o.step)
            }
            _ => format!("step {} is {verdict}; the job goes on from it\n", o.step),
        }))
    }

    async fn verify(&self, id: &str) -> Result<String, Failure> {
        let id = self.id(id).await?;
        let answer = self.api.get(&["jobs", &id, "verify"], &[]).await?;
        let found: Verification = text::read(answer.clone())?;
        let said = self.say(&answer, || text::verification(&found));
        self.judged(found.ok, said, &format!("job {id} does not verify"))
    }

    async fn replay(&self, id: &str) -> Result<String, Failure> {
        let id = self.id(id).await?;
        let answer = self.api.get(&["jobs", &id, "replay"], &[]).await?;
        let shown: Replayed = text::read(answer.clone())?;
        let (ok, sentence) = text::replayed(&shown);
        let said = self.say(&answer, || sentence);
        self.judged(ok, said, &format!("job {id} does not replay"))
    }

    /// Something that was found to be wrong is printed all the same, and the exit code says so.
    fn judged(&self, ok: bool, said: String, wrong: &str) -> Result<String, Failure> {
        if ok {
            return Ok(said);
        }
        terminal::print(&said);
        Err(Failure::Found(wrong.to_owned()))
    }

    async fn why(&self, id: &str) -> Result<String, Failure> {
        let id = self.id(id).await?;
        let answer = self.api.get(&["jobs", &id, "why"], &[]).await?;
        Ok(self
            .say(&answer, || format!("{}\n", times::local(answer["why"].as_str().unwrap_or("")))))
    }
}

/// The whole id of a job, from a part of it.
pub(super) async fn whole_id(api: &Api, given: &str) -> Result<String, Failure> {
    ids::whole(api, ids::JOBS, given).await
}

fn heard(answer: &Value, key: &str) -> String {
    match answer["outcome"].as_str() {
        Some("kept") => format!("{key}: kept for a wait that is not open yet\n"),
        Some("duplicate") => format!("{key}: it was there before; nothing changed\n"),
        Some("unread") => format!("{key}: stored; the job has not read it yet\n"),
        _ => format!("{key}: heard; the job goes on\n"),
    }
}
