//! The kinds of faults, each of which can be switched on and off, and the plan that a seed draws from
//! them: which of them this run has at all, when they begin and how long they last.

use std::fmt;

/// Something that goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Fault {
    /// A node dies where it stands and starts again later.
    Crash,
    /// A node stands still, sometimes past its lease, and goes on (SIGSTOP, SIGCONT).
    Pause,
    /// Nodes' clocks run fast or slow, and begin anywhere.
    ClockSkew,
    /// Calls find no connection for a while.
    Unavailable,
    /// Nothing reaches the store for minutes.
    Outage,
    /// One node does not reach the store.
    Partition,
    /// A commit happens; its answer does not come.
    AnswerLost,
    /// A commit does not happen; nobody says so.
    RequestLost,
    /// Calls take seconds.
    Latency,
    /// Heads are locked by others.
    Busy,
    /// Reads see the past.
    StaleReads,
    /// Rings get lost.
    BellLost,
    /// Rings come late and twice.
    BellLate,
    /// No bell rings.
    BellSilent,
    /// A node is asked to leave in order, and starts again.
    Shutdown,
    /// All nodes die and start again, several times.
    RestartStorm,
    /// The store's wall clock jumps forward.
    ClockJump,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 17] = [
        Fault::Crash,
        Fault::Pause,
        Fault::ClockSkew,
        Fault::Unavailable,
        Fault::Outage,
        Fault::Partition,
        Fault::AnswerLost,
        Fault::RequestLost,
        Fault::Latency,
        Fault::Busy,
        Fault::StaleReads,
        Fault::BellLost,
        Fault::BellLate,
        Fault::BellSilent,
        Fault::Shutdown,
        Fault::RestartStorm,
        Fault::ClockJump,
    ];
}

impl Fault {
    /// Whether it can keep a living process from renewing its session in time, other than by an
    /// outage of the whole store. Without such a fault nobody's tenure is ended over its head.
    pub fn costs_tenures(self) -> bool {
        !matches!(
            self,
            Fault::Outage
                | Fault::Busy
                | Fault::StaleReads
                | Fault::BellLost
                | Fault::BellLate
                | Fault::BellSilent
        )
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Which faults a run may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    /// Every kind; the seed picks among them.
    pub fn all() -> Self {
        Faults(Fault::ALL.to_vec())
    }

    /// None.
    pub fn none() -> Self {
        Faults(Vec::new())
    }

    /// Only these, and all of them.
    pub fn only(faults: &[Fault]) -> Self {
        Faults(faults.to_vec())
    }

    /// Without this one.
    pub fn without(mut self, fault: Fault) -> Self {
        self.0.retain(|f| *f != fault);
        self
    }

    /// What is allowed.
    pub fn iter(&self) -> impl Iterator<Item = Fault> + '_ {
        self.0.iter().copied()
    }
}
