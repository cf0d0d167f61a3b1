use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenure::{Ctx, FlowError, FlowSpec, Program, ToolCtx, ToolError, ToolSpec, config::Settings};

#[derive(Serialize, Deserialize, JsonSchema)]
struct Order {
    number: u32,
    cents: u32,
}

#[derive(Serialize, Deserialize, JsonSchema)]
struct Receipt {
    key: String,
}

async fn order(ctx: Ctx, order: Order) -> Result<Receipt, FlowError> {
    let receipt: Receipt = ctx.tool("charge", &order).await?;
    let answer = ctx.approval("shipping").note(format!("Ship order {}?", order.number)).await?;
    if !answer.approved {
        return Err(FlowError::failed("the order was not approved"));
    }
    Ok(receipt)
}

// Pass `ctx.key` to the bank as its idempotency key: a second call under the same key charges nothing.
async fn charge(ctx: ToolCtx, _order: Order) -> Result<Receipt, ToolError> {
    Ok(Receipt { key: ctx.key })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let settings = Settings::load(None, std::env::vars(), &[])?;
    let program = Program::new()
        .flow(FlowSpec::new("order", order))
        .tool(ToolSpec::new("charge", charge).idempotent());
    let mut worker = program.work(&settings, "http://127.0.0.1:7777", None).await?;
    tenure::service::asked_to_end().await?;
    worker.stop().await;
    Ok(())
}
