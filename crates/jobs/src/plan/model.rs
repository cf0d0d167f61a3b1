//! A plan, read from JSON. Reading finds everything that is wrong with its form; what it refers to is looked at in
//! [`mod@super::check`].

use super::{
    expr::{Expr, Name},
    limits,
    problem::{Problem, Problems, Wrong, below, kind_of},
    strict::Strict,
    template::Template,
};
use crate::nearest::nearest;
use serde_json::{Map, Value};
use std::{collections::BTreeSet, time::Duration};
use tenure_schema::{Schema, SchemaError};
use tenure_steps::{
    canonical,
    events::WaitKind,
    tool::{CallOptions, Class},
};

/// The version of plans that this program understands.
pub const VERSION: u64 = 1;

/// A graph of steps.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it is called, for people.
    pub name: Option<String>,
    /// What its input has to be.
    pub input_schema: Option<Value>,
    /// In the order of their names: that is the order in which branches are numbered.
    pub steps: Vec<Step>,
    /// What the job returns; what the last steps gave, without it.
    pub output: Option<Template>,
    /// What happens after a failure, and when the job is cancelled.
    pub on_failure: OnFailure,
}

/// What happens when a step fails that may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFailure {
    /// What is done stays done.
    #[default]
    Stop,
    /// What has an `undo` is undone, the last first.
    Undo,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// Its name.
    pub id: String,
    /// What it does.
    pub what: What,
    /// Steps that must be over before.
    pub after: Vec<String>,
    /// It is skipped where this does not hold.
    pub when: Option<Expr>,
    /// It is done for every item of this list.
    pub for_each: Option<Each>,
    /// Its failure does not fail the plan.
    pub goes_on: bool,
    /// Timeout, retries, class.
    pub options: CallOptions,
    /// What undoes it.
    pub undo: Option<Undo>,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Calls a tool; a model is asked by the tool `llm`.
    Tool {
        /// Which.
        tool: String,
        /// With what.
        input: Template,
        /// The field of the step in which that stands.
        field: &'static str,
    },
    /// Waits for somebody.
    Wait(Wait),
    /// Sleeps for so many seconds.
    Sleep(Template),
    /// Runs another job.
    Job {
        /// Its flow.
        flow: String,
        /// Its version; the newest without one.
        version: Option<u32>,
        /// Its input.
        input: Template,
    },
    /// Gives a value.
    Value(Template),
}

/// A wait.
#[derive(Clone, Debug, PartialEq)]
pub struct Wait {
    /// For what.
    pub kind: WaitKind,
    /// Its correlation key; the name of the step without one.
    pub name: Option<Template>,
    /// For how long.
    pub within: Option<Duration>,
    /// What a person should know.
    pub note: Option<Template>,
}

/// A list to go through.
#[derive(Clone, Debug, PartialEq)]
pub struct Each {
    /// The list.
    pub items: Template,
    /// Where in the step that stands.
    pub field: &'static str,
    /// So many at once.
    pub parallel: usize,
    /// More than this is a failure.
    pub at_most: usize,
}

/// What undoes a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Undo {
    /// The tool.
    pub tool: String,
    /// Its input.
    pub input: Template,
}

/// Whether a plan is judged as it is read, or was judged when its job began.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    Judge,
    Judged,
}

const PLAN_FIELDS: [&str; 6] = ["version", "name", "input_schema", "steps", "output", "on_failure"];
const KINDS: [&str; 6] = ["tool", "llm", "wait", "sleep", "job", "value"];
const STEP_FIELDS: [&str; 15] = [
    "tool",
    "llm",
    "wait",
    "sleep",
    "job",
    "value",
    "input",
    "after",
    "when",
    "for_each",
    "retry",
    "timeout_seconds",
    "class",
    "on_error",
    "undo",
];

impl Plan {
    /// Reads a plan from text.
    pub fn parse(text: &str) -> Result<Plan, Vec<Problem>> {
        let read: Result<Strict, _> = serde_json::from_str(text);
        match read {
            Ok(read) => Self::read(&read),
            Err(e) => {
                let (what, fix) =
                    (format!("this is not JSON: {e}"), "a plan is a JSON object".into());
                Err(vec![Problem { at: String::new(), wrong: Wrong::Syntax, what, fix }])
            }
        }
    }

