//! The loop that makes jobs of what applications left in the database. Woken by the notification that comes with
//! their commit, and by the tick: with every bell silent it is only slower.

use futures_util::FutureExt as _;
use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};
use tenure_engine::stop::Stop;
use tenure_jobs::intake::{Taken, serve};
use tenure_kernel::{
    bell::{Bell, Topic},
    error::StoreError,
    runtime::{First, Rt, first},
};
use tenure_server::{
    App,
    jobs::{Wish, take_in},
};
use tenure_store::postgres::{Intake, IntakeRow};

/// Rows that one server takes at once: enough to fill batches, few enough to be settled well within a second.
const AT_ONCE: usize = 200;

/// Serves the intake until asked to stop.
pub async fn run(
    intake: Intake,
    app: App,
    bell: Arc<dyn Bell>,
    rt: Rt,
    tick: Duration,
    stop: Stop,
) {
    let mut ear = bell.listen(Topic::Intake);
    let mut stop = stop;
    loop {
        // Nobody starts this loop again: what goes wrong in one round is not the end of it.
        match AssertUnwindSafe(round(&intake, &app)).catch_unwind().await {
            Ok(Ok(true)) => {
                if stop.asked() {
                    return;
                }
                continue;
            }
            Ok(Ok(false)) => {}
            Ok(Err(e)) => tracing::warn!(error = %e, "the intake can not be served; its rows wait"),
            Err(_) => tracing::error!("serving the intake panicked; its rows wait"),
        }
        let woken = first(ear.heard(), rt.sleep(tick));
        if let First::Left(()) = first(stop.wait(), woken).await {
            return;
        }
    }
}

/// One page of rows. Whether there may be more.
async fn round(intake: &Intake, app: &App) -> Result<bool, StoreError> {
    let taken = intake.take(AT_ONCE, app.options().payload_bytes_max).await?;
    let more = taken.more;
    let served = serve(taken.rows.iter().map(|row| (row.id, one(app, row)))).await;
    taken.settle(&served.done, &served.later).await?;
    Ok(more)
}

async fn one(app: &App, row: &IntakeRow) -> Result<Taken, StoreError> {
    let IntakeRow { id, bound, asked_by, flow, input, options } = row.clone();
    let wish = Wish { flow, input, options, bound, by: format!("role {asked_by} in the database") };
    take_in(app, id, &wish).await
}
