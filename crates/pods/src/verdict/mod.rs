//! What a pod says about its task: a pure function of the pod, the last verdict for it, and the time.
//!
//! The phase is evidence, not verdict. A pod that was evicted may end `Succeeded`, a pod whose node is gone stays
//! `Running` for ever, and one that can not pull its image is `Pending` and says nothing more. So every verdict names its
//! cause, and the moment at which silence itself changes the answer.

mod words;

pub use words::{Cause, CauseClass, TaskStatus, Verdict};
