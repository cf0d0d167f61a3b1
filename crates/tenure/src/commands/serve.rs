//! `tenure server`, `tenure up` and `tenure worker`: run until asked to end, then drain.

use super::{Failure, machines};
use crate::{
    Program, cli,
    config::{Origin, Settings},
    local_key,
    service::asked_to_end,
    terminal,
};
use std::collections::BTreeMap;
use tenure_engine::pipeline::Pipeline;
use tenure_kernel::address::Address;
use tenure_server::audit::{Act, AuditTrail};

/// A server; with a worker in its process for `up`.
pub async fn run(
    program: &Program,
    settings: &Settings,
    with_worker: bool,
    json: bool,
) -> Result<String, Failure> {
    let service = program.serve(settings, with_worker).await?;
    let url = service.url();
    let store = settings.text("store.url");
    record_start(&service.node.pipeline, settings).await?;
    let admin_key = local_key::path(settings).filter(|_| service.address.ip().is_loopback());
    if let Some(path) = &admin_key {
        local_key::keep(path, &service.node.pipeline, &url).await?;
    }
    // One line that scripts can wait for: from here on it answers.
    match json {
        true => terminal::line(&format_args!(
            "{}",
            serde_json::json!({ "url": url, "store": store, "worker": with_worker })
        )),
        false => {
            let worker = if with_worker { " with a worker" } else { "" };
            terminal::line(&format_args!(
                "tenure: a server{worker} on {store}, at {url} (Ctrl-C ends it)"
            ));
            if let Some(path) = admin_key {
                terminal::line(&format_args!("        administrator's key: {}", path.display()));
            }
        }
    }
    asked_to_end().await?;
    tracing::info!("asked to end; waiting for running tools");
    service.stop().await?;
    Ok(String::new())
}

/// Puts the start of a server on the audit trail, with the settings that somebody has set.
async fn record_start(pipeline: &Pipeline, settings: &Settings) -> Result<(), Failure> {
    let set = settings.iter().filter(|(_, _, origin)| **origin != Origin::Default);
    let set: BTreeMap<&str, _> = set
        .map(|(key, value, origin)| {
            (key.name, serde_json::json!({ "value": value, "origin": origin.to_string() }))
        })
        .collect();
    let details = serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(), "settings": set,
    });
    let by = std::env::var("USER").unwrap_or_else(|_| "the operating system".to_owned());
    let act = Act::new("server.start", by).details(details);
    Ok(AuditTrail::new(pipeline.clone(), &machines()).note(act).await?)
}

/// A worker for a server in another process.
pub async fn work(
    program: &Program,
    settings: &Settings,
    options: &cli::Worker,
    json: bool,
) -> Result<String, Failure> {
    let mut remote = program.work(settings, &options.server, options.api_key.as_deref()).await?;
    let (server, slots) = (Address::from(&options.server), remote.crew.local().slots.free());
    match json {
        true => terminal::line(&format_args!(
            "{}",
            serde_json::json!({ "server": server, "slots": slots, "pid": std::process::id() })
        )),
        false => terminal::line(&format_args!(
            "tenure: a worker for {server} with {slots} slots (Ctrl-C ends it)"
        )),
    }
    asked_to_end().await?;
    tracing::info!("asked to end; waiting for running tools");
    remote.stop().await;
    Ok(String::new())
}
