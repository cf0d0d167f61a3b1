//! `tenure demo`: the main promises on real processes, in less than a minute and without any service.
//!
//! This process is the server, and it plays the outside world, which counts what is done to it. Workers are
//! processes of their own. Twice one of them is killed, with SIGKILL, at the worst moment: the outside has done
//! what it was asked, and nobody has written that down. What is told about the order is read from its own
//! history as it grows; nothing waits for a time, everything for a fact, no longer than a bound.
//!
//! | room | what it holds |
//! |---|---|
//! | `stage` | server, outside world, worker processes |
//! | `story` | what is done to them, act by act |
//! | `order`, `outside` | the flows of the demo; the world that they act on, and that counts |
//! | `agent` | a turn of an agent, with a tool that is a job |
//! | `people` | approvals and settlements, from whoever answers |
//! | `watch` | the events of a job, in words, as they come |
//! | `report` | timeline, verification, and what was seen |
//! | `voice` | lines with times, and questions |

mod agent;
pub mod order;
pub mod outside;
mod people;
mod report;
mod stage;
mod story;
mod voice;
mod watch;

use super::{Failure, serve};
use crate::{Program, cli, config::Settings, service::asked_to_end, terminal};
use stage::Stage;
use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
    pin::{Pin, pin},
};
use voice::Voice;

/// How it behaves.
#[derive(Clone, Copy, Debug)]
struct Manner {
    /// End when everything is told.
    exit: bool,
    /// One JSON object instead of a story.
    json: bool,
    /// There is somebody at a terminal who answers.
    asks: bool,
}

/// Runs it.
pub async fn run(options: &cli::Demo, json: bool) -> Result<String, Failure> {
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let manner = Manner { exit: options.exit, json, asks: terminal && !json && !options.exit };
    let data = Data::make(options.keep.as_deref())?;
    let mut end = pin!(asked_to_end());
    // The first poll of `end` is what makes Ctrl-C its business.
    let mut stage = tokio::select! {
        biased;
        _ = &mut end => return Err(interrupted()),
        stage = Stage::open(data.path()) => stage?,
    };
    let told = play(&mut stage, &mut end, manner).await;
    let closed = stage.close().await;
    if options.keep.is_some() && !json {
        let dir = data.path().display();
        terminal::line(&format_args!(
            "The data is in {dir}: `tenure --store sqlite:{dir} verify` looks at it."
        ));
    }
    told.and(closed).map(|()| String::new())
}

/// A worker process of the demo. Only these have the demo's flows and tools.
pub async fn work(
    settings: &Settings,
    options: &cli::Worker,
    json: bool,
) -> Result<String, Failure> {
    serve::work(&order::with_demo(Program::new()), settings, options, json).await
}

async fn play<E: Future<Output = Result<(), Failure>>>(
    stage: &mut Stage,
    end: &mut Pin<&mut E>,
    manner: Manner,
) -> Result<(), Failure> {
    let mut voice = Voice::new(stage.now().await?, manner.json, manner.asks);
    let seen = tokio::select! {
        biased;
        _ = end.as_mut() => return Err(interrupted()),
        seen = story::tell(stage, &mut voice) => seen?,
    };
    let kept = report::give(stage, &voice, &seen).await?;
    if !manner.exit {
        let url = stage.url();
        voice.plain(&format!(
            "\nOpen {url} in a browser: the four orders and the agent are there. Ctrl-C ends it."
        ));
        end.as_mut().await?;
        voice.plain("");
    }
    match kept {
        true => Ok(()),
        false => Err(Failure::Found("a promise was not kept; what was seen is above".into())),
    }
}

fn interrupted() -> Failure {
    Failure::System("interrupted; the worker processes are ended and nothing is left".into())
}

/// Where the data lies; what is not to be kept is removed with this.
struct Data {
    path: PathBuf,
    keep: bool,
}

impl Data {
    fn make(keep: Option<&Path>) -> Result<Self, Failure> {
        let scratch = || std::env::temp_dir().join(format!("tenure-demo-{}", std::process::id()));
        let path = keep.map_or_else(scratch, Path::to_owned);
        std::fs::create_dir_all(&path)?;
        if std::fs::read_dir(&path)?.next().is_some() {
            let path = path.display();
            return Err(Failure::System(format!(
                "{path} is not empty: give the demo a new directory"
            )));
        }
        Ok(Data { path: path.canonicalize()?, keep: keep.is_some() })
    }

    fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Data {
    fn drop(&mut self) {
        if !self.keep
            && let Err(e) = std::fs::remove_dir_all(&self.path)
        {
            terminal::error_line(&format_args!(
                "tenure: {} could not be removed: {e}",
                self.path.display()
            ));
        }
    }
}
