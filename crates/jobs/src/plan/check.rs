//! Everything that can be known to be wrong with a plan before it runs, all at once. Pure: which tools and flows
//! there are is given; without that, only the plan itself is looked at.

use super::{
    expr::{Expr, Name, Part},
    model::{Each, Plan, Step, Wait, What},
    problem::{Problem, Problems, Wrong, below},
    strict::Strict,
    template::Template,
    types::{self, Found, Schema, Sources},
};
use crate::{
    catalogue::{Entry, Sort},
    nearest::nearest,
};
use serde_json::{Value, json};
use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet},
};
use tenure_steps::events::WaitKind;

mod inner;

/// Schemas of a tool or of a version of a flow; `null` where they are not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schemas {
    /// Of the input.
    pub input: Value,
    /// Of the output.
    pub output: Value,
}

/// The tools and flows that workers have registered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Library {
    /// By name.
    pub tools: BTreeMap<String, Schemas>,
    /// By name and version.
    pub flows: BTreeMap<String, BTreeMap<u32, Schemas>>,
}

impl Library {
    /// What the catalogue says.
    pub fn of(entries: impl IntoIterator<Item = Entry>) -> Self {
        let mut library = Library::default();
        for entry in entries {
            let schemas = |v: &crate::catalogue::Version| Schemas {
                input: v.input_schema.clone(),
                output: v.output_schema.clone(),
            };
            match entry.sort {
                Sort::Tool => {
                    let newest = entry.newest().map(schemas).unwrap_or_default();
                    library.tools.insert(entry.name, newest);
                }
                Sort::Flow => {
                    let versions = entry.versions.iter().map(|v| (v.version, schemas(v)));
                    library.flows.insert(entry.name.clone(), versions.collect());
                }
            }
        }
        library
    }
}

/// Reads a plan and looks at everything that it refers to.
pub fn check(read: &Strict, library: Option<&Library>) -> Result<Plan, Vec<Problem>> {
    let mut problems = Problems::default();
    let Some(plan) = Plan::read_into(read, &mut problems) else { return Err(problems.into_vec()) };
    let all: BTreeSet<String> = step_ids(&read.value);
    let checker = Checker { plan: &plan, all, library };
    checker.references(&mut problems);
    checker.cycles(&mut problems);
    checker.waits(&mut problems);
    checker.tools(&mut problems);
    match problems.is_empty() {
        true => Ok(plan),
        false => Err(problems.into_vec()),
    }
}

/// The tools and flows that a plan uses and whose input nobody could look at: their schemas are not known, or too large
/// to be kept. What they are given is found out when they are called.
pub fn unchecked(plan: &Plan, library: &Library) -> Vec<String> {
    let mut names = BTreeSet::new();
    let tool = |name: &str| library.tools.get(name).is_some_and(|s| s.input.is_null());
    for step in &plan.steps {
        match &step.what {
            What::Tool { tool: name, .. } if tool(name) => {
                names.insert(format!("the tool {name}"));
            }
            What::Job { flow, version, .. } => {
                let known = library.flows.get(flow).and_then(|versions| match version {
                    Some(version) => versions.get(version),
                    None => versions.values().next_back(),
                });
                if known.is_some_and(|s| s.input.is_null()) {
                    names.insert(format!("the flow {flow}"));
                }
            }
            _ => {}
        }
        if let Some(undo) = step.undo.as_ref().filter(|undo| tool(&undo.tool)) {
            names.insert(format!("the tool {}", undo.tool));
        }
    }
    names.into_iter().collect()
}

/// The input of a job against the schema of its plan.
pub fn check_input(plan: &Plan, input: &Value) -> Vec<Problem> {
    let mut problems = Problems::default();
    if let Some(schema) = &plan.input_schema {
        types::fit_value(input, Schema::new(schema), "", "the input", &mut problems);
    }
    problems.into_vec()
}

/// Also of steps that could not be read: a reference to one of those is not wrong as well.
fn step_ids(plan: &Value) -> BTreeSet<String> {
    let steps = plan.get("steps").and_then(Value::as_object);
    steps.map(|s| s.keys().cloned().collect()).unwrap_or_default()
}

struct Checker<'a> {
    plan: &'a Plan,
    all: BTreeSet<String>,
    library: Option<&'a Library>,
}

