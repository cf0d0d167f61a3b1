//! What the drill that started this process wants of it, read from the environment: which flow it works for, where it
//! kills itself, which protection is off, how wrong its clock is. Only `tenure-lab` reads these variables.

use crate::drill::{breaks::Break, flows, points};
use std::sync::Arc;
use tenure::{Program, alterations::Alterations, cli::Command};
use tenure_jobs::drive::{JobOptions, Probe};
use tenure_kernel::{judge::Judge, machine::Machines, runtime::Rt, store::Store};
use tenure_pods::{collect::Sink, execute::cluster::Cluster};
use tenure_steps::{effects::Effects, flow::Flows};

/// Set for every process of a drill.
pub const CHILD: &str = "TENURE_DRILL_CHILD";

/// `NAME@VERSION`: the one flow of a worker. Each case of a drill has its own, so that the workers of one
/// never run the jobs of another, nor those of other users of the server.
pub const FLOW: &str = "TENURE_DRILL_FLOW";

/// Set for workers that run turns of agents, too.
pub const TURNS: &str = "TENURE_DRILL_TURNS";

/// By how many seconds the clock of this process is wrong.
pub const CLOCK: &str = "TENURE_DRILL_CLOCK";

/// Dies with the drill that started this process, and takes the clock that it gives.
pub fn become_a_child() -> Result<(), String> {
    if std::env::var_os(CHILD).is_none() {
        return Ok(());
    }
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
        .map_err(|e| format!("{CHILD}: {e}"))?;
    if let Ok(wanted) = std::env::var(CLOCK) {
        let seconds = wanted.parse().map_err(|_| format!("{CLOCK}: {wanted:?} is not a number"))?;
        tenure_edge::set_clock_wrong_by(seconds);
    }
    Ok(())
}

/// A process of the laboratory: the flows that it serves, and what its drill has altered.
#[derive(Clone, Default)]
pub struct LabProcess {
    /// The only flows of its worker; without them, those of the product and of the laboratory.
    flows: Option<Flows>,
    turns: bool,
    broken: Option<Break>,
    probe: Option<Probe>,
}

impl LabProcess {
    /// As the environment of this process says.
    pub fn from_environment() -> Result<Self, String> {
        Ok(LabProcess {
            flows: only_flow()?,
            turns: std::env::var_os(TURNS).is_some(),
            broken: Break::from_environment()?,
            probe: points::from_environment()?,
        })
    }

    /// The program of a process that was started for this command.
    pub fn program(self, command: &Command) -> Program {
        let mut program = lab_program();
        if let (Command::Worker(_), Some(flows)) = (command, &self.flows) {
            program = program.only(flows.clone());
            if !self.turns {
                program = program.without_turns();
            }
        }
        program.altered(Arc::new(self))
    }
}

/// The flows and tools of the product, and those of the laboratory and the demo.
pub fn lab_program() -> Program {
    let program = tenure::commands::demo::order::with_demo(Program::new());
    let program = flows::flows().iter().cloned().fold(program, Program::flow);
    flows::tools().iter().cloned().fold(program, Program::common_tool)
}

/// The flows of a worker of a drill.
fn only_flow() -> Result<Option<Flows>, String> {
    let Ok(wanted) = std::env::var(FLOW) else { return Ok(None) };
    let parsed = wanted.split_once('@').and_then(|(name, v)| Some((name, v.parse::<u32>().ok()?)));
    let (name, version) = parsed.ok_or(format!("{FLOW}: {wanted:?} is not NAME@VERSION"))?;
    Ok(Some(Flows::default().with(flows::script_as(name, version))))
}

impl Alterations for LabProcess {
    fn probe(&self) -> Option<Probe> {
        self.probe.clone()
    }

    fn check_store(&self, url: &str) -> Result<(), String> {
        self.broken.map_or(Ok(()), |broken| broken.insist_on_scratch(url))
    }

    fn machines(&self, _: Machines) -> Machines {
        crate::machines()
    }

    fn judge(&self, judge: Judge) -> Judge {
        let mut judge = crate::judge().admitting(judge.admissions);
        if let Some(broken) = self.broken {
            broken.weaken_judge(&mut judge);
        }
        judge
    }

    fn store(&self, store: Arc<dyn Store>) -> Arc<dyn Store> {
        match self.broken {
            Some(broken) => broken.weaken_store(store),
            None => store,
        }
    }

    fn jobs(&self, mut options: JobOptions) -> JobOptions {
        if let Some(broken) = self.broken {
            broken.weaken_jobs(&mut options);
        }
        options
    }

    fn effects(&self, effects: Arc<dyn Effects>) -> Arc<dyn Effects> {
        match self.broken {
            Some(broken) => broken.weaken_effects(effects),
            None => effects,
        }
    }

    fn sink(&self, sink: Arc<dyn Sink>, rt: &Rt) -> Arc<dyn Sink> {
        match self.broken {
            Some(broken) => broken.weaken_sink(sink, rt.clone()),
            None => sink,
        }
    }

    fn cluster(&self, cluster: Arc<dyn Cluster>) -> Arc<dyn Cluster> {
        match self.broken {
            Some(broken) => broken.weaken_cluster(cluster),
            None => cluster,
        }
    }
}
