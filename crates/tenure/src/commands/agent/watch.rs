//! Follows the events of a turn as they come.

use crate::commands::{
    Failure,
    job::{client::Api, follow},
};

/// Prints events until the turn ends.
pub async fn follow(api: &Api, id: &str, json: bool) -> Result<String, Failure> {
    follow::follow_stream(api, &["turns", id, "watch"], "turn", 1, json).await
}
