//! What an agent's profile says to whoever runs its turns: which model, which words, which tools.
//!
//! It is JSON in the agent's head, checked when the agent is set, with all problems at once; the first step of a turn
//! takes a copy into its history, so that a turn goes on as it began.

use crate::{is_token, limits, words::After};
use serde_json::{Map, Value, json};
use std::time::Duration;

/// Ends the turn with its deliverable.
pub const SUBMIT: &str = "submit_result";
/// Asks another agent, and waits for its deliverable.
pub const DELEGATE: &str = "delegate";
/// Asks several agents at once, and waits for all of them.
pub const FORK_JOIN: &str = "fork_join";

/// Steps of a turn, unless the profile says otherwise.
pub const MAX_STEPS: u32 = 8;
/// The most that a profile may ask for.
const MAX_STEPS_MAX: u64 = 1_000;
/// How long a model may take for one step, all tries included.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(120);
const STEP_TIMEOUT_SECONDS_MAX: u64 = 3_600;
/// How long another agent is waited for, unless the call says otherwise.
pub const DELEGATE_TIMEOUT: Duration = Duration::from_secs(900);
/// Tools of one agent.
const TOOLS_MAX: usize = 64;

/// Where and how the model is asked. What is not said is the operator's.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    /// Which.
    pub name: Option<String>,
    /// Another address than the operator's. The operator's key is never sent there.
    pub base_url: Option<String>,
    /// The name of the secret that is sent to `base_url`.
    pub api_key_secret: Option<String>,
    /// The answer shows while it comes.
    pub stream: bool,
    /// Whatever else the server understands, as it is: `temperature`, `max_tokens`, …
    pub extra: Map<String, Value>,
}

/// How a tool is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Run {
    /// A job of this flow, with the arguments as its input.
    Flow {
        /// Its name.
        name: String,
        /// Its version.
        version: u32,
    },
    /// A job that calls this one tool.
    Tool(String),
    /// A turn of this agent: the arguments are its task.
    Agent(String),
    /// Somebody outside, who answers with a `tool_result`.
    External {
        /// Told on this subject, if there is one.
        subject: Option<String>,
    },
}

/// A tool of an agent.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolDef {
    /// As the model calls it.
    pub name: String,
    /// What the model reads about it.
    pub description: String,
    /// A JSON schema of its arguments.
    pub parameters: Value,
    /// How it is run.
    pub run: Run,
    /// Its own time: the longer of `suspend_timeout_seconds` and `timeout_seconds`.
    pub timeout_ms: Option<u64>,
    /// What happens after it.
    pub after: After,
}

/// What a profile says.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// See [`ModelSettings`].
    pub model: ModelSettings,
    /// The first thing that the model reads.
    pub instructions: String,
    /// Steps of a turn.
    pub max_steps: u32,
    /// How long the model may take for a step, all tries included.
    pub step_timeout: Duration,
    /// How long one try may take; half of a step unless the profile says otherwise. A request that hangs is given up then
    /// and made again.
    pub try_timeout: Option<Duration>,
    /// The turn ends with this tool and with nothing else.
    pub must_end_with: Option<String>,
    /// Its tools, beside the built-in ones.
    pub tools: Vec<ToolDef>,
    /// Agents that it may ask; `*` for all. None without it.
    pub delegates: Vec<String>,
}

impl Default for Profile {
    fn default() -> Self {
        Profile {
            model: ModelSettings::default(),
            instructions: String::new(),
            max_steps: MAX_STEPS,
            step_timeout: STEP_TIMEOUT,
            try_timeout: None,
            must_end_with: None,
            tools: Vec::new(),
            delegates: Vec::new(),
        }
    }
}

impl Profile {
    /// Whether it may ask this agent by its own choice.
    pub fn may_ask(&self, agent: &str) -> bool {
        self.delegates.iter().any(|d| d == "*" || d == agent)
    }

    /// See [`Profile::try_timeout`].
    pub fn one_try(&self) -> Duration {
        self.try_timeout.unwrap_or(self.step_timeout / 2)
    }