    /// Reads a plan; all that is wrong with its form.
    pub fn read(read: &Strict) -> Result<Plan, Vec<Problem>> {
        let mut problems = Problems::default();
        let plan = Self::read_into(read, &mut problems);
        match plan {
            Some(plan) if problems.is_empty() => Ok(plan),
            _ => Err(problems.into_vec()),
        }
    }

    /// The same into a list; a plan also where only parts of it could be read. What is too large is not looked at: the
    /// work of a check is bounded by the size of what is checked.
    pub(super) fn read_into(read: &Strict, problems: &mut Problems) -> Option<Plan> {
        let bytes = serde_json::to_vec(&read.value).map_or(0, |b| b.len());
        if bytes > limits::PLAN_BYTES_MAX {
            let what = format!("{bytes} bytes; {} are the most", limits::PLAN_BYTES_MAX);
            problems.add("", Wrong::Limit, what, "give large data in the input of the job");
            return None;
        }
        for at in &read.doubled {
            let what = "this key stands here twice";
            problems.add(at, Wrong::DoubledKey, what, "keep one of them");
        }
        let steps = read.value.get("steps").and_then(Value::as_object).map_or(0, Map::len);
        if steps > limits::STEPS_MAX {
            let what = format!("{steps} steps; {} are the most", limits::STEPS_MAX);
            let fix = "use for_each for what is alike, or split it in jobs";
            problems.add("/steps", Wrong::Limit, what, fix);
            return None;
        }
        Self::read_form(read, problems, Rules::Judge)
    }

    /// A plan that was judged when its job began. Only its form is read: a program that is stricter than the one that
    /// judged does not stop what runs.
    pub(super) fn read_judged(read: &Strict) -> Option<Plan> {
        Self::read_form(read, &mut Problems::default(), Rules::Judged)
    }

    fn read_form(read: &Strict, problems: &mut Problems, rules: Rules) -> Option<Plan> {
        let plan = object(&read.value, "", problems)?;
        unknown_fields(plan, &PLAN_FIELDS, "", problems);
        match plan.get("version") {
            Some(v) if v.as_u64() == Some(VERSION) => {}
            Some(v) => {
                let what = format!("version {v} is not known here");
                problems.add("/version", Wrong::Shape, what, "write \"version\": 1");
            }
            None => problems.add("", Wrong::Shape, "`version` is missing", "write \"version\": 1"),
        }
        let name = text_at(plan, "name", "", problems);
        let input_schema = plan.get("input_schema").cloned();
        if let Some(schema) = input_schema.as_ref().filter(|_| rules == Rules::Judge)
            && let Err(e) = Schema::new(schema)
        {
            let wrong = match e {
                SchemaError::References(_) | SchemaError::Expansion => Wrong::Limit,
                SchemaError::Invalid(_) | SchemaError::Pattern { .. } => Wrong::Shape,
            };
            problems.add("/input_schema", wrong, e.to_string(), e.fix());
        }
        let on_failure = word_at(plan, "on_failure", &["undo", "stop"], "", problems);
        let output = plan.get("output").map(|v| Template::read(v, "/output", problems));
        let steps = read_steps(plan, problems);
        // Whoever says how steps are undone wants them undone, unless they say otherwise.
        let on_failure = match on_failure {
            Some("stop") => OnFailure::Stop,
            None if steps.iter().all(|s| s.undo.is_none()) => OnFailure::Stop,
            _ => OnFailure::Undo,
        };
        Some(Plan { name, input_schema, steps, output, on_failure })
    }

    /// Its digest: the same for the same plan, however it was written.
    pub fn digest(plan: &Value) -> String {
        canonical::digest(plan).to_string()
    }

    /// A step by its name.
    pub fn step(&self, id: &str) -> Option<usize> {
        self.steps.binary_search_by(|s| s.id.as_str().cmp(id)).ok()
    }

    /// For each step, those that must be over before it: named in `after`, or referred to. Unknown ones are left
    /// out.
    pub fn needs(&self) -> Vec<BTreeSet<usize>> {
        let needs = |step: &Step| {
            let named = step.after.iter().cloned();
            let referred = step.names().into_iter().filter_map(|n| match n {
                Name::Step(id) => Some(id),
                _ => None,
            });
            named.chain(referred).filter_map(|id| self.step(&id)).collect()
        };
        self.steps.iter().map(needs).collect()
    }
}

