//! What the handlers of jobs need beside the store: somebody who creates jobs, and the flows of this program.

use super::schema::Schemas;
use std::sync::Arc;
use tenure_jobs::{
    drive::{Ends, Shop},
    export::SigningKey,
    submit::{Outposts, Submitter},
};
use tenure_steps::{
    effects::Effects,
    flow::{FlowSpec, Flows},
};

/// Creates jobs, replays them, and knows when they end.
pub struct Desk {
    submitter: Submitter,
    shop: Arc<Shop>,
    runs_here: bool,
    pub(super) schemas: Schemas,
    signing_key: Option<SigningKey>,
}

impl Desk {
    /// `runs_here`: the worker of this process takes jobs of the shop's flows. Without one they are known all the
    /// same, for replays.
    pub fn new(submitter: Submitter, shop: Arc<Shop>, runs_here: bool) -> Self {
        Desk { submitter, shop, runs_here, schemas: Schemas::default(), signing_key: None }
    }

    /// Signs exports; without a key they are only chained.
    pub fn with_signing_key(mut self, key: Option<SigningKey>) -> Self {
        self.signing_key = key;
        self
    }

    /// What exports are signed with.
    pub fn signing_key(&self) -> Option<&SigningKey> {
        self.signing_key.as_ref()
    }

    /// Jobs may be born into the hands of workers in other processes.
    pub(crate) fn with_outposts(mut self, outposts: Arc<dyn Outposts>) -> Self {
        self.submitter = self.submitter.with_outposts(outposts);
        self
    }

    /// Creates jobs.
    pub fn submitter(&self) -> &Submitter {
        &self.submitter
    }

    /// The flows of this program.
    pub fn flows(&self) -> &Flows {
        &self.shop.flows
    }

    /// Where effects lie, if not in the same store.
    pub fn effects(&self) -> Option<&dyn Effects> {
        self.shop.effects.as_deref()
    }

    /// Tells ends of jobs that this process commits.
    pub(crate) fn ends(&self) -> &Ends {
        &self.shop.ends
    }

    /// A flow that the worker of this process runs; the newest without a version. The same choice as the
    /// submitter's, so that an input is checked against the version it will meet.
    pub(super) fn flow_here(&self, name: &str, version: Option<u32>) -> Option<&FlowSpec> {
        let flows = self.runs_here.then(|| self.flows())?;
        match version {
            Some(version) => flows.get(name, version),
            None => flows.newest(name),
        }
    }
}
