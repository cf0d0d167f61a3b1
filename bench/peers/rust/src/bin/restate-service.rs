//! A Restate service in its Rust SDK: a handler of so many `ctx.run` steps that do nothing.

use restate_sdk::prelude::*;
use tenure_bench_peers::{RESULT_BYTES, give_up};

struct Bench;

#[service]
impl Bench {
    #[handler]
    async fn work(&self, ctx: Context<'_>, steps: u64) -> Result<u64, HandlerError> {
        for _ in 0..steps {
            ctx.run(|| async { Ok("x".repeat(RESULT_BYTES)) }).name("step").await?;
        }
        Ok(steps)
    }
}

#[tokio::main]
async fn main() {
    let address = std::env::args().nth(1).unwrap_or_else(|| give_up("usage: restate-service ADDRESS"));
    let address = address.parse().unwrap_or_else(|e| give_up(&format!("{address}: {e}")));
    HttpServer::new(Endpoint::builder().bind(Bench).build()).listen_and_serve(address).await;
}
