//! Follows, for ever: the hands of [`Machine`].

use super::{
    machine::{FollowPolicy, Machine, Note, Outcome, Step},
    pulse::Pulse,
    source::{Object, Source, Told, Watch},
    trouble::Trouble,
};
use tenure_kernel::runtime::{First, Rt, first};
use tokio::sync::mpsc;

/// So many objects of a page are told at once. Whoever listens takes few messages at a time, to hold few objects; a page of five hundred as
/// one of them would make that a word without meaning.
const PIECE: usize = 4;

/// What whoever listens is told, in order.
#[derive(Debug)]
pub enum Seen<K> {
    /// A list begins. If one had begun before, it is forgotten.
    ListBegan,
    /// These are there. The end of a list that began means: these are all.
    Listed(Vec<K>),
    /// The list is complete.
    ListComplete,
    /// It is there, or is like this now.
    Changed(K),
    /// It is gone, or no longer fits the selector.
    Deleted(K),
}

/// Follows a source until nobody listens any more. Dropping it is safe at any point.
///
/// A listener that is slow is waited for: nothing is read from the watch meanwhile, and if that takes longer than the
/// API server remembers, everything is listed again.
pub async fn run<K: Object>(
    source: &dyn Source<K>,
    policy: FollowPolicy,
    rt: Rt,
    to: mpsc::Sender<Seen<K>>,
    pulse: &Pulse,
) {
    let patience = policy.patience;
    let mut follower =
        Follower { source, rt, to, pulse, machine: Machine::new(policy), patience, watch: None };
    // An error is that nobody listens.
    let _ = follower.follow().await;
}

struct Deaf;

struct Follower<'a, K> {
    source: &'a dyn Source<K>,
    rt: Rt,
    to: mpsc::Sender<Seen<K>>,
    pulse: &'a Pulse,
    machine: Machine,
    patience: std::time::Duration,
    watch: Option<Box<dyn Watch<K>>>,
}

