//! `tenure drill`.

use crate::{
    cli,
    drill::{
        cluster::Engine,
        report,
        run::{Against, Outcome, Progress, Wish, run as hold},
    },
};
use std::{
    io::{IsTerminal as _, Write as _},
    pin::pin,
};
use tenure::commands::Failure;
use tenure::{config::Settings, service::asked_to_end};

/// Holds a drill, and says what was seen. A broken cell is a failure.
pub async fn run(
    settings: &Settings,
    store: Option<&str>,
    options: &cli::Drill,
    json: bool,
) -> Result<String, Failure> {
    let against = options
        .against
        .as_ref()
        .map(|url| Against { url: url.clone(), key: options.api_key.clone() });
    if against.is_some() && store.is_some() {
        return Err(Failure::System("--store and --against exclude each other".into()));
    }
    let wish = Wish {
        engine: Engine::parse(store.unwrap_or("sqlite"))?,
        against,
        kind: options.kind.clone(),
        faults: options.fault.clone(),
        only: options.only.clone(),
        rounds: options.rounds,
        seed: options.seed.unwrap_or_else(tenure::service::random),
        broken: options.broken,
    };
    let mut bar = Bar { shows: std::io::stderr().is_terminal() && !json };
    let mut end = pin!(asked_to_end());
    let outcome = hold(&wish, settings, end.as_mut(), |progress| bar.show(progress)).await;
    bar.clear();
    let outcome = outcome?;
    for (option, file, content) in [
        ("--html", &options.html, report::page as fn(&Outcome) -> String),
        ("--markdown", &options.markdown, report::markdown),
    ] {
        let Some(file) = file else { continue };
        std::fs::write(file, content(&outcome)).map_err(|e| {
            Failure::System(format!("{option} {}: the file cannot be written: {e}", file.display()))
        })?;
    }
    let said = match json {
        // Everything in it is text, numbers and lists.
        true => format!("{}\n", serde_json::to_string(&outcome).unwrap_or_default()),
        false => report::text(&outcome),
    };
    if outcome.clean {
        return Ok(said);
    }
    print!("{said}");
    Err(Failure::Found("the drill found something broken; what was seen is above".into()))
}

/// How far it is, on one line that is written over.
struct Bar {
    shows: bool,
}

const BAR: usize = 30;

impl Bar {
    fn show(&mut self, progress: &Progress) {
        if !self.shows {
            return;
        }
        let filled = BAR * progress.done / progress.all.max(1);
        let bar: String = (0..BAR).map(|i| if i < filled { '█' } else { '░' }).collect();
        let sign = if progress.good { '✓' } else { '✗' };
        let case: String = progress.case.chars().take(60).collect();
        let mut err = std::io::stderr();
        // A terminal that is gone does not stop the drill.
        let _ = write!(err, "\r\x1b[K{bar} {}/{} {sign} {case}", progress.done, progress.all);
        let _ = err.flush();
    }

    fn clear(&mut self) {
        if self.shows {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
