//! Takes reports from the spool to one sink, in order, for as long as it takes.

use super::{
    run::{Shared, points},
    sink::Sink,
};
use std::{sync::Arc, time::Duration};
use tenure_kernel::runtime::{First, first};

/// A sink that has not answered by then has not taken it.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Until everything is told and nothing more will come.
pub(super) async fn deliver(shared: Arc<Shared>, sink: Arc<dyn Sink>) {
    let id = sink.id();
    let mut news = shared.changed.subscribe();
    let mut failures: u32 = 0;
    loop {
        let batch = shared.spool().batch(id, sink.batch());
        if batch.is_empty() {
            if shared.is_draining() {
                return;
            }
            // Its sender lives in `shared`.
            let _ = news.changed().await;
            continue;
        }
        shared.at(points::PUBLISH).await;
        let sent = match first(sink.send(&batch), shared.rt.sleep(PATIENCE)).await {
            First::Left(sent) => sent,
            First::Right(()) => super::Sent::none("no answer in time".to_owned()),
        };
        shared.at(points::PUBLISHED).await;
        let settled = sent.settled.min(batch.len());
        let now = shared.clock.now();
        for (i, why) in &sent.refused {
            if let Some(owed) = batch.get(*i) {
                let report = &owed.saying.report;
                let (task, key) = (&report.task_id, report.key());
                tracing::error!(sink = id.name(), task, key, why, "a report was refused for good");
                shared.meter.refused(id);
            }
        }
        for owed in &batch[..settled] {
            shared.meter.told(id, owed.saying.report.verdict.since.map(|since| now.since(since)));
        }
        if let Some(last) = batch[..settled].last() {
            shared.spool().settle(id, last.seq);
            shared.tell_change();
            shared.at(points::MARKED).await;
        }
        // A part of it may be all that fits at once.
        let trouble =
            sent.trouble.or_else(|| (settled == 0).then(|| "nothing was taken".to_owned()));
        match trouble {
            None => failures = 0,
            Some(why) => {
                shared.meter.failed(id);
                failures = if settled > 0 { 1 } else { failures.saturating_add(1) };
                shared.sink_failed(id, why);
                let ceiling = PAUSE.saturating_mul(1 << (failures - 1).min(20)).min(PAUSE_MAX);
                let drawn = u32::try_from(shared.rt.random() % 1_001).unwrap_or(0);
                let pause = (ceiling * drawn / 1_000).max(ceiling / 10);
                shared.rt.sleep(pause.max(sent.after.unwrap_or_default())).await;
                continue;
            }
        }
        shared.sink_answered(id);
    }
}
