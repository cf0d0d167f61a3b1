//! A process that a drill has started: it dies with the drill, and works for one flow only.

use super::flows;
use tenure_steps::flow::Flows;

/// Set for every process of a drill.
pub const CHILD: &str = "TENURE_DRILL_CHILD";

/// `NAME@VERSION`: the one flow of a worker. Each case of a drill has its own, so that the workers of one
/// never run the jobs of another, nor those of whoever else uses the server.
pub const FLOW: &str = "TENURE_DRILL_FLOW";

/// Set for workers that run turns of agents, too.
pub const TURNS: &str = "TENURE_DRILL_TURNS";

/// By how many seconds the clock of this process is wrong.
pub const CLOCK: &str = "TENURE_DRILL_CLOCK";

/// Sets the clock of this process wrong, if a drill asks for it.
pub fn take_the_clock_of_the_drill() -> Result<(), String> {
    let (Some(_), Ok(wish)) = (std::env::var_os(CHILD), std::env::var(CLOCK)) else {
        return Ok(());
    };
    let seconds = wish.parse().map_err(|_| format!("{CLOCK}: {wish:?} is not a number"))?;
    tenure_edge::set_clock_wrong_by(seconds);
    Ok(())
}

/// Whether a worker of a drill runs turns of agents.
pub fn runs_turns() -> bool {
    std::env::var_os(TURNS).is_some()
}

/// Dies with the process that started this one, if that was a drill.
pub fn die_with_the_drill() -> Result<(), String> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| format!("{CHILD}: {e}"))
}

/// The flows of a worker of a drill.
pub fn flows_from_environment() -> Result<Option<Flows>, String> {
    let Ok(wish) = std::env::var(FLOW) else { return Ok(None) };
    let parsed = wish.split_once('@').and_then(|(name, v)| Some((name, v.parse::<u32>().ok()?)));
    let (name, version) = parsed.ok_or(format!("{FLOW}: {wish:?} is not NAME@VERSION"))?;
    Ok(Some(Flows::default().with(flows::script_as(name, version))))
}