impl<K: Object> Follower<'_, K> {
    async fn follow(&mut self) -> Result<(), Deaf> {
        loop {
            let random = self.rt.random();
            match self.machine.next(random) {
                Some(Step::Pause(pause)) => {
                    let closed = self.to.clone();
                    if let First::Left(()) = first(closed.closed(), self.rt.sleep(pause)).await {
                        return Err(Deaf);
                    }
                }
                Some(Step::List { limit, token }) => self.list(limit, token).await?,
                Some(Step::Watch { from, seconds }) => self.open(&from, seconds).await,
                None => self.listen().await?,
            }
        }
    }

    fn saw(&mut self, outcome: Outcome<'_>) -> Note {
        if let Outcome::Failed(trouble) = outcome {
            self.complain(trouble);
        }
        let (now, random) = (self.rt.mono(), self.rt.random());
        // That a watch stands says nothing: there are servers that open it and close it at once.
        if matches!(outcome, Outcome::Heard { .. } | Outcome::Page { .. }) {
            self.pulse.heard(now);
            self.pulse.deny(false);
            self.pulse.note(None);
        }
        self.machine.saw(outcome, now, random)
    }

    fn complain(&self, trouble: &Trouble) {
        self.pulse.failed();
        if matches!(trouble, Trouble::Expired(_)) {
            self.pulse.expired_again();
            tracing::info!(%trouble, "listing again");
            return;
        }
        self.pulse.deny(matches!(trouble, Trouble::Denied { .. }));
        // Every complaint once, until another one comes.
        if self.pulse.note(Some(trouble.to_string())) {
            tracing::warn!(%trouble, "can not follow for now; trying again");
        }
    }

    async fn list(&mut self, limit: u32, token: Option<String>) -> Result<(), Deaf> {
        if token.is_none() {
            self.tell(Seen::ListBegan).await?;
        }
        let listing = self.source.list(limit, token.as_deref());
        let page = match first(listing, self.rt.sleep(self.patience)).await {
            First::Left(page) => page,
            First::Right(()) => Err(Trouble::Away("no answer to a list in time".to_owned())),
        };
        match page {
            Err(trouble) => {
                self.saw(Outcome::Failed(&trouble));
            }
            Ok(page) => {
                for _ in 0..page.unreadable {
                    self.pulse.unread();
                }
                let mut items = page.items.into_iter();
                while items.len() > 0 {
                    let piece = items.by_ref().take(PIECE).collect();
                    self.tell(Seen::Listed(piece)).await?;
                }
                let (version, more) = (&page.version, page.more.as_deref());
                if self.saw(Outcome::Page { version, more }) == Note::ListComplete {
                    self.tell(Seen::ListComplete).await?;
                    self.pulse.listed();
                    self.pulse.sync();
                }
            }
        }
        Ok(())
    }

    async fn open(&mut self, from: &str, seconds: u32) {
        let opening = self.source.watch(from, seconds);
        match first(opening, self.rt.sleep(self.patience)).await {
            First::Left(Ok(watch)) => {
                self.watch = Some(watch);
                self.pulse.opened();
                self.saw(Outcome::Opened);
            }
            First::Left(Err(trouble)) => {
                self.saw(Outcome::Failed(&trouble));
            }
            First::Right(()) => {
                let trouble = Trouble::Away("no answer to a watch in time".to_owned());
                self.saw(Outcome::Failed(&trouble));
            }
        }
    }

    async fn listen(&mut self) -> Result<(), Deaf> {
        let deadline = self.machine.deadline().unwrap_or_default();
        let Some(watch) = &mut self.watch else {
            // A machine that listens has a watch; were it not so, this begins a new one.
            self.saw(Outcome::Ended);
            return Ok(());
        };
        let patience = deadline.saturating_sub(self.rt.mono());
        let closed = self.to.clone();
        let heard = match first(first(watch.next(), self.rt.sleep(patience)), closed.closed()).await
        {
            First::Left(heard) => heard,
            First::Right(()) => return Err(Deaf),
        };
        match heard {
            First::Left(Some(Ok(told))) => return self.told(told).await,
            First::Left(Some(Err(trouble))) => {
                self.watch = None;
                self.saw(Outcome::Failed(&trouble));
            }
            First::Left(None) => {
                self.watch = None;
                if self.saw(Outcome::Ended) == Note::Unserved {
                    let why = "the API server ends watches as soon as they stand".to_owned();
                    if self.pulse.note(Some(why)) {
                        tracing::warn!("watches are ended as soon as they stand; trying again");
                    }
                }
            }
            First::Right(()) => {
                self.watch = None;
                if self.saw(Outcome::Overdue) == Note::Silent {
                    self.pulse.silent();
                    tracing::warn!("a watch has said nothing for too long; opening another one");
                }
            }
        }
        Ok(())
    }

    async fn told(&mut self, told: Told<K>) -> Result<(), Deaf> {
        let (seen, version) = match told {
            Told::Changed(object) => {
                let version = object.version().map(str::to_owned);
                (Some(Seen::Changed(object)), version)
            }
            Told::Deleted(object) => {
                let version = object.version().map(str::to_owned);
                (Some(Seen::Deleted(object)), version)
            }
            Told::Bookmark(version) => (None, Some(version)),
            Told::Unreadable { version, why } => {
                self.pulse.unread();
                tracing::warn!(%why, "an object can not be read, and is passed over");
                (None, version)
            }
        };
        if let Some(seen) = seen {
            self.tell(seen).await?;
        }
        // After it was taken: the time that a slow listener takes is no silence of the watch.
        self.saw(Outcome::Heard { version: version.as_deref() });
        Ok(())
    }

    async fn tell(&mut self, seen: Seen<K>) -> Result<(), Deaf> {
        self.to.send(seen).await.map_err(|_| Deaf)
    }
}
