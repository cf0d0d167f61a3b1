//! How a bus is.

/// How a bus is, for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BusState {
    /// Rings of others would be heard, and ours be taken; events too, where it carries them.
    pub connected: bool,
    /// Connections so far; more than one means that some were lost.
    pub connections: u64,
    /// What the server, or the way to it, complained about last.
    pub trouble: Option<String>,
}