    /// A tool by name.
    pub fn tool(&self, name: &str) -> Option<&ToolDef> {
        self.tools.iter().find(|t| t.name == name)
    }

    /// The tool that ends a turn.
    pub fn last_tool(&self) -> &str {
        self.must_end_with.as_deref().unwrap_or(SUBMIT)
    }

    /// What the model is offered, in the words of the chat protocol; on the last step only what ends the turn.
    pub fn offered(&self, last_step: bool) -> Vec<Value> {
        let function = |name: &str, description: &str, parameters: &Value| {
            json!({ "type": "function", "function": {
                "name": name, "description": description, "parameters": parameters,
            }})
        };
        let mut all: Vec<(&str, Value)> = self
            .tools
            .iter()
            .map(|t| (t.name.as_str(), function(&t.name, &t.description, &t.parameters)))
            .collect();
        all.push((SUBMIT, function(SUBMIT, SUBMIT_DOC, &submit_parameters())));
        if !self.delegates.is_empty() {
            all.push((DELEGATE, function(DELEGATE, DELEGATE_DOC, &delegate_parameters())));
            all.push((FORK_JOIN, function(FORK_JOIN, FORK_JOIN_DOC, &fork_join_parameters())));
        }
        let last = self.last_tool();
        all.into_iter().filter(|(name, _)| !last_step || *name == last).map(|(_, f)| f).collect()
    }
}

const SUBMIT_DOC: &str =
    "Ends your turn and delivers its result. Call it alone, when everything is done.";
const DELEGATE_DOC: &str = "Gives a task to another agent and waits for its result.";
const FORK_JOIN_DOC: &str =
    "Gives several tasks to other agents at once and waits for all results.";

/// The arguments of [`SUBMIT`].
pub fn submit_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "result": { "description": "What you deliver: a text or any JSON." },
            "status": { "enum": ["success", "partial", "failed"] },
        },
        "required": ["result"],
        "additionalProperties": false,
    })
}

/// The arguments of [`DELEGATE`].
pub fn delegate_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "agent": { "type": "string" },
            "instruction": { "type": "string", "minLength": 1 },
            "timeout_seconds": { "type": "integer", "minimum": 1 },
        },
        "required": ["agent", "instruction"],
        "additionalProperties": false,
    })
}

/// The arguments of [`FORK_JOIN`].
pub fn fork_join_parameters() -> Value {
    json!({
        "type": "object",
        "properties": {
            "tasks": {
                "type": "array", "minItems": 1, "maxItems": limits::JOIN_MAX,
                "items": {
                    "type": "object",
                    "properties": {
                        "agent": { "type": "string" },
                        "instruction": { "type": "string", "minLength": 1 },
                    },
                    "required": ["agent", "instruction"],
                    "additionalProperties": false,
                },
            },
            "fail_fast": { "type": "boolean" },
            "deadline_seconds": { "type": "integer", "minimum": 1 },
        },
        "required": ["tasks"],
        "additionalProperties": false,
    })
}

/// Reads a profile. All problems at once, each with its place.
pub fn check(profile: &Value) -> Result<Profile, Vec<String>> {
    read(profile, true)
}

/// Reads a profile that is on record. The schemas of its tools were judged when it was set, perhaps by an older version: they
/// are not judged again.
pub fn recorded(profile: &Value) -> Result<Profile, Vec<String>> {
    read(profile, false)
}

fn read(profile: &Value, judges_schemas: bool) -> Result<Profile, Vec<String>> {
    let mut reader = Reader { problems: Vec::new(), judges_schemas };
    let read = reader.profile(profile);
    match reader.problems.is_empty() {
        true => Ok(read),
        false => Err(reader.problems),
    }
}

struct Reader {
    problems: Vec<String>,
    judges_schemas: bool,
}

impl Reader {
    fn bad(&mut self, at: &str, why: impl std::fmt::Display) {
        self.problems.push(if at.is_empty() { why.to_string() } else { format!("{at}: {why}") });
    }