impl Step {
    /// The word for what it does.
    pub fn kind(&self) -> &'static str {
        match &self.what {
            What::Tool { .. } => "tool",
            What::Wait(_) => "wait",
            What::Sleep(_) => "sleep",
            What::Job { .. } => "job",
            What::Value(_) => "value",
        }
    }

    /// Everything that its expressions refer to.
    pub fn names(&self) -> BTreeSet<Name> {
        let mut names = BTreeSet::new();
        names.extend(self.when.iter().flat_map(|e| e.names.iter().cloned()));
        names.extend(self.for_each.iter().flat_map(|e| e.items.names()));
        names.extend(self.undo.iter().flat_map(|u| u.input.names()));
        self.templates().into_iter().for_each(|(_, t)| names.extend(t.names()));
        names
    }

    /// The templates of what it does, each with its place below the step.
    pub fn templates(&self) -> Vec<(&'static str, &Template)> {
        match &self.what {
            What::Tool { input, field, .. } => vec![(field, input)],
            What::Wait(wait) => {
                let (name, note) = (wait.name.as_ref(), wait.note.as_ref());
                let named = name.map(|t| ("/wait/name", t));
                named.into_iter().chain(note.map(|t| ("/wait/note", t))).collect()
            }
            What::Sleep(seconds) => vec![("/sleep/seconds", seconds)],
            What::Job { input, .. } => vec![("/job/input", input)],
            What::Value(value) => vec![("/value", value)],
        }
    }
}

fn object<'a>(
    value: &'a Value,
    at: &str,
    problems: &mut Problems,
) -> Option<&'a Map<String, Value>> {
    let object = value.as_object();
    if object.is_none() {
        let what = format!("an object is needed here, this is {}", kind_of(value));
        problems.add(at, Wrong::Shape, what, "see docs/plans.md for the form");
    }
    object
}

fn unknown_fields(object: &Map<String, Value>, known: &[&str], at: &str, problems: &mut Problems) {
    for field in object.keys().filter(|k| !known.contains(&k.as_str())) {
        let fix = || match nearest(field, known.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("there are {}", known.join(", ")),
        };
        let what = format!("there is no field `{field}` here");
        problems.add_with(below(at, field), Wrong::UnknownField, what, fix);
    }
}

fn text_at(
    object: &Map<String, Value>,
    field: &str,
    at: &str,
    problems: &mut Problems,
) -> Option<String> {
    let value = object.get(field)?;
    let text = value.as_str();
    if text.is_none() {
        let what = format!("a text is needed here, this is {}", kind_of(value));
        problems.add(below(at, field), Wrong::Shape, what, format!("write \"{field}\": \"…\""));
    }
    text.map(str::to_owned)
}

fn word_at<'a>(
    object: &'a Map<String, Value>,
    field: &str,
    words: &[&str],
    at: &str,
    problems: &mut Problems,
) -> Option<&'a str> {
    let value = object.get(field)?;
    let word = value.as_str().filter(|w| words.contains(w));
    if word.is_none() {
        let near = value.as_str().and_then(|v| nearest(v, words.iter().copied()));
        let fix = match near {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("give one of {}", words.join(", ")),
        };
        problems.add(below(at, field), Wrong::Shape, format!("`{field}` can not be {value}"), fix);
    }
    word
}

fn number_at(
    object: &Map<String, Value>,
    field: &str,
    (min, max): (f64, f64),
    at: &str,
    problems: &mut Problems,
) -> Option<f64> {
    let value = object.get(field)?;
    let number = value.as_f64().filter(|n| (min..=max).contains(n));
    if number.is_none() {
        let (what, fix) = (format!("`{field}` can not be {value}"), format!("give {min} to {max}"));
        problems.add(below(at, field), Wrong::Shape, what, fix);
    }
    number
}

fn whole_at(
    object: &Map<String, Value>,
    field: &str,
    (min, max): (u64, u64),
    at: &str,
    problems: &mut Problems,
) -> Option<u64> {
    let value = object.get(field)?;
    let number = value.as_u64().filter(|n| (min..=max).contains(n));
    if number.is_none() {
        let fix = format!("give a whole number from {min} to {max}");
        problems.add(below(at, field), Wrong::Shape, format!("`{field}` can not be {value}"), fix);
    }
    number
}

fn duration_at(
    object: &Map<String, Value>,
    field: &str,
    at: &str,
    problems: &mut Problems,
) -> Option<Duration> {
    let seconds = number_at(object, field, (0.0, limits::SECONDS_MAX), at, problems)?;
    Some(Duration::from_secs_f64(seconds))
}

