//! Who this process is, and whether another one is known to be dead.
//!
//! A lease says when a silent holder may be replaced. Where its process is *known* to be dead there is nothing
//! to wait for. Known means proven: to be wrong once is to run an effect twice, to not know costs a lease. So
//! every doubt is an answer of "not known", and these are the doubts that were thought of:
//!
//! - A process that does not answer is not dead: it may be stopped, swapped out, or in a debugger.
//! - A number of a process means something only inside its pid namespace, and only until it is used again;
//!   the start time tells the two users apart.
//! - Another user's process can be hidden in `/proc` (`hidepid`). That it is gone is said by the kernel
//!   (`ESRCH`), never by a missing file.
//! - A zombie whose other threads go on is not dead.
//! - A machine id comes with an image. Two containers of one image on two machines would look like one machine
//!   that was started anew, so another boot proves something only outside of containers.

use rustix::{
    io::Errno,
    process::{Pid, test_kill_process},
};
use std::fs;
use tenure_kernel::sessions::Executor;

/// The initial pid namespace has the same number on every Linux (`PROC_PID_INIT_INO`).
const HOST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// Who this process is. `None` where the operating system does not say, or says it of somebody else.
pub fn executor_of_this_process() -> Option<Executor> {
    executor_of(std::process::id())
}

/// Whether that process is proven to be dead, from here. `false` is no proof that it lives.
pub fn is_known_dead(executor: &Executor) -> bool {
    executor_of_this_process().is_some_and(|here| proven(executor, &here))
}

/// The same of a process of this boot alone. Machines that were copied with their id look like one machine that was started anew;
/// somebody who ends sessions that still renew must not be misled by that.
pub fn is_known_dead_in_this_boot(executor: &Executor) -> bool {
    executor_of_this_process()
        .is_some_and(|here| executor.boot == here.boot && proven(executor, &here))
}

fn proven(executor: &Executor, here: &Executor) -> bool {
    if executor.machine != here.machine {
        return false;
    }
    if executor.boot != here.boot {
        let hosts = [executor, here].iter().all(|e| e.pid_namespace == HOST_PID_NAMESPACE);
        return hosts && !executor.boot.is_empty();
    }
    executor.pid_namespace == here.pid_namespace && is_gone(executor.pid, executor.started)
}

fn is_gone(pid: u32, started: u64) -> bool {
    let Some(number) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return false };
    if test_kill_process(number) == Err(Errno::SRCH) {
        return true;
    }
    stat(pid).is_some_and(|s| s.started != started || s.is_zombie)
}

fn executor_of(pid: u32) -> Option<Executor> {
    // A /proc of another pid namespace has other numbers in it.
    if fs::read_link("/proc/self").ok()?.to_str()? != std::process::id().to_string() {
        return None;
    }
    let machine = line("/etc/machine-id")?;
    // An image that was not started yet says "uninitialized".
    if machine.len() != 32 || !machine.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    let boot = line("/proc/sys/kernel/random/boot_id")?;
    let pid_namespace = fs::read_link("/proc/self/ns/pid").ok()?.to_str()?.to_owned();
    Some(Executor { machine, boot, pid_namespace, pid, started: stat(pid)?.started })
}