    /// The members of an object; whatever else it has is a problem.
    fn object<'v>(
        &mut self,
        at: &str,
        value: &'v Value,
        known: &[&str],
    ) -> Option<&'v Map<String, Value>> {
        let Some(map) = value.as_object() else {
            self.bad(at, "it has to be an object");
            return None;
        };
        for name in map.keys().filter(|n| !known.contains(&n.as_str())) {
            self.bad(at, format!("{name:?} is not known here; known are {}", known.join(", ")));
        }
        Some(map)
    }

    fn text(&mut self, at: &str, value: Option<&Value>) -> Option<String> {
        match value? {
            Value::String(text) => Some(text.clone()),
            _ => {
                self.bad(at, "it has to be a text");
                None
            }
        }
    }

    fn number(&mut self, at: &str, value: Option<&Value>, max: u64) -> Option<u64> {
        let value = value?;
        match value.as_u64().filter(|n| (1..=max).contains(n)) {
            Some(n) => Some(n),
            None => {
                self.bad(at, format!("it has to be a whole number from 1 to {max}"));
                None
            }
        }
    }

    fn profile(&mut self, value: &Value) -> Profile {
        let mut profile = Profile::default();
        if value.is_null() {
            return profile;
        }
        let size = value.to_string().len();
        // What is on record has the schemas of the catalogue in it.
        if self.judges_schemas && size > limits::PROFILE_BYTES_MAX {
            self.bad("", format!("{size} bytes, the limit is {}", limits::PROFILE_BYTES_MAX));
        }
        let known = [
            "model",
            "instructions",
            "max_steps",
            "step_timeout_seconds",
            "try_timeout_seconds",
            "must_end_with",
            "tools",
            "delegates",
            "settings",
        ];
        let Some(map) = self.object("", value, &known) else { return profile };
        if let Some(model) = map.get("model") {
            profile.model = self.model(model);
        }
        profile.instructions =
            self.text("instructions", map.get("instructions")).unwrap_or_default();
        if let Some(n) = self.number("max_steps", map.get("max_steps"), MAX_STEPS_MAX) {
            profile.max_steps = u32::try_from(n).unwrap_or(u32::MAX);
        }
        let place = "step_timeout_seconds";
        if let Some(n) = self.number(place, map.get(place), STEP_TIMEOUT_SECONDS_MAX) {
            profile.step_timeout = Duration::from_secs(n);
        }
        let place = "try_timeout_seconds";
        let seconds = self.number(place, map.get(place), STEP_TIMEOUT_SECONDS_MAX);
        profile.try_timeout = seconds.map(Duration::from_secs);
        if profile.try_timeout.is_some_and(|t| t > profile.step_timeout) {
            self.bad(place, "one try may not take longer than the step (step_timeout_seconds)");
        }
        if let Some(tools) = map.get("tools") {
            profile.tools = self.tools(tools);
        }
        if let Some(delegates) = map.get("delegates") {
            profile.delegates = self.delegates(delegates);
        }
        profile.must_end_with = self.text("must_end_with", map.get("must_end_with"));
        if let Some(last) = profile.must_end_with.clone()
            && last != SUBMIT
        {
            match profile.tool(&last).map(|t| t.after) {
                Some(After::Terminate) => {}
                Some(After::Suspend) => {
                    self.bad(
                        "must_end_with",
                        format!(
                            "{last} does not end a turn: its after_execution has to be terminate"
                        ),
                    );
                }
                None => self.bad("must_end_with", format!("there is no tool {last:?}")),
            }
        }
        if map.get("settings").is_some_and(|s| !s.is_object()) {
            self.bad("settings", "it has to be an object");
        }
        profile
    }

    fn model(&mut self, value: &Value) -> ModelSettings {
        let mut model = ModelSettings::default();
        if let Value::String(name) = value {
            model.name = Some(name.clone());
            return model;
        }
        let Some(map) = value.as_object() else {
            self.bad("model", "it has to be a name or an object");
            return model;
        };
        model.name = self.text("model.name", map.get("name"));
        model.base_url = self.text("model.base_url", map.get("base_url"));
        model.api_key_secret = self.text("model.api_key_secret", map.get("api_key_secret"));
        if let Some(url) = &model.base_url
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            self.bad("model.base_url", "it has to begin with http:// or https://");
        }
        if model.api_key_secret.is_some() && model.base_url.is_none() {
            self.bad(
                "model.api_key_secret",
                "the operator's address has the operator's key; name a base_url",
            );
        }
        match map.get("stream") {
            None => {}
            Some(Value::Bool(on)) => model.stream = *on,
            Some(_) => self.bad("model.stream", "it has to be true or false"),
        }
        let own = ["name", "base_url", "api_key_secret", "stream"];
        let ours = ["messages", "tools", "model", "n"];
        for (name, value) in map.iter().filter(|(n, _)| !own.contains(&n.as_str())) {
            match ours.contains(&name.as_str()) {
                true => self.bad(&format!("model.{name}"), "it is said by the worker"),
                false => {
                    model.extra.insert(name.clone(), value.clone());
                }
            }
        }
        model
    }

    fn delegates(&mut self, value: &Value) -> Vec<String> {
        let Some(list) = value.as_array() else {
            self.bad("delegates", "it has to be a list of agents, or [\"*\"]");
            return Vec::new();
        };
        let mut names = Vec::new();
        for (n, name) in list.iter().enumerate() {
            match name.as_str().filter(|name| *name == "*" || is_token(name)) {
                Some(name) => names.push(name.to_owned()),
                None => self.bad(&format!("delegates[{n}]"), "it has to be an agent's name or *"),
            }
        }
        names
    }

    fn tools(&mut self, value: &Value) -> Vec<ToolDef> {
        let Some(list) = value.as_array() else {
            self.bad("tools", "it has to be a list");
            return Vec::new();
        };
        if list.len() > TOOLS_MAX {
            self.bad("tools", format!("{} tools, the limit is {TOOLS_MAX}", list.len()));
        }
        let mut tools: Vec<ToolDef> = Vec::new();
        for (n, value) in list.iter().enumerate() {
            let Some(tool) = self.tool(&format!("tools[{n}]"), value) else { continue };
            if tools.iter().any(|t| t.name == tool.name) {
                self.bad(&format!("tools[{n}].name"), format!("{:?} is there twice", tool.name));
            }
            tools.push(tool);
        }
        tools
    }

    fn tool(&mut self, at: &str, value: &Value) -> Option<ToolDef> {
        let known = ["name", "description", "parameters", "run", "options", "after_execution"];
        let map = self.object(at, value, &known)?;
        let name = self.text(&format!("{at}.name"), map.get("name")).unwrap_or_default();
        if !is_token(&name) {
            self.bad(&format!("{at}.name"), "it has to be 1 to 64 letters, digits, _ or -");
        }
        if [SUBMIT, DELEGATE, FORK_JOIN].contains(&name.as_str()) {
            self.bad(&format!("{at}.name"), format!("{name} is built in"));
        }
        let place = format!("{at}.description");
        let description = self.text(&place, map.get("description")).unwrap_or_default();
        let nothing = || json!({ "type": "object", "properties": {} });
        let parameters = map.get("parameters").cloned().unwrap_or_else(nothing);
        match parameters.is_object() {
            false => self.bad(&format!("{at}.parameters"), "it has to be a JSON schema"),
            true if self.judges_schemas => {
                if let Err(e) = tenure_schema::Schema::new(&parameters) {
                    self.bad(&format!("{at}.parameters"), format!("{e}; {}", e.fix()));
                }
            }
            true => {}
        }
        let after = match map.get("after_execution").map(Value::as_str) {
            None | Some(Some("suspend")) => After::Suspend,
            Some(Some("terminate")) => After::Terminate,
            Some(_) => {
                self.bad(&format!("{at}.after_execution"), "it has to be suspend or terminate");
                After::Suspend
            }
        };
        let timeout_ms = map.get("options").and_then(|o| self.options(&format!("{at}.options"), o));
        let run = match map.get("run") {
            Some(run) => self.run(&format!("{at}.run"), run),
            None => {
                self.bad(&format!("{at}.run"), "it is missing: flow, tool, agent or external");
                None
            }
        }?;
        Some(ToolDef { name, description, parameters, run, timeout_ms, after })
    }

    fn options(&mut self, at: &str, value: &Value) -> Option<u64> {
        let names = ["suspend_timeout_seconds", "timeout_seconds"];
        let map = self.object(at, value, &names)?;
        let day = 24 * 3_600;
        let seconds = names.map(|name| self.number(&format!("{at}.{name}"), map.get(name), day));
        seconds.into_iter().flatten().max().map(|s| s * 1_000)
    }

    fn run(&mut self, at: &str, value: &Value) -> Option<Run> {
        let map = self.object(at, value, &["flow", "tool", "agent", "external"])?;
        let (Some((how, what)), 1) = (map.iter().next(), map.len()) else {
            self.bad(at, "it has to be exactly one of flow, tool, agent and external");
            return None;
        };
        match (how.as_str(), what) {
            ("flow", Value::String(flow)) => {
                let parts = flow.rsplit_once('@').and_then(|(n, v)| Some((n, v.parse().ok()?)));
                match parts.filter(|(n, v): &(&str, u32)| !n.is_empty() && *v > 0) {
                    Some((name, version)) => Some(Run::Flow { name: name.to_owned(), version }),
                    None => {
                        self.bad(at, format!("{flow:?} has to be a flow and its version: name@1"));
                        None
                    }
                }
            }
            ("tool", Value::String(tool)) if !tool.is_empty() => Some(Run::Tool(tool.clone())),
            ("agent", Value::String(agent)) if is_token(agent) => Some(Run::Agent(agent.clone())),
            ("external", what) => {
                let map = self.object(&format!("{at}.external"), what, &["subject"])?;
                let place = format!("{at}.external.subject");
                let subject = self.text(&place, map.get("subject"));
                if subject.as_deref().is_some_and(|s| !is_subject(s)) {
                    self.bad(&place, "it has to be tokens between dots, without wildcards, and not one of evt., cmd.agent., tenure. or _INBOX.");
                }
                Some(Run::External { subject })
            }
            _ => {
                self.bad(at, format!("{how} has to be a name"));
                None
            }
        }
    }
}