fn read_steps(plan: &Map<String, Value>, problems: &mut Problems) -> Vec<Step> {
    let Some(steps) = plan.get("steps") else {
        let fix = "write \"steps\": {\"first\": {\"tool\": …}}";
        problems.add("", Wrong::Shape, "`steps` is missing", fix);
        return Vec::new();
    };
    let Some(steps) = object(steps, "/steps", problems) else { return Vec::new() };
    if steps.is_empty() {
        problems.add("/steps", Wrong::Shape, "a plan without steps does nothing", "give one");
    }
    let mut read: Vec<Step> =
        steps.iter().filter_map(|(id, step)| read_step(id, step, problems)).collect();
    read.sort_by(|a, b| a.id.cmp(&b.id));
    read
}

fn check_id(id: &str, at: &str, problems: &mut Problems) {
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let fine = id.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && id.chars().all(letters)
        && id.len() <= limits::ID_BYTES_MAX;
    if !fine {
        let what = format!("{id:?} is no name of a step");
        let fix = "use letters, digits and _, a letter first, at most 64: expressions refer to it";
        problems.add(at, Wrong::Shape, what, fix);
    }
}

fn read_step(id: &str, step: &Value, problems: &mut Problems) -> Option<Step> {
    let at = below("/steps", id);
    check_id(id, &at, problems);
    let step = object(step, &at, problems)?;
    unknown_fields(step, &STEP_FIELDS, &at, problems);
    let what = read_what(step, &at, problems);
    let after = read_after(step, &at, problems);
    let when = step.get("when").and_then(|v| read_expr(v, &below(&at, "when"), problems));
    let for_each = step.get("for_each").map(|v| read_each(v, &at, problems));
    let goes_on =
        word_at(step, "on_error", &["fail", "continue"], &at, problems) == Some("continue");
    let options = read_options(step, &at, problems);
    let undo = step.get("undo").and_then(|v| read_undo(v, &below(&at, "undo"), problems));
    if let Some(What::Value(_) | What::Sleep(_) | What::Wait(_) | What::Job { .. }) = &what {
        let only = [
            ("retry", "a call"),
            ("timeout_seconds", "a call"),
            ("class", "a call"),
            ("input", "a tool"),
        ];
        for (field, of) in only.into_iter().filter(|(f, _)| step.contains_key(*f)) {
            let said = format!("`{field}` is of {of}, and this step makes none");
            let fix = match (field, &what) {
                ("input", Some(What::Job { .. })) => "the input of a job stands in `job`",
                ("timeout_seconds", Some(What::Wait(_))) => "a wait has `within_seconds`",
                ("timeout_seconds", Some(What::Job { .. })) => {
                    "leave it out: a job has the time that is left of this one, and its own steps have timeouts"
                }
                _ => "leave it out",
            };
            problems.add(below(&at, field), Wrong::UnknownField, said, fix);
        }
    }
    if matches!(what, Some(What::Value(_) | What::Sleep(_))) && step.contains_key("undo") {
        let what = "there is nothing to undo in this step";
        problems.add(below(&at, "undo"), Wrong::UnknownField, what, "leave it out");
    }
    Some(Step { id: id.to_owned(), what: what?, after, when, for_each, goes_on, options, undo })
}