impl Checker<'_> {
    fn references(&self, problems: &mut Problems) {
        for step in &self.plan.steps {
            let at = below("/steps", &step.id);
            for (i, name) in step.after.iter().enumerate() {
                self.reference(step, name, &below(&below(&at, "after"), i), problems);
            }
            if let Some(when) = &step.when {
                self.names(step, when, &below(&at, "when"), Inside::Before, problems);
            }
            if let Some(each) = &step.for_each {
                each.items.each(&format!("{at}{}", each.field), &mut |expr, at| {
                    self.names(step, expr, at, Inside::Before, problems);
                });
            }
            for (field, template) in step.templates() {
                template.each(&format!("{at}{field}"), &mut |expr, at| {
                    self.names(step, expr, at, Inside::Body, problems);
                });
            }
            if let Some(undo) = &step.undo {
                undo.input.each(&format!("{at}/undo/input"), &mut |expr, at| {
                    self.names(step, expr, at, Inside::Undo, problems);
                });
            }
        }
        if let Some(output) = &self.plan.output {
            output.each("/output", &mut |expr, at| {
                for name in &expr.names {
                    match name {
                        Name::Step(id) if !self.all.contains(id) => {
                            self.unknown_step(id, at, problems);
                        }
                        Name::Item | Name::Index | Name::Output => {
                            let what = format!("there is no `{}` here", word(name));
                            let fix = "the output of a plan knows input and steps.ID";
                            problems.add(at, Wrong::UnknownName, what, fix);
                        }
                        Name::Step(_) | Name::Input => {}
                    }
                }
            });
        }
    }

    fn names(&self, step: &Step, expr: &Expr, at: &str, inside: Inside, problems: &mut Problems) {
        for name in &expr.names {
            match name {
                Name::Input => {}
                Name::Step(id) => self.reference(step, id, at, problems),
                Name::Item | Name::Index if step.for_each.is_some() && inside != Inside::Before => {
                }
                Name::Output if inside == Inside::Undo => {}
                Name::Item | Name::Index => {
                    let what = format!("there is no `{}` here", word(name));
                    let fix = "a step has an item inside of its for_each: not in its `when`";
                    problems.add(at, Wrong::UnknownName, what, fix);
                }
                Name::Output => {
                    let fix = "`output` is what the step itself gave, in its `undo`; of others it is steps.ID.output";
                    problems.add(at, Wrong::UnknownName, "there is no `output` here", fix);
                }
            }
        }
    }

    fn reference(&self, step: &Step, id: &str, at: &str, problems: &mut Problems) {
        if id == step.id {
            let what = format!("`{id}` refers to itself");
            let fix = "a step sees only steps before it; in its `undo` its own result is `output`";
            problems.add(at, Wrong::SelfReference, what, fix);
        } else if !self.all.contains(id) {
            self.unknown_step(id, at, problems);
        }
    }

    fn unknown_step(&self, id: &str, at: &str, problems: &mut Problems) {
        let fix = || match nearest(id, self.all.iter().map(String::as_str)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "name a step of this plan".to_owned(),
        };
        problems.add_with(at, Wrong::UnknownStep, format!("there is no step `{id}`"), fix);
    }

    /// Every circle once, named in order, from the first of its names on.
    fn cycles(&self, problems: &mut Problems) {
        let needs = self.plan.needs();
        let mut color = vec![0u8; needs.len()];
        let mut path = Vec::new();
        for start in 0..needs.len() {
            // Without recursion: a chain of 500 steps is fine, and nobody has to wonder about the stack.
            let mut stack = vec![(start, false)];
            while let Some((at, leave)) = stack.pop() {
                if leave {
                    path.pop();
                    color[at] = 2;
                    continue;
                }
                if color[at] != 0 {
                    continue;
                }
                color[at] = 1;
                path.push(at);
                stack.push((at, true));
                for &next in needs[at].iter().rev().filter(|n| **n != at) {
                    match color[next] {
                        0 => stack.push((next, false)),
                        1 => self.cycle(&path, next, problems),
                        _ => {}
                    }
                }
            }
        }
    }

    fn cycle(&self, path: &[usize], back: usize, problems: &mut Problems) {
        let Some(from) = path.iter().position(|s| *s == back) else { return };
        // `path` goes from a step to what it needs: in the order of running it is the other way round.
        let mut ring: Vec<usize> = path[from..].iter().rev().copied().collect();
        let first = ring.iter().enumerate().min_by_key(|(_, s)| **s).map_or(0, |(i, _)| i);
        ring.rotate_left(first);
        let names: Vec<&str> = ring.iter().map(|s| self.plan.steps[*s].id.as_str()).collect();
        let what = format!("these steps wait for each other: {} → {}", names.join(" → "), names[0]);
        let at = below("/steps", names[0]);
        problems.add(at, Wrong::Cycle, what, "take one of the references away");
    }

    /// A wait is answered by its name, so a name stands for one wait.
    fn waits(&self, problems: &mut Problems) {
        let mut seen: BTreeMap<String, &str> = BTreeMap::new();
        let mut doubled = |step: &Step, what: String| {
            let at = format!("{}/wait", below("/steps", &step.id));
            problems.add(
                at,
                Wrong::DoubledWait,
                what,
                "an answer names one wait: rename one of them",
            );
        };
        for step in &self.plan.steps {
            let What::Wait(wait) = &step.what else { continue };
            // Without a name the items of a `for_each` wait as `step[0]`, `step[1]`, …: that no other step is called.
            let name = match (&wait.name, &step.for_each) {
                (None, None) => step.id.clone(),
                (None, Some(_)) => continue,
                (Some(name), each) => {
                    let of_item =
                        name.names().iter().any(|n| matches!(n, Name::Item | Name::Index));
                    if each.as_ref().is_some_and(may_be_several) && !of_item && name.is_known() {
                        let what = "all items of the for_each wait under the same name".to_owned();
                        doubled(step, what);
                    }
                    match name {
                        Template::Plain(Value::String(name)) => name.clone(),
                        _ => continue,
                    }
                }
            };
            if let Some(other) = seen.insert(name.clone(), &step.id) {
                doubled(step, format!("`{other}` waits under the name {name:?} as well"));
            }
        }
        for step in &self.plan.steps {
            let (What::Wait(Wait { name: None, .. }), Some(_)) = (&step.what, &step.for_each)
            else {
                continue;
            };
            let of_item = |name: &str| {
                let number = name.strip_prefix(&step.id)?.strip_prefix('[')?.strip_suffix(']')?;
                number.parse::<usize>().ok()
            };
            if let Some((name, other)) = seen.iter().find(|(name, _)| of_item(name).is_some()) {
                doubled(step, format!("`{other}` waits under the name {name:?}, as an item does"));
            }
        }
    }

    fn tools(&self, problems: &mut Problems) {
        if let Some(output) = &self.plan.output {
            // Found at the end of the job, everything would have been done, and might be undone again.
            let sources = Seen::new(self, None);
            output.each("/output", &mut |e, at| sources.look(e, at, problems));
        }
        for step in &self.plan.steps {
            let at = below("/steps", &step.id);
            let sources = Seen::new(self, Some(step));
            sources.paths(step, &at, problems);
            if let Some(Each { items: items @ Template::Whole(_), field, .. }) = &step.for_each {
                let (list, here) = (json!({"type": "array"}), format!("{at}{field}"));
                types::fit(items, Schema::new(&list), &sources, &here, "for_each", problems);
            }
            match &step.what {
                What::Tool { tool, input, field } => {
                    let here = if *field == "/llm" { "/llm" } else { "/tool" };
                    if let Some(schemas) = self.tool(tool, &format!("{at}{here}"), problems)
                        && !schemas.input.is_null()
                    {
                        let wanted = Schema::new(&schemas.input);
                        let of = format!("the tool {tool}");
                        types::fit(input, wanted, &sources, &format!("{at}{field}"), &of, problems);
                    }
                }
                What::Job { flow, version, input } => {
                    if let Some(schemas) = self.flow(flow, *version, &at, problems)
                        && !schemas.input.is_null()
                    {
                        let wanted = Schema::new(&schemas.input);
                        let of = format!("the flow {flow}");
                        types::fit(
                            input,
                            wanted,
                            &sources,
                            &format!("{at}/job/input"),
                            &of,
                            problems,
                        );
                    }
                    if flow == super::run::FLOW {
                        inner::check(input, self.library, &format!("{at}/job/input"), problems);
                    }
                }
                What::Sleep(seconds @ Template::Whole(_)) => {
                    let (number, here) = (json!({"type": "number"}), format!("{at}/sleep/seconds"));
                    types::fit(seconds, Schema::new(&number), &sources, &here, "sleep", problems);
                }
                What::Wait(_) | What::Sleep(_) | What::Value(_) => {}
            }
            if let Some(undo) = &step.undo
                && let Some(schemas) = self.tool(&undo.tool, &format!("{at}/undo/tool"), problems)
                && !schemas.input.is_null()
            {
                let (wanted, of) = (Schema::new(&schemas.input), format!("the tool {}", undo.tool));
                types::fit(
                    &undo.input,
                    wanted,
                    &sources,
                    &format!("{at}/undo/input"),
                    &of,
                    problems,
                );
            }
        }
    }

    fn tool(&self, name: &str, at: &str, problems: &mut Problems) -> Option<&Schemas> {
        let library = self.library?;
        let found = library.tools.get(name);
        if found.is_none() {
            let what = format!("no worker has ever registered the tool {name:?}");
            let fix = || match nearest(name, library.tools.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}? GET /v1/tools lists all"),
                None => "GET /v1/tools lists those that there are".to_owned(),
            };
            problems.add_with(at, Wrong::UnknownTool, what, fix);
        }
        found
    }

    fn flow(
        &self,
        name: &str,
        version: Option<u32>,
        at: &str,
        problems: &mut Problems,
    ) -> Option<&Schemas> {
        let library = self.library?;
        if name == crate::bulk::FLOW {
            let what = format!("the flow {name:?} acts on many jobs, and not as a part of another");
            let fix = "what it does is shown first: use POST /v1/jobs/bulk";
            problems.add(format!("{at}/job/flow"), Wrong::UnknownFlow, what, fix);
            return None;
        }
        let Some(versions) = library.flows.get(name) else {
            let what = format!("no worker has ever registered the flow {name:?}");
            let fix = || match nearest(name, library.flows.keys().map(String::as_str)) {
                Some(near) => format!("did you mean {near:?}? GET /v1/flows lists all"),
                None => "GET /v1/flows lists those that there are".to_owned(),
            };
            problems.add_with(format!("{at}/job/flow"), Wrong::UnknownFlow, what, fix);
            return None;
        };
        let found = match version {
            Some(version) => versions.get(&version),
            None => versions.values().next_back(),
        };
        if found.is_none() {
            let known: Vec<u32> = versions.keys().copied().collect();
            let what = format!("the flow {name} has no version {}", version.unwrap_or_default());
            let fix = format!("there are {known:?}; without one it is the newest");
            problems.add(format!("{at}/job/version"), Wrong::UnknownFlow, what, fix);
        }
        found
    }

    /// The schema of what a step gives, where somebody knows it.
    fn output_of(&self, step: &Step) -> Option<Value> {
        let one = self.output_of_one(step);
        match &step.for_each {
            Some(_) => Some(types::list_of(&one.unwrap_or(Value::Null))),
            None => one,
        }
    }

    /// The same, of one item if there are several.
    fn output_of_one(&self, step: &Step) -> Option<Value> {
        let one = match &step.what {
            What::Tool { tool, .. } => self.library?.tools.get(tool)?.output.clone(),
            What::Job { flow, version, .. } => {
                let versions = self.library?.flows.get(flow)?;
                let found =
                    version.map_or_else(|| versions.values().next_back(), |v| versions.get(&v));
                found?.output.clone()
            }
            What::Wait(wait) if wait.kind == WaitKind::Human => json!({
                "type": "object",
                "properties": {
                    "approved": {"type": "boolean"}, "by": {"type": ["string", "null"]}, "payload": {}
                },
                "additionalProperties": false
            }),
            What::Sleep(_) => json!({"type": "null"}),
            What::Wait(_) | What::Value(_) => Value::Null,
        };
        (!one.is_null()).then_some(one)
    }
}

