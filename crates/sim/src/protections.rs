//! A protection that nothing misses is not one. For each: the world in which its absence shows.

use crate::{faults::Fault, run::Options, scenario::Scenario};
use tenure_kernel::judge::Protections;

/// A protection and the run that misses it.
#[derive(Clone, Debug)]
pub struct Missed {
    /// Its name.
    pub name: &'static str,
    /// With it on, these runs pass.
    pub on: Options,
    /// With it off, some of them fail.
    pub off: Options,
}

/// Every field of [`Protections`].
pub fn all() -> Vec<Missed> {
    use Fault::*;
    let world = |name, scenario, faults: &[Fault], switch: fn(&mut Protections)| {
        let on = Options::new(scenario).with_only(faults);
        let mut protections = Protections::default();
        switch(&mut protections);
        Missed { name, off: on.clone().protected(protections), on }
    };
    // Messages all through the storm, not only at its beginning.
    let wide = |missed: Missed| Missed {
        on: Options { width: Some(300), ..missed.on },
        off: Options { width: Some(300), ..missed.off },
        ..missed
    };
    let seasons = |missed: Missed| Missed {
        on: Options { seasons: Some(2), ..missed.on },
        off: Options { seasons: Some(2), ..missed.off },
        ..missed
    };
    vec![
        world("fencing", Scenario::Slice, &[Pause, Crash, StaleReads], |p| p.fencing = false),
        world("versions", Scenario::Bowl, &[StaleReads, Latency, Pause], |p| p.versions = false),
        world("mail", Scenario::Slice, &[Latency], |p| p.mail = false),
        world("blocked", Scenario::Slice, &[StaleReads], |p| p.blocked = false),
        world("finality", Scenario::Slice, &[], |p| p.finality = false),
        wide(world("outbox", Scenario::Fan, &[Latency, Pause], |p| p.outbox = false)),
        world("repetition", Scenario::Slice, &[AnswerLost], |p| p.repetition = false),
        world("pulse", Scenario::Slice, &[Outage], |p| p.pulse = false),
        seasons(world("vacancy", Scenario::Batches, &[BellSilent, Pause], |p| p.vacancy = false)),
        // The same protection, of tools and of workers that are to come.
        world("pulse_of_rules", Scenario::Agents, &[Outage], |p| p.pulse = false),
    ]
}
