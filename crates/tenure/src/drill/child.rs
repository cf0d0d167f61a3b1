//! A process that a drill has started: it dies with the drill, and works for one flow only.

use super::flows;
use tenure_steps::flow::Flows;

/// Set for every process of a drill.
pub const CHILD: &str = "TENURE_DRILL_CHILD";

/// `NAME@VERSION`: the one flow of a worker. Each case of a drill has its own, so that the workers of one
/// never run the jobs of another, nor those of whoever else uses the server.
pub const FLOW: &str = "TENURE_DRILL_FLOW";

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
