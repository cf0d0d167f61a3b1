//! Following objects of a cluster: a list, then a watch from there, for ever.
//!
//! A watch tells what changes and forgets to tell that it is dead. It may end at any time (that is normal), answer that its version is
//! gone (`410`, inside a stream that began with 200), or stay open and say nothing, because a connection was lost in a way nobody
//! noticed, or because the version lies in a future that never comes (an API server that was restored from a backup). So:
//!
//! - Bookmarks are asked for, and count as signs of life. A watch that has said nothing for a while is opened anew from the last version;
//!   if that one is silent too, everything is listed again.
//! - Every watch has an end (`timeoutSeconds`, drawn at random so that a thousand collectors do not come back together), and
//!   everything is listed again now and then in any case.
//! - What is gone between two lists shows only by its absence: whoever listens is told where a list begins and ends.
//!
//! `machine` decides all of that and reads no clock. [`run`](fn@run) does what it says. `kube` speaks HTTP, through kube's client: its
//! own `watcher` hides bookmarks, and its `Api` the header `Retry-After`, which an overloaded API server sends beside a page that is no
//! JSON. Nothing here knows what a pod means; `lean` knows what of it is worth reading.

mod connect;
mod kube;
mod lean;
pub mod machine;
mod pulse;
mod run;
mod source;
mod trouble;

pub use self::{
    connect::{Connection, SERVICE_ACCOUNT, connect},
    kube::{Decode, KubeSource, Scope, ask, read_line},
    lean::{LeanNode, LeanPod, keeps_annotation},
    machine::FollowPolicy,
    pulse::Pulse,
    run::{Seen, run},
    source::{Object, Page, Source, Told, Watch},
    trouble::Trouble,
};
