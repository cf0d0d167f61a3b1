//! Agents: who has turns one after another, and the turns themselves.
//!
//! | room | what it holds |
//! |---|---|
//! | [`admission`] | which turns may be created |
//! | [`rules`] | the rules of silence: keys, defaults, what each does |
//! | [`words`] | mail between agents, turns, joins and those outside |
//! | [`agent`] | the agent machine: who is next |
//! | [`turn`] | the turn machine: dispatch, steps, waits, one end |
//! | [`join`] | several turns of which one result is made |
//! | [`desk`] | what outsiders ask |
//! | [`view`] | what people read |
//! | [`drive`] | the worker that runs turns: asks the model, calls tools as jobs |
//!
//! A *turn* is one unit of delivery of an agent: it is sent, dispatched, run by a worker in steps, suspended while
//! tools work, resumed, and ends once, with one announcement and one deliverable. An *agent* only says whose turn it is.
//! All of it is mail and commits: the inbox that people see is the mailbox of these entities, and what it shows
//! as `queued`, `pending`, `processing` and `consumed` follows from where the entity stands.
//!
//! **Invariant:** a turn that is not over has a timer for every reason to wait. Nothing here is believed because a
//! message came over a bus; a bus only makes somebody look.

pub mod admission;
pub mod agent;
pub mod desk;
pub mod drive;
pub mod join;
pub mod rules;
pub mod turn;
pub mod view;
pub mod words;

/// The queue in which the turns of a worker target wait.
pub fn queue_of(target: &str) -> String {
    format!("{}{target}", tenure_kernel::wakeup::QUEUE)
}

/// The subject on which workers of a target are woken.
pub fn wakeup_subject(target: &str) -> String {
    format!("cmd.agent.{target}.wakeup")
}

/// Whether this is the subject of an event about the agent of this name.
pub fn is_event_of(agent: &str, subject: &str) -> bool {
    let rest = subject.strip_prefix("evt.agent.").and_then(|r| r.strip_prefix(agent));
    matches!(rest, Some(".task" | ".state" | ".step"))
}

/// Whether a text can be an agent's name or a target: one token of a subject.
pub fn is_token(text: &str) -> bool {
    tenure_kernel::wakeup::is_target(text)
}

/// Limits of agents and turns, by name.
pub mod limits {
    /// Length of an agent's name or a target.
    pub const TOKEN_BYTES_MAX: usize = tenure_kernel::limits::TARGET_BYTES_MAX;
    /// Length of a channel or the name of an output box.
    pub const LABEL_BYTES_MAX: usize = 96;
    /// A profile of an agent, as JSON.
    pub const PROFILE_BYTES_MAX: usize = 256 * 1024;
    /// What is set about an agent and lies in its head, as JSON. A larger profile is read from the event that set it.
    pub const SPEC_BYTES_MAX: usize = 7 * 1024;
    /// Turns that wait behind the active one: their ids lie in the head.
    pub const QUEUED_MAX: usize = 256;
    /// Ended turns that an agent remembers.
    pub const RECENT_MAX: usize = 16;
    /// Open waits of a turn: each has a timer.
    pub const WAITS_MAX: usize = 24;
    /// Ended waits whose results may come again and are known then.
    pub const DONE_MAX: usize = 32;
    /// Results that came before the turn was suspended.
    pub const EARLY_MAX: usize = 16;
    /// Length of a tool call's id, which a model makes up.
    pub const CALL_BYTES_MAX: usize = 64;
    /// Length of a tool's name.
    pub const TOOL_BYTES_MAX: usize = 64;
    /// A deliverable up to this size is told to whoever waits for the turn; a larger one is read from it.
    pub const TOLD_BYTES_MAX: usize = 4 * 1024;
    /// A result that ends the turn and is no larger is delivered without a worker.
    pub const ENDING_BYTES_MAX: usize = 1024;
    /// What is kept of the last words of the model, for a fallback deliverable, as JSON.
    pub const SAID_BYTES_MAX: usize = 1024;
    /// Length of an error.
    pub const ERROR_BYTES_MAX: usize = 512;
    /// Turns of one join.
    pub const JOIN_MAX: usize = 32;
    /// What is kept of the result of one turn of a join, as JSON.
    pub const SUMMARY_BYTES_MAX: usize = 256;
    /// What somebody sends to an agent, as JSON.
    pub const MESSAGE_BYTES_MAX: usize = 1024 * 1024;
    /// What is said to a turn, and what it says on a bus, as JSON: it is mail that is decided on from one row, or a message
    /// that goes out whole. The result of a job may be as large as a job's output; it is read from the job.
    pub const RESULT_BYTES_MAX: usize = tenure_kernel::limits::BODY_INLINE_BYTES_MAX;
    /// What was said in a turn, its results among it. A worker keeps all of it, and the model reads all of it at every step.
    pub const CONVERSATION_BYTES_MAX: usize = 16 * 1024 * 1024;
    /// Workers that may give a turn back before a step of it is finished.
    pub const GIVEN_BACK_MAX: u32 = 20;
    /// How deep turns may delegate.
    pub const DEPTH_MAX: u32 = 20;
}

/// The beginning of a text that takes no more than so many bytes as JSON: a head is JSON, and a quote takes two.
pub(crate) fn clip_encoded(text: &str, bytes_max: usize) -> &str {
    let mut max = bytes_max;
    loop {
        let clipped = tenure_kernel::limits::clip(text, max);
        let bytes = serde_json::to_vec(clipped).map_or(0, |b| b.len());
        if bytes <= bytes_max || clipped.is_empty() {
            return clipped;
        }
        max = (clipped.len() * bytes_max / bytes).min(clipped.len() - 1);
    }
}

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_kernel::wakeup;

    #[test]
    fn an_agent_has_three_subjects() {
        assert!(
            is_event_of("ada", "evt.agent.ada.task") && is_event_of("ada", "evt.agent.ada.step")
        );
        for other in
            ["evt.agent.ad.task", "evt.agent.adam.task", "evt.agent.ada", "evt.agent.ada.x"]
        {
            assert!(!is_event_of("ada", other), "{other}");
        }
    }

    /// A wake-up that the kernel did not know for one would wait for a bus.
    #[test]
    fn a_wake_up_rings_the_queue_in_which_turns_wait() {
        let subject = wakeup_subject("pool-1");
        assert_eq!(wakeup::target_of(&subject), Some("pool-1"));
        assert_eq!(wakeup::queue("pool-1"), Some(queue_of("pool-1")));
    }
}
