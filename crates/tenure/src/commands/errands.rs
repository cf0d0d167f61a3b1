//! A server with a worker that runs errands. The outside is a line of text over TCP: `CALL key`, to
//! which it answers `OK n`, the number of times it has seen that key.

use super::{Failure, machines};
use crate::{cli, config::Settings, open::open};
use std::{sync::Arc, time::Duration};
use tenure_edge::{TokioRuntime, executor_of_this_process};
use tenure_engine::{
    birth::create,
    lanes::Discard,
    node::{Node, Parts},
    session::Keeper,
    stop::stopper,
    worker::{Handler, Held, HoldError, Worker},
};
use tenure_kernel::{
    ids::EntityId,
    machine::Decision,
    runtime::{BoxFuture, Rt},
    store::HeadFilter,
};
use tenure_proving::machines::errand::{self, Errand, Next};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

/// The queue of the errands.
pub const QUEUE: &str = "errands";

/// Serves and works until every errand is final.
pub async fn run(settings: &Settings, options: &cli::Errands) -> Result<String, Failure> {
    let opened = open(settings, super::judge()).await?;
    let rt: Rt = Arc::new(TokioRuntime::current());
    let mut config = settings.engine();
    config.flights = opened.flights;
    let parts = Parts {
        store: opened.store.clone(),
        bell: opened.bell,
        rt: rt.clone(),
        machines: machines(),
        config: config.clone(),
        name: format!("errands, pid {}", std::process::id()),
        executor: executor_of_this_process(),
        wire: Arc::new(Discard),
        protect_outage: true,
    };
    let mut node = Node::start(parts).await?;
    if ids(&*opened.store).await?.is_empty() {
        for _ in 0..options.make {
            create(&node.pipeline, &machines(), "errand", "demo", &errand::order(QUEUE, 0)).await?;
        }
    }
    let (name, executor) = ("worker of the errands", executor_of_this_process());
    let keeper =
        Keeper::open(node.pipeline.clone(), Arc::new(config), name, "worker", executor).await?;
    let handler = Arc::new(Runner { outside: options.outside.clone() });
    let worker = Worker::new(keeper.clone(), vec![QUEUE.into()], 4, handler);
    let (session_stopper, session_stop) = stopper();
    let (worker_stopper, worker_stop) = stopper();
    let renewing = keeper.clone();
    rt.spawn(Box::pin(async move { renewing.run(session_stop).await }));
    rt.spawn(Box::pin(async move { worker.run(worker_stop).await }));
    while open_errands(&*opened.store).await? > 0 {
        rt.sleep(Duration::from_millis(50)).await;
    }
    worker_stopper.stop();
    session_stopper.stop();
    node.stop().await;
    Ok("every errand is final\n".to_owned())
}

async fn ids(store: &dyn tenure_kernel::store::Store) -> Result<Vec<EntityId>, Failure> {
    let filter = HeadFilter { kind: Some("errand".into()), ..HeadFilter::default() };
    Ok(store.heads(filter, 1_000).await?.into_iter().map(|h| h.id).collect())
}

async fn open_errands(store: &dyn tenure_kernel::store::Store) -> Result<usize, Failure> {
    let filter = HeadFilter { kind: Some("errand".into()), ..HeadFilter::default() };
    let heads = store.heads(filter, 1_000).await?;
    Ok(heads.iter().filter(|h| h.class() == tenure_kernel::table::Class::Open).count())
}

struct Runner {
    outside: String,
}

impl Handler for Runner {
    fn run(&self, mut held: Held) -> BoxFuture<'static, Held> {
        let outside = self.outside.clone();
        Box::pin(async move {
            if let Err(e) = work(&mut held, &outside).await {
                tracing::info!(errand = %held.id(), error = %e, "gave up an errand");
            }
            held
        })
    }
}

/// Started durable, then the call, then done durable: in that order, or a crash in between loses the
/// knowledge that the call may have happened.
async fn work(held: &mut Held, outside: &str) -> Result<(), HoldError> {
    loop {
        let next = errand::next(&held.state::<Errand>()?, held.id());
        match &next {
            Next::Call { step, call, key } => {
                held.record::<Errand>(Decision::event(errand::begin(&next)), &[]).await?;
                if !held.may_act() {
                    return Err(HoldError::Lost);
                }
                let seen =
                    ask(outside, key).await.map_err(|e| HoldError::Refused(e.to_string()))?;
                tracing::info!(errand = %held.id(), step, call, seen, "the outside has done it");
                let done = errand::Event::StepDone { step: *step, call: *call };
                held.record::<Errand>(Decision::event(done), &[]).await?;
            }
            Next::Finish => {
                let mail = held.unread().await?;
                match held.record::<Errand>(Decision::event(errand::begin(&next)), &mail).await {
                    Err(HoldError::MoreMail) => {}
                    result => return result.map(|_| ()),
                }
            }
        }
    }
}

async fn ask(outside: &str, key: &str) -> std::io::Result<u64> {
    let mut stream = tokio::net::TcpStream::connect(outside).await?;
    stream.write_all(format!("CALL {key}\n").as_bytes()).await?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).await?;
    let bad = || std::io::Error::other(format!("the outside answered {line:?}"));
    line.trim().strip_prefix("OK ").and_then(|n| n.parse().ok()).ok_or_else(bad)
}
