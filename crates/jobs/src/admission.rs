//! Which jobs, calls and gates may be created: the rules that the judge asks ([`tenure_kernel::admission`]).

use crate::{
    Job,
    call::model::Call,
    gate::{Gate, GatePage, gate_id, page_id},
};
use std::sync::Arc;
use tenure_kernel::{
    admission::{Admission, Admissions, Newborn, UnnamedId},
    machine::{Machine as _, decode_state},
    sessions::WORKER,
};

/// Adds the rules of this crate's kinds, and of the sessions of workers.
pub fn admissions(admissions: Admissions) -> Admissions {
    admissions
        .with(WORKER.kind, Arc::new(UnnamedId))
        .with(Job::TABLE.kind, Arc::new(UnnamedId))
        .with(Call::TABLE.kind, Arc::new(UnnamedId))
        .with(Gate::TABLE.kind, Arc::new(GateRule))
        .with(GatePage::TABLE.kind, Arc::new(PageRule))
}

/// A gate has the id of its tenant and its name: or one tenant could create another's.
struct GateRule;

impl Admission for GateRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        let gate = decode_state::<Gate>(newborn.state).map_err(|e| e.to_string())?;
        match newborn.id == gate_id(newborn.tenant, &gate.name) {
            true => Ok(()),
            false => Err("a gate has the id of its tenant and its name".to_owned()),
        }
    }
}

/// A page of a line is created by its gate.
struct PageRule;

impl Admission for PageRule {
    fn admit(&self, newborn: &Newborn<'_>) -> Result<(), String> {
        let page = decode_state::<GatePage>(newborn.state).map_err(|e| e.to_string())?;
        let fits = |gate| newborn.creator == Some(gate) && newborn.id == page_id(gate, page.page);
        match page.gate.is_some_and(fits) {
            true => Ok(()),
            false => Err("a page is created by its gate, under the id of its number".to_owned()),
        }
    }
}
