//! What a status means for the one question that matters: was it applied?
//!
//! | status | GET, HEAD, OPTIONS | everything else | because |
//! |---|---|---|---|
//! | 2xx (or listed in `expect_status`) | result | result | |
//! | another 2xx than the listed | permanent | unknown | something was done, only not what was expected |
//! | 303 | permanent (not followed any further) | result | "done, look there for what came of it" |
//! | 304 | result | permanent | the answer to a condition the caller set |
//! | 307, 308 | permanent | permanent | "not here": nobody has acted |
//! | other 3xx | permanent | unknown | a 302 is what web applications answer after a POST that they did |
//! | 425, 429 | retryable | retryable | both are refusals to begin |
//! | 408 | retryable | unknown | it may come from a proxy that had passed the request on |
//! | other 4xx | permanent | permanent | the target refuses the request as it is |
//! | 501, 505 | permanent | unknown | |
//! | other 5xx | retryable | unknown | an error *during* work says nothing about how much of it was done |
//!
//! A 503 with `Retry-After` reads like a refusal to begin, and from most servers it is one. But the same
//! status comes from a proxy whose upstream died with the request in its hands, and the two can not be
//! told apart. A step whose target is known to deduplicate by key says so by declaring itself idempotent; then
//! unknown means called again, and nothing is lost.

/// What an answer means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It counts as done, with this answer.
    Result,
    /// Not applied; later it may be.
    Retryable,
    /// Not applied, and never will be like this.
    Permanent,
    /// Nobody knows.
    Unknown,
}

/// Judges a status. `safe`: the method asks for nothing to be changed. `expected`: empty for any 2xx.
pub(crate) fn judge(status: u16, safe: bool, expected: &[u16]) -> Verdict {
    let unless_safe = |safely: Verdict| if safe { safely } else { Verdict::Unknown };
    if expected.contains(&status) {
        return Verdict::Result;
    }
    match status {
        200..300 if expected.is_empty() => Verdict::Result,
        200..300 => unless_safe(Verdict::Permanent),
        303 if !safe && expected.is_empty() => Verdict::Result,
        304 if safe && expected.is_empty() => Verdict::Result,
        304 | 307 | 308 => Verdict::Permanent,
        300..400 => unless_safe(Verdict::Permanent),
        425 | 429 => Verdict::Retryable,
        408 => unless_safe(Verdict::Retryable),
        400..500 => Verdict::Permanent,
        501 | 505 => unless_safe(Verdict::Permanent),
        500..600 => unless_safe(Verdict::Retryable),
        // Not a status HTTP knows.
        _ => unless_safe(Verdict::Permanent),
    }
}

#[cfg(test)]
mod tests {
    use super::{Verdict::*, *};

    #[test]
    fn the_table() {
        for (status, safe, other) in [
            (200, Result, Result),
            (204, Result, Result),
            (302, Permanent, Unknown),
            (303, Permanent, Result),
            (304, Result, Permanent),
            (307, Permanent, Permanent),
            (400, Permanent, Permanent),
            (404, Permanent, Permanent),
            (408, Retryable, Unknown),
            (409, Permanent, Permanent),
            (425, Retryable, Retryable),
            (429, Retryable, Retryable),
            (500, Retryable, Unknown),
            (501, Permanent, Unknown),
            (502, Retryable, Unknown),
            (503, Retryable, Unknown),
            (504, Retryable, Unknown),
        ] {
            assert_eq!(judge(status, true, &[]), safe, "{status} to a GET");
            assert_eq!(judge(status, false, &[]), other, "{status} to a POST");
        }
    }

    #[test]
    fn what_is_expected_is_a_result_and_nothing_else_is() {
        assert_eq!(judge(404, false, &[404]), Result);
        assert_eq!(judge(503, false, &[200, 503]), Result);
        assert_eq!(judge(200, false, &[201]), Unknown);
        assert_eq!(judge(200, true, &[201]), Permanent);
        assert_eq!(judge(303, false, &[201]), Unknown);
    }

    #[test]
    fn a_change_is_called_not_applied_only_for_refusals() {
        for status in 100..=999 {
            if matches!(judge(status, false, &[]), Retryable | Permanent) {
                assert!(matches!(status, 304 | 307 | 308 | 400..=499), "{status}");
            }
        }
    }
}
