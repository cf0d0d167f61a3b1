//! Random walks: from any state that can be reached, with every worker dead and nobody outside answering, every turn
//! is over within a bound that follows from the rules; and each end is announced exactly once.

use crate::world::{World, secs};
use serde_json::json;
use std::{collections::BTreeMap, time::Duration};
use tenure_agents::{
    turn::act,
    words::{Stop, ToolResult},
};
use tenure_kernel::{
    head::Head,
    ids::{CommitId, EntityId},
    table::Class,
};

const AGENTS: [&str; 3] = ["a", "b", "c"];

struct Walk {
    w: World,
    turns: Vec<EntityId>,
    held: Vec<Head>,
    mails: u32,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut w = World::seeded(seed);
        // In every second world 2.1 comes long before 2.6, and workers that hang stay and renew.
        if seed % 2 == 1 {
            w.rules.inbox_processing_ms = 40_000;
        }
        for name in AGENTS {
            w.agent(name);
        }
        Walk { w, turns: Vec::new(), held: Vec::new(), mails: 0 }
    }

    fn open(&self, status: &str) -> Vec<EntityId> {
        let here = |h: &&Head| h.kind() == "turn" && h.status.name() == status;
        self.w.store.heads.values().filter(here).map(|h| h.id).collect()
    }

    fn mail_id(&mut self) -> String {
        self.mails += 1;
        format!("m{}", self.mails)
    }

    fn step(&mut self) {
        match self.w.random() % 16 {
            0 => {
                if self.turns.len() < 40
                    && let Some(name) = self.w.pick(&AGENTS)
                {
                    let new = self.w.new_turn(name);
                    let turn = self.w.send_new(new);
                    self.turns.push(turn);
                }
            }
            1 | 2 => {
                let mut free = self.open("dispatched");
                free.extend(self.open("ready"));
                if let Some(turn) = self.w.pick(&free) {
                    let worker = self.w.worker();
                    self.held.extend(self.w.claim(turn, worker));
                }
            }
            3..=5 => self.work(),
            6 => {
                // A worker dies; or it is only thought dead, and goes on.
                if let Some(held) = self.w.pick(&self.held.clone()) {
                    let mine = self.w.head(held.id);
                    if mine.holder.is_some() && mine.class() == Class::Open {
                        self.w.lose(held.id);
                    }
                }
            }
            7 | 8 => self.answer(),
            9 => {
                if let Some(turn) = self.w.pick(&self.turns.clone())
                    && self.w.random().is_multiple_of(4)
                {
                    let id = self.mail_id();
                    self.w.mail(turn, &id, "stop", &Stop::default());
                }
            }
            10..=12 => {
                let sources = self.w.sources();
                if let Some(source) = self.w.pick(&sources) {
                    self.w.deliver_first(source);
                }
            }
            13 | 14 => {
                let due: Vec<EntityId> = self.w.store.heads.keys().copied().collect();
                if let Some(one) = self.w.pick(&due) {
                    self.w.serve(one);
                }
            }
            15 if self.w.random().is_multiple_of(8) => {
                let seconds = 10 + self.w.random() % 600;
                self.w.outage(secs(seconds));
            }
            _ => {
                let ms = self.w.random() % 20_000;
                self.w.store.now = self.w.store.now + Duration::from_millis(ms);
            }
        }
    }

    /// A worker does something; it may have lost the turn, and is refused then.
    fn work(&mut self) {
        let Some(held) = self.w.pick(&self.held.clone()) else { return };
        if self.w.is_final(held.id) || self.w.status(held.id) != "running" {
            self.held.retain(|h| h.id != held.id);
            return;
        }
        let (state, cx) = (self.w.turn(held.id), self.w.cx(held.id));
        let began = state.asking_ms > 0;
        match self.w.random() % 6 {
            _ if !began => {
                let decision = act::start_step(&state, &cx, 60_000, json!(null));
                self.w.act_unread(&held, decision);
            }
            0 => {
                self.w.finish(&held);
            }
            1 if self.w.random().is_multiple_of(3) => {
                // It does not want it.
                let parted = act::give_back(&state, &cx, "no");
                if parted.parks {
                    let mut head = self.w.head(held.id);
                    head.epoch = held.epoch;
                    let id = CommitId::new(self.w.random(), self.w.random());
                    let commit = act::parting(&head, state, parted.decision, id, None);
                    self.w.store.commit(&commit);
                } else {
                    self.w.act_unread(&held, parted.decision);
                }
            }
            1 => {
                let decision = act::progress(&state, &cx, "");
                self.w.act_unread(&held, decision);
            }
            2 => {
                let unread = self.w.unread(held.id);
                if !unread.is_empty() {
                    let decision = tenure_agents::turn::decide::on_mail(&state, &unread, &cx);
                    self.w.act(&held, decision);
                }
            }
            3 => {
                let calls =
                    vec![self.w.outside_call("x", None), self.w.outside_call("y", Some(45_000))];
                self.w.suspend_with(&held, calls, &BTreeMap::new());
            }
            4 => {
                let n = act::next_ordinal(&state);
                let calls = vec![
                    self.w.job_call(held.id, "j", n, None),
                    self.w.job_call(held.id, "k", n + 1, Some(120_000)),
                ];
                self.w.suspend(&held, calls);
            }
            _ if state.depth < 3 => {
                let names = [self.w.pick(&AGENTS), self.w.pick(&AGENTS)];
                let names: Vec<&str> = names.into_iter().flatten().collect();
                let call = self.w.join_call(held.id, &names, began, 60_000);
                self.w.suspend(&held, vec![call]);
            }
            _ => {}
        }
    }

    fn answer(&mut self) {
        let jobs: Vec<EntityId> = self.w.outside.jobs.keys().copied().collect();
        if let Some(job) = self.w.pick(&jobs)
            && self.w.random().is_multiple_of(2)
        {
            self.w.job_ends(job, "completed");
        }
        if let Some(turn) = self.w.pick(&self.turns.clone()) {
            let wait = self.w.turn(turn).waits.first().map(|w| w.id.clone());
            let guess = ["1.1", "1.2", "2.1"][usize::try_from(self.w.random() % 3).expect("small")];
            let wait = wait.unwrap_or_else(|| guess.to_owned());
            let epoch = self.w.random() % 4;
            let answer = ToolResult {
                wait: Some(wait),
                turn_epoch: (epoch < 3).then_some(epoch),
                ..ToolResult::default()
            };
            let id = self.mail_id();
            self.w.result(turn, &id, answer);
        }
    }
}

