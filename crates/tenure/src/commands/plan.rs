//! `tenure plan`: looks at a plan, and draws it.

use super::{
    Failure, files,
    job::{args::Server, client::Api},
};
use crate::terminal;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};
use tenure_jobs::plan::{self, Plan, Problem, Strict};

/// Options of `plan`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// What to do
    #[command(subcommand)]
    pub action: Action,
}

/// What can be done with plans.
#[derive(Clone, Debug, Subcommand)]
pub enum Action {
    /// Says everything that is wrong with a plan; with --server also against the tools and flows that workers have
    #[command(
        after_help = "Example:\n  tenure plan check trip.json --server http://127.0.0.1:7777"
    )]
    Check {
        /// The plan as JSON; - reads standard input
        file: PathBuf,
        /// Also ask this server what there is: tools, flows and their schemas
        #[arg(long, value_name = "URL")]
        server: Option<String>,
        /// An API key, where the server needs one
        #[arg(long, env = "TENURE_API_KEY", value_name = "KEY", hide_env_values = true)]
        api_key: Option<String>,
        /// Check against what this tenant's workers have; without it, as the server sees the key
        #[arg(long, value_name = "TENANT", requires = "server")]
        tenant: Option<String>,
    },
    /// Shows the graph of a plan
    #[command(after_help = "Example:\n  tenure plan show trip.json --svg trip.svg")]
    Show {
        /// The plan as JSON; - reads standard input
        file: PathBuf,
        /// Also draws it into this file
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
}

/// Does what was asked for.
pub async fn run(options: &Options, json: bool) -> Result<String, Failure> {
    match &options.action {
        Action::Check { file, server, api_key, tenant } => {
            let text = files::read(file)?;
            match server {
                None => answer(&local(&text), None, json),
                Some(url) => {
                    let server = Server { server: url.clone(), api_key: api_key.clone(), by: None };
                    let (found, not_checked) =
                        remote(&text, &server, tenant.as_deref(), json).await?;
                    answer(&found, Some(&not_checked), json)
                }
            }
        }
        Action::Show { file, svg } => show(&files::read(file)?, svg.as_deref(), json),
    }
}

fn local(text: &str) -> Vec<Problem> {
    match serde_json::from_str::<Strict>(text) {
        Ok(read) => plan::check(&read, None).err().unwrap_or_default(),
        Err(_) => Plan::parse(text).err().unwrap_or_default(),
    }
}

/// What the server finds, and what it could not look at.
async fn remote(
    text: &str,
    server: &Server,
    tenant: Option<&str>,
    json: bool,
) -> Result<(Vec<Problem>, Vec<String>), Failure> {
    // What is no JSON at all is said here: the server would speak of the body of a request.
    if serde_json::from_str::<Strict>(text).is_err() {
        return Ok((local(text), Vec::new()));
    }
    let query: Vec<(&str, &str)> = tenant.map(|tenant| ("tenant", tenant)).into_iter().collect();
    let answer = Api::new(server, json)?.post_text(&["plans", "check"], &query, text).await?;
    let other =
        |e: serde_json::Error| Failure::System(format!("the server answered something else: {e}"));
    let found = serde_json::from_value(answer["problems"].clone()).map_err(other)?;
    // A server that is older does not say.
    let not_checked = serde_json::from_value(answer["not_checked"].clone()).unwrap_or_default();
    Ok((found, not_checked))
}

/// `not_checked` is there if a server was asked.
fn answer(
    found: &[Problem],
    not_checked: Option<&[String]>,
    as_json: bool,
) -> Result<String, Failure> {
    let (ok, count) = (found.is_empty(), found.len());
    let said = match (as_json, ok) {
        (true, _) => {
            let mut said = json!({"ok": ok, "problems": found});
            if let Some(names) = not_checked {
                said["not_checked"] = json!(names);
            }
            format!("{said}\n")
        }
        (false, true) => match not_checked {
            None => "The plan is fine in itself. --server URL also checks its tools and flows.\n"
                .to_owned(),
            Some([]) => "The plan is fine.\n".to_owned(),
            Some(names) => format!(
                "The plan is fine.\nNot checked, because their schemas are not known: the input of {}.\n",
                names.join(", ")
            ),
        },
        (false, false) => {
            let mut text = String::new();
            for problem in found {
                let at = if problem.at.is_empty() { "the plan" } else { &problem.at };
                // Writing to a String can not fail.
                let _ = write!(text, "{at}\n        {}\n        {}\n", problem.what, problem.fix);
            }
            text
        }
    };
    if ok {
        return Ok(said);
    }
    terminal::print(&said);
    let more = if count == 1 { "one thing is" } else { "things are" };
    Err(Failure::Found(match count {
        1 => format!("{more} wrong with the plan"),
        n => format!("{n} {more} wrong with the plan"),
    }))
}

fn show(text: &str, svg: Option<&Path>, as_json: bool) -> Result<String, Failure> {
    let found = local(text);
    let plan = match (found.is_empty(), Plan::parse(text)) {
        (true, Ok(plan)) => plan,
        _ => return answer(&found, None, as_json),
    };
    if let Some(file) = svg {
        std::fs::write(file, plan::draw::svg(&plan))
            .map_err(|e| Failure::System(format!("{} can not be written: {e}", file.display())))?;
    }
    if !as_json {
        return Ok(plan::show::show(&plan));
    }
    let graph = plan::show::graph(&plan);
    let id = |n: &usize| Value::from(plan.steps[*n].id.clone());
    let layers: Vec<Vec<Value>> = graph.layers.iter().map(|l| l.iter().map(id).collect()).collect();
    let edges: Vec<[Value; 2]> = graph.edges.iter().map(|(a, b)| [id(a), id(b)]).collect();
    Ok(format!("{}\n", json!({"layers": layers, "edges": edges})))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_jobs::{
        catalogue::{Entry, Sort, Version},
        plan::{Library, Wrong},
    };
    use tenure_tools::{BuiltinOptions, builtin};

    #[test]
    fn what_the_built_in_tools_take_is_known_and_checked() {
        let tools = builtin(&BuiltinOptions::default());
        let entries = tools.iter().map(|tool| Entry {
            sort: Sort::Tool,
            name: tool.name.clone(),
            versions: vec![Version::of_tool(tool)],
            ..Entry::default()
        });
        let library = Library::of(entries);
        let checked = |step: Value| {
            let plan = json!({"version": 1, "steps": {"a": step}});
            plan::check(&plan.into(), Some(&library))
        };
        for (step, at) in [
            (json!({"tool": "http", "input": {"ulr": "x"}}), "/steps/a/input"),
            (
                json!({"tool": "http", "input": {"url": "x", "mehtod": "${{ input.m }}"}}),
                "/steps/a/input/mehtod",
            ),
            (json!({"tool": "command", "input": {"pogram": "true"}}), "/steps/a/input"),
            (json!({"llm": {"promt": "x"}}), "/steps/a/llm"),
        ] {
            let found = checked(step.clone()).expect_err("nobody takes this");
            assert!(
                found.iter().all(|p| p.wrong == Wrong::Schema && p.at == at),
                "{step}: {found:?}"
            );
        }
        let fine = checked(json!({"tool": "http", "input": {"url": "${{ input.url }}"}}));
        let plan = fine.expect("this is what it takes");
        assert_eq!(plan::check::unchecked(&plan, &library), Vec::<String>::new());
    }
}
