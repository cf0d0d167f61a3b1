//! The double through the real client: what was observed on a real server, each fact a transcript, and
//! the requests, faults and files that others build on.

mod faults;
mod files;
mod kubelet;
mod logs;
mod requests;
mod speed;
mod support;
mod transcripts;