fn read_what(step: &Map<String, Value>, at: &str, problems: &mut Problems) -> Option<What> {
    let given: Vec<&str> = KINDS.into_iter().filter(|k| step.contains_key(*k)).collect();
    let [kind] = given[..] else {
        let what = match given[..] {
            [] => "the step does not say what it does".to_owned(),
            _ => format!("the step is several things at once: {}", given.join(", ")),
        };
        let fix = format!("give exactly one of {}", KINDS.join(", "));
        problems.add(at, Wrong::Shape, what, fix);
        return None;
    };
    let here = below(at, kind);
    let inner = &step[kind];
    match kind {
        "tool" => {
            let tool = text_at(step, "tool", at, problems);
            let input = step.get("input").unwrap_or(&Value::Null);
            let input = Template::read(input, &below(at, "input"), problems);
            Some(What::Tool { tool: tool?, input, field: "/input" })
        }
        "llm" => {
            if step.contains_key("input") {
                let what = "the request of a model stands in `llm`";
                problems.add(below(at, "input"), Wrong::UnknownField, what, "move it there");
            }
            let input = Template::read(inner, &here, problems);
            Some(What::Tool { tool: "llm".into(), input, field: "/llm" })
        }
        "wait" => read_wait(inner, &here, problems).map(What::Wait),
        "sleep" => {
            let sleep = object(inner, &here, problems)?;
            unknown_fields(sleep, &["seconds"], &here, problems);
            let Some(seconds) = sleep.get("seconds") else {
                problems.add(
                    &here,
                    Wrong::Shape,
                    "`seconds` is missing",
                    "write {\"seconds\": 60}",
                );
                return None;
            };
            let at = below(&here, "seconds");
            if !seconds.is_string() {
                number_at(sleep, "seconds", (0.0, limits::SECONDS_MAX), &here, problems);
                return Some(What::Sleep(match seconds {
                    Value::Number(_) => Template::Plain(seconds.clone()),
                    _ => Template::unreadable(),
                }));
            }
            let template = Template::read(seconds, &at, problems);
            if !matches!(template, Template::Whole(_)) {
                let what = format!("a number of seconds is needed here, {seconds} is a text");
                let fix = "write a number, or exactly one ${{ }} that gives one";
                problems.add(at, Wrong::Shape, what, fix);
            }
            Some(What::Sleep(template))
        }
        "job" => {
            let job = object(inner, &here, problems)?;
            unknown_fields(job, &["flow", "version", "input"], &here, problems);
            if !job.contains_key("flow") {
                problems.add(&here, Wrong::Shape, "`flow` is missing", "write {\"flow\": \"…\"}");
            }
            let flow = text_at(job, "flow", &here, problems);
            let version = whole_at(job, "version", (1, u64::from(u32::MAX)), &here, problems);
            let input = job.get("input").unwrap_or(&Value::Null);
            let input = Template::read(input, &below(&here, "input"), problems);
            let version = version.and_then(|v| u32::try_from(v).ok());
            Some(What::Job { flow: flow?, version, input })
        }
        _ => Some(What::Value(Template::read(inner, &here, problems))),
    }
}

fn read_wait(value: &Value, at: &str, problems: &mut Problems) -> Option<Wait> {
    let wait = object(value, at, problems)?;
    unknown_fields(wait, &["for", "name", "within_seconds", "note"], at, problems);
    const FOR: [&str; 3] = ["signal", "webhook", "approval"];
    if !wait.contains_key("for") {
        let fix = "write {\"for\": \"approval\"}, or \"signal\", or \"webhook\"";
        problems.add(at, Wrong::Shape, "`for` is missing", fix);
    }
    let kind = match word_at(wait, "for", &FOR, at, problems) {
        Some("signal") => Some(WaitKind::Signal),
        Some("webhook") => Some(WaitKind::Webhook),
        Some(_) => Some(WaitKind::Human),
        None => None,
    };
    let template = |field: &str, problems: &mut Problems| {
        let text = text_at(wait, field, at, problems)?;
        Some(Template::read(&Value::String(text), &below(at, field), problems))
    };
    let (name, note) = (template("name", problems), template("note", problems));
    if let Some(Template::Plain(Value::String(text))) = &name
        && !(1..=limits::WAIT_NAME_BYTES_MAX).contains(&text.len())
    {
        let what = format!("a name has 1 to {} bytes", limits::WAIT_NAME_BYTES_MAX);
        problems.add(below(at, "name"), Wrong::Limit, what, "give a shorter one");
    }
    let within = duration_at(wait, "within_seconds", at, problems);
    Some(Wait { kind: kind?, name, within, note })
}

fn read_after(step: &Map<String, Value>, at: &str, problems: &mut Problems) -> Vec<String> {
    let Some(after) = step.get("after") else { return Vec::new() };
    let at = below(at, "after");
    let Some(list) = after.as_array() else {
        let what = format!("a list of names is needed here, this is {}", kind_of(after));
        problems.add(&at, Wrong::Shape, what, "write \"after\": [\"first\"]");
        return Vec::new();
    };
    let mut names = Vec::new();
    for (i, name) in list.iter().enumerate() {
        match name.as_str() {
            Some(name) => names.push(name.to_owned()),
            None => {
                let what = format!("the name of a step is needed here, this is {}", kind_of(name));
                problems.add(below(&at, i), Wrong::Shape, what, "name steps of this plan");
            }
        }
    }
    names
}