fn line(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

struct Stat {
    is_zombie: bool,
    started: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads fields 3 (state), 20 (threads) and 22 (start time) of `/proc/PID/stat`.
fn parse(text: &str) -> Option<Stat> {
    // Field 2 is the name in parentheses, which may itself hold spaces and parentheses.
    let fields: Vec<_> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let threads: u64 = fields.get(17)?.parse().ok()?;
    let is_zombie = matches!(*fields.first()?, "Z" | "X") && threads <= 1;
    Some(Stat { is_zombie, started: fields.get(19)?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Signal, WaitIdOptions, WaitIdStatus, kill_process, waitid};
    use std::process::{Child, Command};

    fn child() -> (Child, Executor) {
        let child = Command::new("sleep").arg("600").spawn().unwrap();
        let executor = executor_of(child.id()).unwrap();
        (child, executor)
    }

    fn wait_for(child: &Child, what: WaitIdOptions) -> WaitIdStatus {
        let pid = Pid::from_child(child);
        // NOWAIT leaves it as it is: a zombie stays one.
        waitid(rustix::process::WaitId::Pid(pid), what | WaitIdOptions::NOWAIT).unwrap().unwrap()
    }

    #[test]
    fn this_process_is_not_known_to_be_dead() {
        let me = executor_of_this_process().unwrap();
        assert_eq!(me.pid, std::process::id());
        assert!(me.started > 0);
        assert!(!is_known_dead(&me));
        assert_eq!(executor_of_this_process(), Some(me), "the same each time");
    }

    #[test]
    fn a_running_or_stopped_process_is_alive_and_a_killed_one_is_dead_as_zombie_and_when_reaped() {
        let (mut child, executor) = child();
        assert!(!is_known_dead(&executor), "running");
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        wait_for(&child, WaitIdOptions::STOPPED);
        assert!(!is_known_dead(&executor), "stopped");
        child.kill().unwrap();
        wait_for(&child, WaitIdOptions::EXITED);
        assert!(is_known_dead(&executor), "a zombie");
        child.wait().unwrap();
        assert!(is_known_dead(&executor), "reaped");
    }

    #[test]
    fn a_number_that_was_used_again_is_another_process() {
        let (mut child, executor) = child();
        let before = Executor { started: executor.started - 1, ..executor };
        assert!(is_known_dead(&before));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn where_it_can_not_be_seen_from_here_nothing_is_known() {
        let (mut child, executor) = child();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_known_dead(&executor));
        let elsewhere = Executor { machine: "0".repeat(32), ..executor.clone() };
        assert!(!is_known_dead(&elsewhere), "another machine");
        let inside = Executor { pid_namespace: "pid:[1]".into(), ..executor.clone() };
        assert!(!is_known_dead(&inside), "another namespace");
        let no_number = Executor { pid: u32::MAX, ..executor };
        assert!(!is_known_dead(&no_number));
    }

    #[test]
    fn another_boot_of_the_same_host_has_none_of_its_processes() {
        let here = Executor {
            machine: "a".repeat(32),
            boot: "this".into(),
            pid_namespace: HOST_PID_NAMESPACE.into(),
            pid: std::process::id(),
            started: 1,
        };
        let before = Executor { boot: "before".into(), ..here.clone() };
        assert!(proven(&before, &here));
        let unsaid = Executor { boot: String::new(), ..here.clone() };
        assert!(!proven(&unsaid, &here));
        // Two containers of one image share a machine id and can be on two machines.
        let container = Executor { pid_namespace: "pid:[4026532000]".into(), ..before.clone() };
        assert!(!proven(&container, &here));
        let in_container = Executor { boot: "this".into(), ..container.clone() };
        assert!(!proven(&before, &in_container));
        assert!(!proven(&container, &Executor { boot: "later".into(), ..container.clone() }));
    }

    #[test]
    fn a_stat_line_is_read_behind_the_name() {
        let rest = "1 1 1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 THREADS 0 4711 0";
        let line = |state: &str, threads: &str| {
            format!("7 (a) Z (b) {state} {}", rest.replace("THREADS", threads))
        };
        let read = |state: &str, threads: &str| {
            let s = parse(&line(state, threads)).unwrap();
            (s.is_zombie, s.started)
        };
        assert_eq!(read("S", "1"), (false, 4711));
        assert_eq!(read("T", "1"), (false, 4711));
        assert_eq!(read("Z", "1"), (true, 4711));
        assert_eq!(read("Z", "2"), (false, 4711), "its other threads go on");
        assert!(parse("").is_none());
        assert!(parse("7 (a) S 1").is_none());
    }
}
