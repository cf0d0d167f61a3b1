//! `tenure worker list`: who is alive, and what each runs, over HTTP.

use super::{
    Failure,
    job::{args::Server, client::Api},
    table::table,
};
use crate::cli;
use serde_json::Value;

/// Lists workers and servers that are alive.
pub async fn list(options: &cli::Worker, json: bool) -> Result<String, Failure> {
    let server =
        Server { server: options.server.clone(), api_key: options.api_key.clone(), by: None };
    let answer = Api::new(&server, json)?.get(&["workers"], &[]).await?;
    if json {
        return Ok(format!("{answer}\n"));
    }
    let all = answer.as_array().cloned().unwrap_or_default();
    if all.is_empty() {
        return Ok("nobody is alive; `tenure worker` starts a worker\n".to_owned());
    }
    let row = |one: &Value| {
        let text = |member: &str| one[member].as_str().unwrap_or("").to_owned();
        let flows = one["jobs"].as_array().into_iter().flatten();
        let flows: Vec<&str> = flows.filter_map(|job| job["flow"].as_str()).take(5).collect();
        let holds = one["holds"].as_u64().unwrap_or(0).to_string();
        let lease = one["lease_ms"].as_u64().unwrap_or(0) as f64 / 1_000.0;
        vec![text("id"), text("role"), text("name"), format!("{lease} s"), holds, flows.join(", ")]
    };
    Ok(table(&["SESSION", "ROLE", "NAME", "LEASE", "HOLDS", "RUNS"], all.iter().map(row)))
}
