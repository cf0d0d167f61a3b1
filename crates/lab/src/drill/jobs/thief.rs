//! A worker that does not keep to its part of the protocol: it claims what it was not offered.

use crate::drill::ground::Ground;
use std::{sync::Arc, time::Duration};
use tenure::commands::{Failure, machines};
use tenure_edge::TokioRuntime;
use tenure_engine::{config::EngineConfig, pipeline::Pipeline, session::Keeper};
use tenure_kernel::{
    ids::EntityId,
    runtime::Rt,
    store::{Answer, Op},
};
use tenure_remote::{RemoteBell, RemoteStore};

/// A session that claims by name.
pub struct Thief {
    pipeline: Pipeline,
    keeper: Keeper,
    lease: Duration,
}

impl Thief {
    /// Opens a session over the worker protocol.
    pub async fn open(ground: &Ground) -> Result<Self, Failure> {
        let rt: Rt = Arc::new(TokioRuntime::current());
        let bad = |e: tenure_remote::BadAddress| Failure::System(e.to_string());
        let (url, key) = (&ground.base.url, ground.base.key.as_deref());
        let store = RemoteStore::new(url, key, machines().tables()).map_err(bad)?;
        let bell = RemoteBell::new(url, key, rt.clone()).map_err(bad)?;
        let lease = ground.base.lease;
        let config = EngineConfig { lease, renewal: lease / 3, ..EngineConfig::default() };
        let pipeline = Pipeline::new(Arc::new(store), Arc::new(bell), rt, &config);
        let keeper =
            Keeper::open(pipeline.clone(), Arc::new(config), "a thief", "worker", None).await?;
        Ok(Thief { pipeline, keeper, lease })
    }

    /// Tries to take a job. `Err` holds the refusal.
    pub async fn takes(&self, job: &str) -> Result<Result<(), String>, Failure> {
        let entity: EntityId =
            job.parse().map_err(|_| Failure::System(format!("{job:?} is not the id of a job")))?;
        let (id, session) = (self.pipeline.commit_id(), self.keeper.id());
        let claim = Op::Claim { id, entity, session, lease: self.lease };
        match self.pipeline.submit(claim).await? {
            Answer::Claim(Ok(_)) => Ok(Ok(())),
            other => Ok(Err(format!("{other:?}"))),
        }
    }

    /// Says goodbye, and gives back what it took.
    pub async fn leave(&self) {
        self.keeper.end().await;
    }
}
