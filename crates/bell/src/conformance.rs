//! What every bell must do. A bell may lose, repeat and delay; these are the promises it still makes.
//!
//! Call [`within`] with a connected bell and [`across`] with two handles that reach each other (for a
//! bell of one process, two clones).

use futures_util::FutureExt as _;
use std::time::Duration;
use tenure_kernel::{
    bell::{Bell, Ear, Topic},
    ids::SessionId,
};

/// How long a ring may take before a test gives up.
const PATIENCE: Duration = Duration::from_secs(30);

/// The promises of a bell in its own process.
pub async fn within(bell: &dyn Bell) {
    a_ring_between_listening_and_hearing_is_not_lost(bell).await;
    rings_from_before_are_not_heard(bell);
    many_rings_are_one(bell).await;
    topics_are_apart(bell).await;
    every_ear_hears(bell).await;
}

/// The promises of a bell from one process to another.
pub async fn across(here: &dyn Bell, there: &dyn Bell) {
    let topics = [
        Topic::Due,
        Topic::Outbox,
        Topic::Queue("a queue/with 'all' sorts".into()),
        Topic::Session(SessionId::fixed(9, 9)),
    ];
    for topic in topics {
        let mut ear = there.listen(topic.clone());
        here.ring(topic.clone());
        hears(&mut *ear, &format!("{topic} across")).await;
    }
    // A burst: every topic arrives, however they were put together.
    let names = (0..200).map(|n| Topic::Queue(n.to_string()));
    let mut ears: Vec<_> = names.clone().map(|t| there.listen(t)).collect();
    names.for_each(|t| here.ring(t));
    for ear in &mut ears {
        hears(&mut **ear, "a burst").await;
    }
}

async fn hears(ear: &mut dyn Ear, what: &str) {
    let heard = tokio::time::timeout(PATIENCE, ear.heard()).await;
    assert!(heard.is_ok(), "not heard: {what}");
}

fn is_quiet(ear: &mut dyn Ear) -> bool {
    ear.heard().now_or_never().is_none()
}

async fn a_ring_between_listening_and_hearing_is_not_lost(bell: &dyn Bell) {
    let mut ear = bell.listen(Topic::Due);
    bell.ring(Topic::Due);
    hears(&mut *ear, "a ring before the first look").await;
    bell.ring(Topic::Due);
    hears(&mut *ear, "a ring between two looks").await;
}

fn rings_from_before_are_not_heard(bell: &dyn Bell) {
    bell.ring(Topic::Outbox);
    let mut ear = bell.listen(Topic::Outbox);
    assert!(is_quiet(&mut *ear), "a ring from before listening was heard");
}

async fn many_rings_are_one(bell: &dyn Bell) {
    let mut ear = bell.listen(Topic::Queue("q".into()));
    (0..100).for_each(|_| bell.ring(Topic::Queue("q".into())));
    hears(&mut *ear, "a hundred rings").await;
    assert!(is_quiet(&mut *ear), "a hundred rings were more than one");
}

async fn topics_are_apart(bell: &dyn Bell) {
    let mut one = bell.listen(Topic::Queue("one".into()));
    let mut other = bell.listen(Topic::Queue("other".into()));
    bell.ring(Topic::Queue("one".into()));
    hears(&mut *one, "its own topic").await;
    assert!(is_quiet(&mut *other), "another topic was heard");
}

async fn every_ear_hears(bell: &dyn Bell) {
    let mut ears = [bell.listen(Topic::Due), bell.listen(Topic::Due)];
    bell.ring(Topic::Due);
    for ear in &mut ears {
        hears(&mut **ear, "one of two ears").await;
    }
}
