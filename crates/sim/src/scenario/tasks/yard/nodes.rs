//! Nodes: which of them answer, which have power, and when one is back.

use super::{NODES, Yard, s};
use crate::{scenario::tasks::reach::Levels, world::World};
use std::{sync::Arc, time::Duration};

/// How long a dark node is away. A pod on it is called lost, waited for (`fence_ms`), and taken away by force where its task
/// bears that, before the node is back.
const DARK: std::ops::Range<Duration> = s(300)..s(500);

/// How a node is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Node {
    /// Nothing of it reaches the API server, nor the other way round.
    pub silent: bool,
    /// It has no power.
    pub off: bool,
    pub gone: bool,
    /// The end of the storm does not bring it back: it has a time of its own, longer than anybody waits for a lost pod.
    pub dark: bool,
}

impl Yard {
    pub(super) fn node(&self, name: &str) -> Node {
        self.truth().nodes.get(name).copied().unwrap_or_default()
    }

    pub(super) fn pick(&self, world: &World) -> Option<String> {
        let well: Vec<String> = self
            .truth()
            .nodes
            .iter()
            .filter(|(_, n)| **n == Node::default())
            .map(|(name, _)| name.clone())
            .collect();
        if well.is_empty() {
            return None;
        }
        Some(well[world.sim.draw(|rng| rng.index(well.len()))].clone())
    }

    /// A node falls silent: cut off, or without power. It may be declared lost, come back, or be removed. One at a time stays dark.
    pub(in crate::scenario::tasks) fn lose_node(&self, world: &Arc<World>) {
        let Some(node) = self.pick(world) else { return };
        let may_be_dark = !self.is_dark();
        let (off, lost_in, fate, (dark, after)) = world.sim.draw(|rng| {
            (
                rng.permille(500),
                rng.permille(700).then(|| rng.between(s(5)..s(120))),
                rng.below(10),
                match may_be_dark && rng.permille(400) {
                    true => (true, rng.between(DARK)),
                    false => (false, rng.between(s(5)..s(400))),
                },
            )
        });
        self.count(if off { "node without power" } else { "node cut off" });
        world.sim.trace(format!("{node} is silent, off {off}, dark {dark}"));
        self.truth().nodes.insert(node.clone(), Node { silent: true, off, gone: false, dark });
        if off {
            self.truth().alive.retain(|_, a| a.node != node);
        }
        self.at(world).node_silent(&node);
        self.beat();
        if let Some(d) = lost_in {
            let (world, node) = (world.clone(), node.clone());
            world.sim.clone().after(d, move || {
                let yard = &world.yard;
                if yard.node(&node).silent && !yard.node(&node).gone {
                    yard.count("node lost");
                    world.sim.trace(format!("{node} is lost"));
                    yard.at(&world).node_lost(&node);
                    yard.after_deletions(&world);
                }
            });
        }
        let later = world.clone();
        world.sim.after(after, move || match fate {
            0..=2 => later.yard.remove_node(&later, &node),
            _ => later.yard.node_back(&later, &node),
        });
    }

    fn node_back(&self, world: &Arc<World>, node: &str) {
        let was = self.node(node);
        if !was.silent || was.gone {
            return;
        }
        world.sim.trace(format!("{node} is back"));
        self.truth().nodes.insert(node.to_owned(), Node::default());
        self.at(world).node_back(node);
        self.beat();
    }

    /// Somebody takes the machine away for good, and another one gets its name.
    fn remove_node(&self, world: &Arc<World>, node: &str) {
        if self.node(node).gone || !self.node(node).silent {
            return;
        }
        self.count("node gone");
        world.sim.trace(format!("{node} is gone"));
        let gone = Node { silent: true, off: true, gone: true, dark: false };
        self.truth().nodes.insert(node.to_owned(), gone);
        self.truth().alive.retain(|_, a| a.node != node);
        self.at(world).node_gone(node);
        self.beat();
        let (later, node) = (world.clone(), node.to_owned());
        world.sim.after(s(30), move || {
            later.yard.at(&later).add_node(&node);
            later.yard.truth().nodes.insert(node, Node::default());
            later.yard.beat();
        });
    }

    /// Whether a node stays away although the storm is over.
    pub(crate) fn is_dark(&self) -> bool {
        self.truth().nodes.values().any(|n| n.dark)
    }

    /// The storm is over: every node is there, except one that is dark.
    pub(in crate::scenario::tasks) fn calm(&self, world: &Arc<World>) {
        self.truth().levels = Levels::default();
        for node in NODES {
            if !self.node(node).dark {
                self.node_back(world, node);
            }
        }
        self.beat();
    }
}
