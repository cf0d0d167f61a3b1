//! Where the program's memory comes from, and how what a burst needed goes back.
//!
//! Operations are made on one thread and dropped on another, which glibc's allocator pays for dearly; so this is mimalloc.
//! A program that embeds Tenure chooses its own allocator: each binary declares this one itself.
//! It looks for memory to give back only while somebody allocates. A collector that has just listed five thousand pods and
//! then sits still would keep what the list needed for ever, on every node of a cluster: ten kilobytes a pod, where two
//! are remembered. So small companions look for it themselves, and run on one thread: a thread can only give back its own.

use std::time::Duration;
use tenure_edge::{TokioRuntime, vitals};
use tenure_kernel::runtime::Runtime as _;

/// The allocator of our binaries.
pub use mimalloc::MiMalloc as Allocator;

/// Its only value.
pub const ALLOCATOR: Allocator = Allocator;

/// How often it is looked at.
const EVERY: Duration = Duration::from_secs(2);
/// Processor time in which nothing is done but this: a burst is not interrupted, which would make it wait.
const IDLE: Duration = Duration::from_millis(40);

/// Gives back what is not needed whenever a burst is over, for as long as this thread's runtime lives.
pub async fn stay_small() {
    let rt = TokioRuntime::current();
    let (mut spent, mut owes) = (Duration::ZERO, true);
    loop {
        rt.sleep(EVERY).await;
        // Unknown is as if it had been busy, and never idle.
        let Some(now) = vitals().cpu else { continue };
        let busy = now.saturating_sub(spent) > IDLE;
        if !busy && owes {
            give_back();
        }
        (spent, owes) = (vitals().cpu.unwrap_or(now), busy);
    }
}

#[expect(unsafe_code, reason = "the allocator's own function, which no safe crate wraps")]
fn give_back() {
    unsafe extern "C" {
        fn mi_collect(force: bool);
    }
    // SAFETY: this is the function of the allocator above, by its C signature; it is linked since this crate depends on
    // it. It takes no pointer, may be called at any time from any thread, and gives back only what the program has freed
    // before. In a program with another allocator it has nothing to give back.
    unsafe { mi_collect(true) }
}
