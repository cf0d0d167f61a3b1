//! Waiting for a job, or for a turn or a task. What this process ends is told at once; what others end is seen by looking, more and more
//! rarely: a bell that is silent costs latency, nothing else.

use crate::{App, Problem};
use std::time::Duration;
use tenure_kernel::{
    head::Head,
    ids::EntityId,
    runtime::{First, first},
    table::Class,
};

/// The first pause between two looks.
const LOOK_MIN: Duration = Duration::from_millis(10);
/// The longest.
const LOOK_MAX: Duration = Duration::from_millis(500);

/// Pauses that grow.
pub(crate) struct Looks(Duration);

impl Looks {
    pub(crate) fn new() -> Self {
        Looks(LOOK_MIN)
    }

    /// For what will be told: looking is for the case that it is not.
    pub(super) fn rarely() -> Self {
        Looks(LOOK_MAX / 2)
    }

    /// Something moved: look soon again.
    pub(crate) fn soon(&mut self) {
        self.0 = LOOK_MIN;
    }

    pub(crate) fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(LOOK_MAX);
        now
    }
}

/// The head when the job is final, or when the time is up or the server stops. `None` if it is gone.
pub(super) async fn until_final(
    app: &App,
    id: EntityId,
    wait: Duration,
) -> Result<Option<Head>, Problem> {
    until_final_looking(app, id, wait, Looks::new()).await
}

/// The same, with looks of its own.
pub(super) async fn until_final_looking(
    app: &App,
    id: EntityId,
    wait: Duration,
    mut looks: Looks,
) -> Result<Option<Head>, Problem> {
    let (store, rt) = (app.pipeline().store(), app.pipeline().rt());
    let until = rt.mono() + wait;
    // Listen first, then look: an end in between is told, and one before it is seen.
    let mut ending = super::desk(app)?.ends().listen(id);
    loop {
        let head = store.head(id).await?;
        let over = head.as_ref().is_none_or(|h| h.class() == Class::Final);
        if over || rt.mono() >= until {
            return Ok(head);
        }
        let left = until.saturating_sub(rt.mono());
        let told = first(ending.heard(), rt.sleep(looks.next().min(left)));
        if let First::Right(()) = first(told, app.closing()).await {
            return Ok(store.head(id).await?);
        }
    }
}

/// The head of an entity whose end nobody tells here, when it is over, or when the time is up or the server stops. `look`
/// reads it, as far as the caller may see it.
pub(crate) async fn until_over<R>(
    app: &App,
    wait: Duration,
    look: impl Fn() -> R,
) -> Result<Head, Problem>
where
    R: Future<Output = Result<Head, Problem>>,
{
    let rt = app.pipeline().rt();
    let (until, mut looks) = (rt.mono() + wait, Looks::new());
    loop {
        let head = look().await?;
        let left = until.saturating_sub(rt.mono());
        if head.class() == Class::Final || left.is_zero() {
            return Ok(head);
        }
        let pause = rt.sleep(looks.next().min(left));
        if let First::Right(()) = first(pause, app.closing()).await {
            return look().await;
        }
    }
}