/// Bytes of descriptions and schemas that a profile takes from elsewhere.
const TAKEN_BYTES_MAX: usize = 512 * 1024;

/// The tools of a profile that say nothing about their arguments or what they do, each with its place and how it is run. Whoever
/// knows more about a flow or tool of this name may say it ([`describe`]).
pub fn undescribed(profile: &Value) -> Vec<(usize, Run)> {
    let lacks = |n: &usize| {
        let tool = &profile["tools"][*n];
        tool.get("parameters").is_none() || tool.get("description").is_none()
    };
    let tools = recorded(profile).map(|p| p.tools).unwrap_or_default();
    tools.into_iter().map(|t| t.run).enumerate().filter(|(n, _)| lacks(n)).collect()
}

/// What is known about a flow or tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Described {
    /// What it does.
    pub description: String,
    /// The schema of its input.
    pub parameters: Value,
}

/// Puts what is known about tools into a profile, in the places where the profile says nothing.
pub fn describe(profile: &mut Value, known: Vec<(usize, Described)>) {
    let mut room = TAKEN_BYTES_MAX;
    for (n, of) in known {
        let Some(tool) = profile["tools"].get_mut(n).and_then(Value::as_object_mut) else {
            continue;
        };
        // The arguments of a call are an object.
        let is_object = of.parameters["type"] == "object";
        let parameters = Some(of.parameters).filter(|_| is_object);
        let description = Some(of.description).filter(|d| !d.is_empty()).map(Value::String);
        for (name, value) in [("description", description), ("parameters", parameters)] {
            let Some(value) = value.filter(|_| !tool.contains_key(name)) else { continue };
            let Some(left) = room.checked_sub(value.to_string().len()) else { continue };
            room = left;
            tool.insert(name.to_owned(), value);
        }
    }
}