/// The longest any turn can last once everybody is dead: a line of turns per agent, each through its own longest path,
/// which is one claim that is lost (a lease), one reap, one suspend and its resume. Joins and children end before the waits
/// of those who asked. The last outage may have been just now: one lease more, once, whatever there is.
fn bound(turns: usize) -> Duration {
    let one = secs(30 + 300 + 120 + 300 + 15);
    one * u32::try_from(turns).expect("few") + secs(60) + secs(15)
}

#[test]
fn from_anywhere_every_turn_ends_and_is_announced_once() {
    let seeds = std::env::var("TENURE_WALKS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    for seed in 0..seeds {
        let mut walk = Walk::new(seed);
        for _ in 0..400 {
            walk.step();
        }
        // Everybody dies; the bus is down; nobody outside answers.
        let held: Vec<EntityId> = walk
            .w
            .store
            .heads
            .values()
            .filter(|h| h.kind() == "turn" && h.holder.is_some())
            .map(|h| h.id)
            .collect();
        for turn in held {
            if seed % 2 == 0 || walk.w.random().is_multiple_of(2) {
                walk.w.lose(turn);
            }
        }
        let all = walk.w.store.heads.values().filter(|h| h.kind() == "turn").count();
        walk.w.pass(bound(all));
        for head in walk.w.store.heads.values() {
            let open = head.class() == Class::Open && ["turn", "join"].contains(&head.kind());
            assert!(!open, "seed {seed}: {} {} is {}", head.kind(), head.id, head.status.name());
        }
        for name in AGENTS {
            let agent = walk.w.agent_state(name);
            assert!(agent.active.is_none() && agent.queue.is_empty(), "seed {seed}: {agent:?}");
        }
        walk.w.check();
    }
}
