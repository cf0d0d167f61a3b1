//! Points at which a worker process ends or stops itself, for drills and tests: `TENURE_DRILL_POINT` holds
//! `NAME`, `NAME:N` or `NAME:N:ACTION`, and at the N-th passage of that point (see
//! [`tenure_jobs::drive::points`]; of turns, [`turn_points`]; of pods, [`pod_points`]; of collectors, [`report_points`])
//! the process is killed (`kill`, and if nothing else is said), stopped (`stop`), or told to say so and go on (`say`).
//! With `armed` it is killed, and only what is passed after a file of the name [`ARMED`] lies in its directory counts:
//! where a point is passed once more for every try that fails, nobody can say beforehand which passage it will be.
//! A marker line on standard error says that it is about to happen.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};
use tenure_agents::drive::worker::points as turn_points;
use tenure_jobs::drive::{Probe, points};
use tenure_pods::{collect::points as report_points, execute::points as pod_points};

/// The variable.
pub const VARIABLE: &str = "TENURE_DRILL_POINT";

/// The file that arms it.
pub const ARMED: &str = "armed";

/// What the process does to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Kill,
    Stop,
    Say,
}

/// The probe that the environment asks for, if it does.
pub fn from_environment() -> Result<Option<Probe>, String> {
    let Ok(wish) = std::env::var(VARIABLE) else { return Ok(None) };
    let mut parts = wish.split(':');
    let name = parts.next().unwrap_or("");
    let of_pods = || pod_points::ALL.iter().chain(&report_points::ALL);
    let all = || points::ALL.iter().chain(&turn_points::ALL).chain(of_pods()).copied();
    let known = all().find(|p| *p == name);
    let Some(point) = known else {
        return Err(format!(
            "{VARIABLE}: there is no point {name:?}; there are: {}",
            all().collect::<Vec<_>>().join(", ")
        ));
    };
    let nth: u32 = match parts.next() {
        None => 1,
        Some(n) => n.parse().map_err(|_| format!("{VARIABLE}: {n:?} is not a number"))?,
    };
    let (action, on_order) = match parts.next() {
        None | Some("kill") => (Action::Kill, false),
        Some("armed") => (Action::Kill, true),
        Some("stop") => (Action::Stop, false),
        Some("say") => (Action::Say, false),
        Some(other) => {
            return Err(format!("{VARIABLE}: {other:?} is none of kill, armed, stop, say"));
        }
    };
    let armed = move || !on_order || std::path::Path::new(ARMED).exists();
    let passed = Arc::new(AtomicU32::new(0));
    Ok(Some(Arc::new(move |at| {
        if at == point && armed() && passed.fetch_add(1, Ordering::SeqCst) + 1 == nth {
            strike(at, nth, action);
        }
        Box::pin(std::future::ready(()))
    })))
}

#[expect(
    clippy::disallowed_methods,
    reason = "it is the thread of a process that is being stopped"
)]
fn strike(point: &str, nth: u32, action: Action) {
    eprintln!("drill: {point}:{nth}");
    let signal = match action {
        Action::Kill => rustix::process::Signal::KILL,
        Action::Stop => rustix::process::Signal::STOP,
        Action::Say => return,
    };
    let me = rustix::process::getpid();
    // SIGKILL and SIGSTOP to oneself can not fail or be caught; if they did, the drill would show it.
    let _ = rustix::process::kill_process(me, signal);
    if action == Action::Stop {
        // The signal goes to the process, and this thread runs on until it has been seen everywhere. It must not
        // come past this point before that.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
