//! What the wire promises: everything comes back as it was.

mod specimens;
mod wire;
