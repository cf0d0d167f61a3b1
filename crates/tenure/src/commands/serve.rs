//! `tenure server`, `tenure up` and `tenure worker`: run until asked to end, then drain.

use super::Failure;
use crate::{
    config::Settings,
    service::{Program, asked_to_end},
};

/// A server; with a worker in its process for `up`.
pub async fn run(settings: &Settings, with_worker: bool, json: bool) -> Result<String, Failure> {
    let service = Program::new().serve(settings, with_worker).await?;
    let url = service.url();
    let store = settings.text("store.url");
    // One line that scripts can wait for: from here on it answers.
    match json {
        true => {
            println!("{}", serde_json::json!({ "url": url, "store": store, "worker": with_worker }))
        }
        false => {
            let worker = if with_worker { " with a worker" } else { "" };
            println!("tenure: a server{worker} on {store}, at {url} (Ctrl-C ends it)");
        }
    }
    asked_to_end().await?;
    tracing::info!("asked to end; waiting for running tools");
    service.stop().await?;
    Ok(String::new())
}

/// A worker for a server in another process.
pub async fn work(
    settings: &Settings,
    server: &str,
    api_key: Option<&str>,
    json: bool,
) -> Result<String, Failure> {
    let mut remote = Program::of_this_process()?.work(settings, server, api_key).await?;
    let slots = remote.crew.local().slots.free();
    match json {
        true => println!(
            "{}",
            serde_json::json!({ "server": server, "slots": slots, "pid": std::process::id() })
        ),
        false => println!("tenure: a worker for {server} with {slots} slots (Ctrl-C ends it)"),
    }
    asked_to_end().await?;
    tracing::info!("asked to end; waiting for running tools");
    remote.stop().await;
    Ok(String::new())
}