/// An expression, bare or in `${{ }}`.
fn read_expr(value: &Value, at: &str, problems: &mut Problems) -> Option<Expr> {
    let Some(text) = value.as_str() else {
        let what = format!("an expression is needed here, this is {}", kind_of(value));
        problems.add(at, Wrong::Shape, what, "write it as a text: \"steps.a.output.ok\"");
        return None;
    };
    let text = text.trim();
    let inside = text.strip_prefix("${{").and_then(|t| t.strip_suffix("}}"));
    Some(Expr::read(inside.unwrap_or(text), at, problems))
}

/// A `for_each` that can not be read is there all the same: the step has items, whatever they are.
fn read_each(value: &Value, step: &str, problems: &mut Problems) -> Each {
    let at = &below(step, "for_each");
    let (mut parallel, mut at_most) = (limits::PARALLEL, limits::ITEMS_MAX);
    let (items, field) = match value {
        Value::Object(each) => {
            unknown_fields(each, &["items", "parallel", "at_most"], at, problems);
            let tools = limits::TOOLS_AT_ONCE as u64;
            let given = whole_at(each, "parallel", (1, tools), at, problems);
            let most = whole_at(each, "at_most", (0, limits::ITEMS_MAX as u64), at, problems);
            let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
            (parallel, at_most) = (given.map_or(parallel, size), most.map_or(at_most, size));
            let Some(items) = each.get("items") else {
                let fix = "write {\"items\": \"steps.a.output\"}";
                problems.add(at, Wrong::Shape, "`items` is missing", fix);
                let (items, field) = (Template::unreadable(), "/for_each");
                return Each { items, field, parallel, at_most };
            };
            (items, "/for_each/items")
        }
        other => (other, "/for_each"),
    };
    let here = format!("{step}{field}");
    if let Some(list) = items.as_array()
        && list.len() > at_most
    {
        let what = format!("{} items; {at_most} are the most", list.len());
        problems.add(&here, Wrong::Limit, what, "give fewer, or split them in steps");
    }
    Each { items: read_items(items, &here, problems), field, parallel, at_most }
}

fn read_items(value: &Value, at: &str, problems: &mut Problems) -> Template {
    match value {
        Value::String(_) => {
            let read = read_expr(value, at, problems);
            read.map_or_else(Template::unreadable, Template::Whole)
        }
        Value::Array(_) => Template::read(value, at, problems),
        other => {
            let what =
                format!("an expression or a list is needed here, this is {}", kind_of(other));
            problems.add(at, Wrong::Shape, what, "write \"for_each\": \"steps.a.output\"");
            Template::unreadable()
        }
    }
}

fn read_options(step: &Map<String, Value>, at: &str, problems: &mut Problems) -> CallOptions {
    const CLASSES: [&str; 4] = ["idempotent", "verifiable", "compensatable", "irreversible"];
    let mut options = CallOptions::default();
    if let Some(retry) = step.get("retry") {
        let here = below(at, "retry");
        if let Some(retry) = object(retry, &here, problems) {
            unknown_fields(retry, &["max", "backoff_seconds"], &here, problems);
            let max = whole_at(retry, "max", (0, limits::RETRY_MAX), &here, problems);
            options.retry_max = max.and_then(|n| u32::try_from(n).ok());
            options.backoff = duration_at(retry, "backoff_seconds", &here, problems);
        }
    }
    options.timeout = duration_at(step, "timeout_seconds", at, problems);
    options.class = word_at(step, "class", &CLASSES, at, problems).map(|word| match word {
        "idempotent" => Class::Idempotent,
        "verifiable" => Class::Verifiable,
        "compensatable" => Class::Compensatable,
        _ => Class::Irreversible,
    });
    options
}

fn read_undo(value: &Value, at: &str, problems: &mut Problems) -> Option<Undo> {
    let undo = object(value, at, problems)?;
    unknown_fields(undo, &["tool", "input"], at, problems);
    if !undo.contains_key("tool") {
        problems.add(
            at,
            Wrong::Shape,
            "`tool` is missing",
            "write {\"tool\": \"…\", \"input\": …}",
        );
    }
    let tool = text_at(undo, "tool", at, problems);
    let input = undo.get("input").unwrap_or(&Value::Null);
    let input = Template::read(input, &below(at, "input"), problems);
    Some(Undo { tool: tool?, input })
}
