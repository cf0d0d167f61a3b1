//! `tenure verify`: one read-only pass over every stream; or one export, without a store.

use super::{Failure, judge, machines, table::plural};
use crate::{Program, cli, config::Settings, open::open_read_only, terminal};
use tenure_engine::checkers::check_everything;
use tenure_server::audit::broken_links;

/// Checks chains, heads against history, machine states against replay, deadlines, and that the segments of the audit trail follow
/// each other.
pub async fn run(
    program: &Program,
    settings: &Settings,
    options: &cli::Verify,
    json: bool,
) -> Result<String, Failure> {
    if let Some(file) = &options.file {
        return super::evidence::verify(file, options, json);
    }
    let machines = program.alterations().machines(machines());
    let judge = program.alterations().judge(judge());
    let store = open_read_only(settings, judge.clone()).await?;
    let mut problems = check_everything(&*store, &machines, &judge.tables).await;
    match broken_links(&*store).await {
        Ok(broken) => problems.extend(broken),
        Err(e) => problems.push(format!("the audit trail cannot be read: {e}")),
    }
    if json {
        terminal::line(&format_args!(
            "{}",
            serde_json::json!({ "intact": problems.is_empty(), "problems": problems })
        ));
    } else {
        problems.iter().for_each(|p| terminal::line(p));
    }
    match problems.len() {
        0 if json => Ok(String::new()),
        0 => Ok("every stream is intact\n".to_owned()),
        n => Err(Failure::Found(format!(
            "{}; do not write to this store before you know why",
            plural(n, "problem")
        ))),
    }
}
