//! A final verdict stays, for this pod.
//!
//! Kubelets have written `Failed`, then `Running`, then `Pending` for one pod, API servers accept it, and watches deliver old objects after
//! new ones. What has been said of an end is not unsaid. Only what was not known then is added: an exit code that the kubelet
//! found out later, words that were missing.

use super::words::Verdict;

/// What is to be said now, given what was said before.
pub(super) fn latch(last: &Verdict, fresh: Verdict) -> Verdict {
    let mut kept = last.clone();
    kept.next_check_at = None;
    kept.next_cause = None;
    kept.clock = None;
    kept.clock_since = None;
    if !fresh.is_final() {
        return kept;
    }
    let nothing_known = kept.container.is_none() && kept.exit_code.is_none();
    let whole = kept.container == fresh.container || nothing_known;
    // Container, code and signal describe one end, so they come together or not at all.
    if kept.exit_code.is_none() && whole {
        kept.container = fresh.container;
        kept.exit_code = fresh.exit_code;
        kept.signal = fresh.signal;
    }
    if (kept.status, kept.cause) == (fresh.status, fresh.cause) {
        let fill = |old: &mut String, new: String| {
            if old.is_empty() {
                *old = new;
            }
        };
        fill(&mut kept.reason, fresh.reason);
        fill(&mut kept.message, fresh.message);
        kept.detail = kept.detail.take().or(fresh.detail);
        kept.started |= fresh.started;
    }
    kept
}
