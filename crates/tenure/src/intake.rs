//! The loop that makes jobs of what applications left in the database. Woken by the notification that comes with
//! their commit, and by the tick: with every bell silent it is only slower.

use std::{sync::Arc, time::Duration};
use tenure_engine::stop::Stop;
use tenure_jobs::intake::{Taken, serve};
use tenure_kernel::{
    bell::{Bell, Topic},
    error::StoreError,
    ids::EntityId,
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
        match round(&intake, &app).await {
            // There may be more.
            Ok(n) if n == AT_ONCE => {
                if stop.asked() {
                    return;
                }
                continue;
            }
            Ok(_) => {}
            Err(e) => tracing::warn!(error = %e, "the intake can not be served; its rows wait"),
        }
        let woken = first(ear.heard(), rt.sleep(tick));
        if let First::Left(()) = first(stop.wait(), woken).await {
            return;
        }
    }
}

/// One page of rows. How many there were.
async fn round(intake: &Intake, app: &App) -> Result<usize, StoreError> {
    let taken = intake.take(AT_ONCE, app.options().payload_bytes_max).await?;
    let count = taken.rows.len();
    let served = serve(taken.rows.iter().map(|row| one(app, row))).await;
    taken.settle(&served.done, &served.later).await?;
    Ok(count)
}

async fn one(app: &App, row: &IntakeRow) -> (EntityId, Result<Taken, StoreError>) {
    let IntakeRow { id, bound, asked_by, flow, input, options } = row.clone();
    let wish = Wish { flow, input, options, bound, by: format!("role {asked_by} in the database") };
    (id, take_in(app, id, &wish).await)
}
