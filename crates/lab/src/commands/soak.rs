//! `tenure soak`.

use crate::{
    cli,
    drill::{
        cluster::Engine,
        soak::{Wish, run as soak},
    },
};
use std::{pin::pin, time::Duration};
use tenure::commands::Failure;
use tenure::{config::Settings, service::asked_to_end};

/// Keeps load on a small cluster while things are killed, and gives the accounting.
pub async fn run(
    settings: &Settings,
    store: Option<&str>,
    options: &cli::Soak,
    json: bool,
) -> Result<String, Failure> {
    let seconds = |value: f64, name: &str| {
        Duration::try_from_secs_f64(value)
            .map_err(|_| Failure::System(format!("--{name} {value} is not a time")))
    };
    let wish = Wish {
        engine: Engine::parse(store.unwrap_or("sqlite"))?,
        time: seconds(options.minutes * 60.0, "minutes")?,
        kill_every: seconds(options.kill_every, "kill-every")?,
        clients: options.clients,
        workers: options.workers,
        seed: options.seed.unwrap_or_else(tenure::service::random),
    };
    let tell = |line: String| {
        if !json {
            eprintln!("{line}");
        }
    };
    let mut end = pin!(asked_to_end());
    let accounting = tokio::select! {
        biased;
        _ = &mut end => {
            return Err(Failure::System("interrupted; what the soak had started is ended".into()));
        }
        accounting = soak(&wish, settings, tell) => accounting?,
    };
    let said = match json {
        // Everything in it is text, numbers and lists.
        true => format!("{}\n", serde_json::to_string(&accounting).unwrap_or_default()),
        false => accounting.text(),
    };
    if accounting.clean {
        return Ok(said);
    }
    print!("{said}");
    Err(Failure::Found("the accounting does not come out even; what was seen is above".into()))
}
