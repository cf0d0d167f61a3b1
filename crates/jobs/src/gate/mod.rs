//! A gate: of the jobs that name it only so many are open past it at once.
//!
//! A gate is an entity of its own, asked by mail, so no commit of a job depends on another job's state. It rests: it
//! has no holder and owes nothing; the outcome is owed by the jobs that wait, each of which has its own `must_end_by`.
//!
//! What keeps the count right:
//! - A permit belongs to the gate's *holders* from the commit that grants it, before the job has heard of it. So two
//!   gates' worth of jobs can never run because a message was slow.
//! - The grant is mail that expects an answer: from a job that is over by then it comes back, and the permit is free.
//!   That is why a waiter that was cancelled needs no removal, wherever it stands.
//! - Every final commit of a job that has asked carries the release. Only the kernel's forced end has no messages:
//!   for that the gate asks its holders from time to time whether they are still there ([`limits::CHECK_FIRST_MS`]).
//!
//! A head holds 16 KiB. The *window* of the next waiters stands in it; who comes later goes to *pages*, entities with a
//! number, each a piece of the line ([`page`]). Messages of one source stay in order in their lane: so a page has all
//! that was put into it before it is asked to give it up, and nothing is put into it after that.
//!
//! A gate that nobody stands at for a while ([`limits::IDLE`]) is *vacant*, unless a person set its limit: retention removes it
//! as it removes what is over, and the next job that names it makes it anew, with the limit that this one asks for. Nothing
//! of the former life can reach the new one. It left with nobody at it, with all its mail read and none on its way; its pages had
//! other numbers ([`page::first_page`]); and a commit that was decided on it has another epoch.
//!
//! Roads not taken: a row per waiter in a side table (then a verdict would need another entity's rows), and a counter
//! that jobs raise and lower (it can not say who holds a permit, so it can not be repaired).

pub mod decide;
pub mod desk;
pub mod model;
pub mod page;
mod table;

pub use model::{Gate, GateEvent, GateState, Holder, Waiter, gate_id};
pub use page::{GatePage, first_page, page_id};

/// Limits of a gate, by name.
pub mod limits {
    /// Waiters in the head.
    pub const WINDOW_MAX: usize = 100;
    /// With so many left in the window the next page is fetched.
    pub const WINDOW_LOW: usize = 20;
    /// Waiters of a page. A page and what is left in the window fit the window.
    pub const PAGE_MAX: usize = WINDOW_MAX - WINDOW_LOW;
    /// Jobs at once past one gate: they stand in its head.
    pub const LIMIT_MAX: u32 = 150;
    /// A holder is asked whether it is still there after so long, then after twice as long, and so on.
    pub const CHECK_FIRST_MS: u64 = 60_000;
    /// A gate at which nobody stands for so long is vacant.
    pub const IDLE: std::time::Duration = std::time::Duration::from_secs(600);
    /// At most so many doublings: an hour and a bit. A job of seven days notes 170 of these asks.
    pub const CHECK_DOUBLINGS: u32 = 6;
}

/// Kinds of mail between a job and its gate.
pub mod mail {
    /// A job asks to pass; the gate answers with [`GRANTED`] some day. Creates the gate.
    pub const ASK: &str = "gate_ask?";
    /// A job is over: its permit is free, or its place in the line.
    pub const RELEASE: &str = "gate_release";
    /// A person says how many may pass. Creates the gate.
    pub const SET: &str = "gate_set";
    /// To the job: it may go on.
    pub const GRANTED: &str = "gate_granted?";
    /// To a job that has a permit: it comes back if the job is over.
    pub const HOLDS: &str = "gate_holds?";
    /// To a page: more of the line. Creates the page.
    pub const PUT: &str = "gate_put";
    /// To a page: give up what you have.
    pub const TAKE: &str = "gate_take?";
    /// From a page: everything it had.
    pub const PAGE: &str = "gate_page";
}