impl Profile {
    /// The subjects on which its tools are told.
    pub fn subjects(&self) -> impl Iterator<Item = &str> {
        self.tools.iter().filter_map(|tool| match &tool.run {
            Run::External { subject } => subject.as_deref(),
            _ => None,
        })
    }
}

/// Whether a tool outside may be told on this subject: nobody speaks in our own name. Which of the others are for tools
/// is the operator's word (`agents.tool_subjects`).
fn is_subject(subject: &str) -> bool {
    let ours = ["evt.", "cmd.agent.", "tenure.", "_INBOX.", "$"];
    let ours = ours.iter().any(|p| subject.starts_with(p));
    !ours && subject.len() <= 128 && subject.split('.').all(is_token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_can_be_said() {
        let profile = check(&json!({
            "model": { "name": "m", "temperature": 0.2, "stream": true },
            "instructions": "Be brief.",
            "max_steps": 4,
            "step_timeout_seconds": 9,
            "try_timeout_seconds": 3,
            "must_end_with": "ship",
            "delegates": ["helper"],
            "tools": [
                { "name": "look", "run": { "flow": "look@2" }, "options": { "timeout_seconds": 60, "suspend_timeout_seconds": 5 } },
                { "name": "ship", "run": { "tool": "http" }, "after_execution": "terminate" },
                { "name": "ask", "run": { "agent": "helper" } },
                { "name": "call", "run": { "external": { "subject": "tools.call" } } },
            ],
        }))
        .unwrap();
        assert_eq!(profile.tools.len(), 4);
        assert_eq!(profile.one_try(), Duration::from_secs(3));
        assert_eq!(Profile::default().one_try(), STEP_TIMEOUT / 2);
        assert_eq!(profile.tools[0].timeout_ms, Some(60_000));
        assert_eq!(profile.offered(true).len(), 1);
        assert_eq!(profile.offered(false).len(), 7);
        assert!(profile.may_ask("helper") && !profile.may_ask("other"));
        assert_eq!(check(&Value::Null).unwrap(), Profile::default());
    }

    #[test]
    fn what_a_profile_does_not_say_about_its_tools_is_taken_from_elsewhere() {
        let own = json!({ "type": "object", "properties": { "mine": {} } });
        let mut profile = json!({ "tools": [
            { "name": "a", "run": { "flow": "f@1" } },
            { "name": "b", "run": { "tool": "t" }, "parameters": own, "description": "Mine." },
            { "name": "c", "run": { "tool": "u" }, "parameters": own },
            { "name": "d", "run": { "tool": "odd" }, "description": "Mine." },
        ]});
        let asked = undescribed(&profile);
        assert_eq!(asked.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [0, 2, 3]);
        let known = |n: usize, parameters: Value| {
            (n, Described { description: "Theirs.".into(), parameters })
        };
        let theirs = json!({ "type": "object", "properties": { "x": { "description": "y".repeat(20_000) } } });
        describe(
            &mut profile,
            vec![
                known(0, theirs.clone()),
                known(2, theirs.clone()),
                known(3, json!({ "type": "string" })),
            ],
        );
        let profile = recorded(&profile).unwrap();
        let said = |n: usize| (profile.tools[n].description.as_str(), &profile.tools[n].parameters);
        assert_eq!(said(0), ("Theirs.", &theirs), "however large it is");
        assert_eq!(said(1), ("Mine.", &own));
        assert_eq!(said(2), ("Theirs.", &own));
        assert_eq!(
            said(3),
            ("Mine.", &json!({ "type": "object", "properties": {} })),
            "no arguments of a call"
        );
    }

    #[test]
    fn all_problems_at_once() {
        let problems = check(&json!({
            "modle": 1,
            "model": { "base_url": "ftp://x", "messages": [] },
            "max_steps": 0,
            "try_timeout_seconds": 121,
            "must_end_with": "nothing",
            "delegates": ["not a token"],
            "tools": [
                { "name": "submit_result", "run": { "flow": "x" } },
                { "name": "a b", "run": {} , "parameters": { "type": 7 } },
                { "name": "c", "run": { "external": { "subject": "evt.agent.x.task" } }, "after_execution": "stop" },
            ],
        }))
        .unwrap_err();
        assert_eq!(problems.len(), 14, "{problems:#?}");
    }
}
