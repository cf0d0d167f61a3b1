//! Claims from a queue: index probes in the planner's order, judged and written like a batch.

use super::{
    error::Trouble,
    rows::{self, Placed},
    writer::Writer,
};
use rusqlite::params;
use std::collections::HashSet;
use tenure_kernel::{
    batch::{HeadWrite, Writes},
    claims::{ClaimAnswer, ClaimRequest, Claimed},
    error::StoreError,
    ids::EntityId,
    limits,
    time::Timestamp,
};

/// Rows asked for at a time once some could not be read.
const LOOK_FURTHER: usize = 64;

impl Writer {
    /// Claims from a queue, probe by probe.
    pub(super) fn claim(&mut self, request: &ClaimRequest) -> Result<ClaimAnswer, StoreError> {
        self.transaction(|w| w.claim_in(request)).map_err(Trouble::into_error)
    }

    fn claim_in(&mut self, request: &ClaimRequest) -> Result<ClaimAnswer, Trouble> {
        let now = self.now();
        let limit = request.limit.min(limits::CLAIM_MAX);
        let mut answer = ClaimAnswer::default();
        let mut writes = Writes::default();
        let mut seen = HashSet::new();
        let mut room_for_mail = limits::MAIL_PER_CLAIM_MAX;
        for probe in &request.probes {
            let left = limit - answer.claimed.len();
            if left == 0 {
                break;
            }
            let found = self.ready(&request.queue, probe, left.min(probe.want), &mut seen)?;
            answer.found.push(found.len());
            for (placed, ready_at) in found {
                let id = placed.head.id;
                let commit = request.id.nth(answer.claimed.len() as u64);
                let claim = self.judge.claim(
                    &placed.head,
                    request.session,
                    request.lease,
                    false,
                    commit,
                    now,
                );
                let Ok(written) = claim else { continue };
                let mail = match written.head.has_mail() && room_for_mail > 0 {
                    true => {
                        let read = written.head.mail_read;
                        rows::load_mail(&self.conn, id, read, room_for_mail)?
                    }
                    false => Vec::new(),
                };
                room_for_mail -= mail.len();
                answer.claimed.push(Claimed { head: written.head.clone(), mail, ready_at });
                writes.records.push(written.record);
                writes
                    .heads
                    .insert(id, HeadWrite { before: Some(placed.head), after: written.head });
            }
        }
        self.write(writes, now)?;
        Ok(answer)
    }

    /// The first `want` of a group that nobody has seen yet. What this program can not read keeps nobody from
    /// the others: it is reported, and stays where it is for a program or a person that can.
    fn ready(
        &mut self,
        queue: &str,
        probe: &tenure_kernel::claims::Probe,
        want: usize,
        seen: &mut HashSet<EntityId>,
    ) -> Result<Vec<(Placed, Timestamp)>, Trouble> {
        let mut found = Vec::new();
        let mut fetch = want;
        loop {
            let next = self.unseen(queue, probe, fetch, seen)?;
            let end = next.len() < fetch;
            for (id, ready_at) in next {
                if found.len() == want {
                    break;
                }
                seen.insert(id);
                match self.placed(id) {
                    Ok(Some(placed)) => found.push((placed, ready_at)),
                    // A row without a head; `retire` removes such.
                    Ok(None) => {}
                    Err(Trouble::Clean(StoreError::Corrupt(e))) => {
                        tracing::error!(%id, error = %e, "ready, but can not be read: not claimed");
                    }
                    Err(e) => return Err(e),
                }
            }
            if end || found.len() == want {
                return Ok(found);
            }
            fetch = want.max(LOOK_FURTHER);
        }
    }

    fn unseen(
        &self,
        queue: &str,
        probe: &tenure_kernel::claims::Probe,
        want: usize,
        seen: &HashSet<EntityId>,
    ) -> Result<Vec<(EntityId, Timestamp)>, Trouble> {
        let mut q = self.conn.prepare_cached("SELECT entity, ready_at FROM ready WHERE queue = ?1 AND priority = ?2 AND tenant = ?3 AND ready_at >= ?4 ORDER BY ready_at, entity")?;
        let mut rows =
            q.query(params![queue, probe.priority, probe.tenant, probe.floor.as_micros()])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let id = rows::entity(row, 0)?;
            if !seen.contains(&id) {
                found.push((id, rows::time(row.get(1)?)));
            }
            if found.len() == want {
                break;
            }
        }
        Ok(found)
    }
}
