//! A program and everything it starts, as one thing that can be ended.
//!
//! A process group is named by the number of its leader. That number stays taken while the leader has not been
//! reaped, even if it is long dead; afterwards the system may give it to anybody. So the order is: see that the leader
//! is gone *without* reaping it, kill what is left of the group, and only then reap. That is why the end is watched with
//! `waitid(WNOWAIT)` and SIGCHLD here, and not with Tokio's `Child::wait`, which reaps.

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::{io, process::ExitStatus};
use tokio::{
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    signal::unix::{SignalKind, signal},
    time::Instant,
};

/// A running program with its group. Dropped, the group is killed: a call that is dropped leaves nothing behind.
pub(crate) struct Group {
    child: Child,
    leader: Pid,
    reaped: bool,
}

/// The ends of a program's pipes.
pub(crate) type Pipes = (Option<ChildStdin>, Option<ChildStdout>, Option<ChildStderr>);

impl Group {
    /// Starts a program that makes itself the leader of a session, and so of a group, before it begins.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        // `kill_on_drop` also hands the leader to Tokio for reaping when it is dropped.
        let child = command.kill_on_drop(true).spawn()?;
        let leader = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        // A child that has not been waited for has an id, and ids are positive.
        let leader = leader.ok_or_else(|| io::Error::other("a new process has no number"))?;
        Ok(Group { child, leader, reaped: false })
    }

    /// The leader's number, and the group's.
    pub(crate) fn id(&self) -> Pid {
        self.leader
    }

    /// Its pipes; only once.
    pub(crate) fn pipes(&mut self) -> Pipes {
        (self.child.stdin.take(), self.child.stdout.take(), self.child.stderr.take())
    }

    /// Asks all of them to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Ends all of them.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        if !self.reaped {
            // Fails if nobody is left, which is what was wanted.
            let _ = kill_process_group(self.leader, signal);
        }
    }

    /// How the leader ended. After this, the group's number means nothing any more.
    pub(crate) async fn reap(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        self.reaped = true;
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns when this child is dead, and does not reap it.
pub(crate) async fn exited(child: Pid) -> io::Result<()> {
    // Before the first look: a signal between the look and the listening would be missed.
    let mut changed = signal(SignalKind::child())?;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    while waitid(WaitId::Pid(child), look)?.is_none() {
        changed.recv().await;
    }
    Ok(())
}

/// Returns at that time, or never.
pub(crate) async fn at(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time).await,
        None => std::future::pending().await,
    }
}
