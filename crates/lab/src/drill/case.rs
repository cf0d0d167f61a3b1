//! One thing that goes wrong, and who looks at what comes of it.

use super::{
    cluster::Engine,
    ground::{Ground, Layout},
    matrix::Witnessed,
};
use tenure::commands::Failure;
use tenure_kernel::runtime::BoxFuture;

/// Plays a case in its world.
pub type Play = Box<dyn Fn(Ground) -> BoxFuture<'static, Result<Witnessed, Failure>> + Send + Sync>;

/// Where a drill is held.
#[derive(Clone, Debug)]
pub struct Where {
    /// The store; `None` on somebody's own deployment, whose store is not ours to break.
    pub engine: Option<Engine>,
    /// How often one job loses its worker.
    pub rounds_of_reclaim: u32,
}

/// A case.
pub struct Case {
    /// Its name.
    pub name: String,
    /// Its row in the matrix.
    pub row: &'static str,
    /// Where effects lie.
    pub layout: Layout,
    /// It breaks servers or stores, and needs some of its own.
    pub alone: bool,
    /// A proxy between server and store.
    pub proxied: bool,
    /// Settings of its server beside those of the drill, as `KEY=VALUE`.
    pub sets: Vec<String>,
    /// A bus beside its server.
    pub bus: bool,
    /// A Redis, which it takes away.
    pub redis: bool,
    /// Plays it.
    pub play: Play,
}

impl Case {
    /// A case on a server that others use as well.
    pub fn new<F>(
        row: &'static str,
        name: impl Into<String>,
        play: impl Fn(Ground) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Witnessed, Failure>> + Send + 'static,
    {
        Case {
            name: name.into(),
            row,
            layout: Layout::Same,
            alone: false,
            proxied: false,
            sets: Vec::new(),
            bus: false,
            redis: false,
            play: Box::new(move |ground| Box::pin(play(ground))),
        }
    }

    /// With effects in another place.
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        if layout == Layout::Separate {
            self.name += ", separate effects";
        }
        self
    }

    /// With a server and a store of its own.
    pub fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// With a server of its own, and these settings.
    pub fn with(mut self, sets: &[&str]) -> Self {
        self.sets.extend(sets.iter().map(|s| (*s).to_owned()));
        self.alone()
    }

    /// With a server and a bus of its own.
    pub fn on_a_bus(mut self) -> Self {
        self.bus = true;
        self.alone()
    }

    /// With a Redis that it takes away.
    pub fn on_redis(mut self) -> Self {
        self.redis = true;
        self
    }

    /// With a server, a store, and a bad network between them.
    pub fn proxied(mut self) -> Self {
        (self.alone, self.proxied) = (true, true);
        self
    }
}