/// Whether it can be more than one item.
fn may_be_several(each: &Each) -> bool {
    let list = match &each.items {
        Template::Plain(Value::Array(list)) => Some(list.len()),
        Template::List(list) => Some(list.len()),
        _ => None,
    };
    list.unwrap_or(each.at_most).min(each.at_most) > 1
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Inside {
    /// `when` and `for_each`: there is no item yet.
    Before,
    Body,
    Undo,
}

fn word(name: &Name) -> &'static str {
    match name {
        Name::Item => "item",
        Name::Index => "index",
        Name::Output => "output",
        Name::Input => "input",
        Name::Step(_) => "steps",
    }
}

/// What can be seen from a step, or from the output of the plan.
struct Seen<'a> {
    checker: &'a Checker<'a>,
    step: Option<&'a Step>,
    /// The schema of its item: worked out once, however many expressions use it.
    item: OnceCell<Option<Value>>,
}

impl<'a> Seen<'a> {
    fn new(checker: &'a Checker<'a>, step: Option<&'a Step>) -> Self {
        Seen { checker, step, item: OnceCell::new() }
    }

    /// The schema at the start of a path, and what is left of the path.
    fn root<'p>(&'p self, path: &'p [Part]) -> Option<(Cow<'p, Value>, &'p [Part])> {
        let plan = self.checker.plan;
        match path {
            [Part::Member(name), rest @ ..] if name == "input" => {
                Some((Cow::Borrowed(plan.input_schema.as_ref()?), rest))
            }
            [Part::Member(name), rest @ ..] if name == "index" => {
                Some((Cow::Owned(json!({"type": "integer"})), rest))
            }
            [Part::Member(name), rest @ ..] if name == "item" => {
                let item = self.item.get_or_init(|| self.item_schema()).as_ref()?;
                Some((Cow::Borrowed(item), rest))
            }
            [Part::Member(name), rest @ ..] if name == "output" => {
                Some((Cow::Owned(self.checker.output_of_one(self.step?)?), rest))
            }
            [Part::Member(name), Part::Member(id), Part::Member(field), rest @ ..]
                if name == "steps" =>
            {
                let schema = match field.as_str() {
                    "output" => self.checker.output_of(&plan.steps[plan.step(id)?])?,
                    "status" | "error" => json!({"type": "string"}),
                    _ => return None,
                };
                Some((Cow::Owned(schema), rest))
            }
            _ => None,
        }
    }

    fn item_schema(&self) -> Option<Value> {
        let Template::Whole(items) = &self.step?.for_each.as_ref()?.items else { return None };
        let path = items.path.as_ref()?;
        // There is no item before there are items, and asking for one here would go in a circle.
        if matches!(path.first(), Some(Part::Member(name)) if name == "item") {
            return None;
        }
        let (schema, rest) = self.root(path)?;
        let Found::Schema(list) = Schema::new(&schema).follow(rest) else { return None };
        let list = list.alone();
        // References of an item lead to the root of its list.
        let mut item = list.get("items")?.as_object()?.clone();
        for word in ["$defs", "definitions"] {
            if let Some(defs) = list.get(word) {
                item.entry(word).or_insert_with(|| defs.clone());
            }
        }
        Some(Value::Object(item))
    }

    /// Paths into something that is known not to be there.
    fn paths(&self, step: &Step, at: &str, problems: &mut Problems) {
        if let Some(when) = &step.when {
            self.look(when, &below(at, "when"), problems);
        }
        if let Some(each) = &step.for_each {
            let at = format!("{at}{}", each.field);
            each.items.each(&at, &mut |e, at| self.look(e, at, problems));
        }
        for (field, template) in step.templates() {
            template.each(&format!("{at}{field}"), &mut |e, at| self.look(e, at, problems));
        }
        if let Some(undo) = &step.undo {
            let at = format!("{at}/undo/input");
            undo.input.each(&at, &mut |e, at| self.look(e, at, problems));
        }
    }

    fn look(&self, expr: &Expr, at: &str, problems: &mut Problems) {
        let Some((schema, rest)) = expr.path.as_ref().and_then(|p| self.root(p)) else {
            return;
        };
        match Schema::new(&schema).follow(rest) {
            Found::Missing(name, known) => {
                let what = format!("`{}`: there is no `{name}`", expr.source);
                let fix = || match nearest(&name, known.iter().map(String::as_str)) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("there are {}", known.join(", ")),
                };
                problems.add_with(at, Wrong::Schema, what, fix);
            }
            Found::Closed(part, kinds) => {
                let (part, is) = match part {
                    Part::Member(name) => (format!("member `{name}`"), types::list(&kinds)),
                    Part::Item(n) => (format!("item {n}"), types::list(&kinds)),
                };
                let what = format!("`{}`: there is no {part} in what is {is}", expr.source);
                problems.add(at, Wrong::Schema, what, "refer to the value itself");
            }
            Found::Schema(_) | Found::Anything => {}
        }
    }
}

impl Sources for Seen<'_> {
    fn kinds(&self, expr: &Expr) -> Option<BTreeSet<String>> {
        let (schema, rest) = self.root(expr.path.as_ref()?)?;
        match Schema::new(&schema).follow(rest) {
            Found::Schema(found) => found.kinds(),
            Found::Anything | Found::Missing(..) | Found::Closed(..) => None,
        }
    }
}

#[cfg(test)]
mod tests;
