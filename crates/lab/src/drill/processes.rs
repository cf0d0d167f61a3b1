//! Processes of a drill: servers and workers that can be killed and stopped, and that end with their owner.

use super::{breaks, points};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tenure::commands::Failure;
use tokio::process::{Child, Command};

/// How long anything is waited for.
pub const PATIENCE: Duration = Duration::from_secs(40);

/// Between two looks at something that another process does.
pub const LOOK: Duration = Duration::from_millis(15);

/// Where a program of the machine is. Debian keeps servers outside of an ordinary user's PATH.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}

/// A process, its log, and no way to outlive this value.
pub struct Hand {
    child: Child,
    log: PathBuf,
    pid: Option<Pid>,
}

/// This very program, with none of the settings of whoever runs the drill.
pub fn this_program(arguments: &[&str], sets: &[String]) -> Result<Command, Failure> {
    // Not its path: the file may have been replaced since this process was started.
    let mut command = Command::new("/proc/self/exe");
    let is_setting = |name: &str| {
        ["TENURE_", "FLOWFORGE_", "KUBERNETES_SERVICE_"].iter().any(|p| name.starts_with(p))
            || name == "NODE_NAME"
    };
    for (name, _) in std::env::vars().filter(|(name, _)| is_setting(name)) {
        command.env_remove(name);
    }
    command.args(arguments).env(crate::lab_process::CHILD, "1").env("NO_COLOR", "1");
    for set in sets {
        command.args(["--set", set]);
    }
    Ok(command)
}

/// What a worker of a drill is told.
#[derive(Clone, Debug, Default)]
pub struct Orders {
    /// The one flow it runs: `NAME@VERSION`.
    pub flow: String,
    /// Where it ends or stops itself: see [`points`].
    pub point: Option<String>,
    /// A protection that is switched off.
    pub broken: Option<breaks::Break>,
    /// An API key.
    pub key: Option<String>,
    /// It runs turns of agents, too.
    pub turns: bool,
    /// By how many seconds its clock is wrong.
    pub clock: i64,
}

impl Orders {
    /// As variables.
    pub fn give(&self, command: &mut Command) {
        command.env(crate::lab_process::FLOW, &self.flow);
        if let Some(point) = &self.point {
            command.env(points::VARIABLE, point);
        }
        if let Some(broken) = self.broken {
            command.env(breaks::VARIABLE, broken.name());
        }
        if let Some(key) = &self.key {
            command.env("TENURE_API_KEY", key);
        }
        if self.turns {
            command.env(crate::lab_process::TURNS, "1");
        }
        if self.clock != 0 {
            command.env(crate::lab_process::CLOCK, self.clock.to_string());
        }
    }
}

impl Hand {
    /// Starts it; what it says goes to a file in `dir`.
    pub fn start(mut command: Command, dir: &Path, name: &str) -> Result<Self, Failure> {
        let log = dir.join(format!("{name}.log"));
        let out = File::options().create(true).append(true).open(&log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out).current_dir(dir);
        let child = command.kill_on_drop(true).spawn()?;
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        Ok(Hand { child, log, pid })
    }

    /// Sends a signal; one that is gone does not mind.
    pub fn send(&self, signal: Signal) {
        if let Some(pid) = self.pid {
            let _ = kill_process(pid, signal);
        }
    }

    /// SIGKILL, and the kernel has taken it away.
    pub async fn kill(&mut self) -> Result<(), Failure> {
        Ok(self.child.kill().await?)
    }

    /// What it said so far.
    pub fn said(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The end of what it said, for a report about it.
    pub fn last_words(&self) -> String {
        let said = self.said();
        let from = said.lines().count().saturating_sub(5);
        said.lines().skip(from).collect::<Vec<_>>().join(" / ")
    }

    /// Returns when it has said this.
    pub async fn until_said(&mut self, what: &str) -> Result<(), Failure> {
        self.until_said_any(&[what]).await
    }

    /// Returns when it has noticed that a job is no longer its own.
    pub async fn until_lost(&mut self) -> Result<(), Failure> {
        self.until_said_any(&["lost to another worker", "given back", "could not be recorded"])
            .await
    }

    async fn until_said_any(&mut self, what: &[&str]) -> Result<(), Failure> {
        let looking = async {
            while !what.iter().any(|w| self.said().contains(w)) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, looking).await.is_ok();
        match found {
            true => Ok(()),
            false => Err(Failure::System(format!(
                "a process never said {what:?}; its last words: {}",
                self.last_words()
            ))),
        }
    }

    /// Returns when it has ended.
    pub async fn ended(&mut self) -> Result<ExitStatus, Failure> {
        match tokio::time::timeout(PATIENCE, self.child.wait()).await {
            Ok(status) => Ok(status?),
            Err(_) => Err(Failure::System(format!(
                "a worker that was to end itself still runs; its last words: {}",
                self.last_words()
            ))),
        }
    }

    /// Returns when it has killed itself at this point, and at no other.
    pub async fn struck_at(&mut self, point: &str) -> Result<(), Failure> {
        let status = self.ended().await?;
        let killed = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
        match killed && self.said().contains(&format!("drill: {point}")) {
            true => Ok(()),
            false => Err(Failure::System(format!(
                "a worker was to kill itself at {point} and ended with {status}; its last words: {}",
                self.last_words()
            ))),
        }
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Its resident memory, in bytes.
    pub fn memory(&self) -> Option<u64> {
        let pid = self.pid?.as_raw_pid();
        let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
        let pages: u64 = statm.split(' ').nth(1)?.parse().ok()?;
        Some(pages * rustix::param::page_size() as u64)
    }
}
