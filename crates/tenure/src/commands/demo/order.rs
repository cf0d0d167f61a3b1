//! The flows of the demo: an order is reserved, paid, approved by a person, and shipped; and a count of parcels, which
//! is the tool of the demo's agent. The shop, the bank and the carrier are an [`outside`](super::outside) that counts.

use super::outside::ask;
use crate::Program;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenure_steps::{Ctx, FlowError, Probe, ToolCtx, ToolError, flow::FlowSpec, tool::ToolSpec};

/// An order.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Order {
    /// Its number.
    pub number: u32,
    /// What was ordered.
    pub item: String,
    /// Where shop, bank and carrier can be reached.
    pub outside: String,
}

/// What the outside gives for something it did.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// The key under which it was done, and can be asked for.
    pub reference: String,
}

/// What comes out in the end.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Delivery {
    /// The payment.
    pub payment: Receipt,
    /// The parcel.
    pub parcel: Receipt,
}

// A flow is ordinary async Rust. What a finished step gave is recorded: another worker that goes on from
// here takes it from the record, and calls nothing again.
async fn order(ctx: Ctx, order: Order) -> Result<Delivery, FlowError> {
    let _: Receipt = ctx.tool("demo.reserve", &order).await?;
    let payment: Receipt = ctx.tool("demo.charge", &order).await?;
    let answer = ctx
        .approval("shipping")
        .note(format!("Order {} is paid. Ship {}?", order.number, order.item))
        .await?;
    if !answer.approved {
        return Err(FlowError::failed(format!("order {} was not to be shipped", order.number)));
    }
    let parcel: Receipt = ctx.tool("demo.ship", &order).await?;
    Ok(Delivery { payment, parcel })
}

// A tool says what is to be done when nobody knows whether a call of it happened.
fn each_of_them() -> [ToolSpec; 3] {
    [
        ToolSpec::new("demo.reserve", |ctx, order| act(ctx, order, "reserve"))
            .doc("Sets an item aside; the shop knows a repeated key.")
            .idempotent(),
        ToolSpec::new("demo.charge", |ctx, order| act(ctx, order, "charge"))
            .doc("Takes the money; the bank can be asked whether it did.")
            .verifiable(at_the_bank),
        ToolSpec::new("demo.ship", |ctx, order| act(ctx, order, "ship"))
            .doc("Hands over the parcel; nobody but a person can find out later.")
            .irreversible(),
    ]
}

async fn act(ctx: ToolCtx, order: Order, what: &str) -> Result<Receipt, ToolError> {
    let request = format!("ACT {} {what}-{}", ctx.key, order.number);
    match ask(&order.outside, &request).await {
        Ok(words) if words.first().is_some_and(|w| w == "OK") => Ok(Receipt { reference: ctx.key }),
        Ok(words) => Err(ToolError::unknown(format!("the answer was {words:?}"))),
        Err(None) => Err(ToolError::retryable("nobody can be reached there")),
        Err(Some(_)) => Err(ToolError::unknown("the line broke before there was an answer")),
    }
}

async fn at_the_bank(ctx: ToolCtx, order: Order) -> Result<Probe<Receipt>, ToolError> {
    match ask(&order.outside, &format!("PROBE {}", ctx.key)).await {
        Ok(words) if words.first().is_some_and(|w| w == "YES") => {
            Ok(Probe::Happened(Receipt { reference: ctx.key }))
        }
        Ok(_) => Ok(Probe::NotHappened),
        Err(_) => Ok(Probe::Unclear("the bank does not answer".into())),
    }
}

/// Which parcels are counted.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Shelf {
    /// Its name.
    pub shelf: String,
}

async fn count(ctx: Ctx, shelf: Shelf) -> Result<u32, FlowError> {
    Ok(ctx.tool("demo.count", shelf).await?)
}

async fn parcels_on(_: ToolCtx, _: Shelf) -> Result<u32, ToolError> {
    Ok(2)
}

/// A program with the flows and tools of the demo.
pub fn with_demo(program: Program) -> Program {
    let program = program
        .flow(
            FlowSpec::new("demo.order", order).doc("An order: reserved, paid, approved, shipped."),
        )
        .flow(FlowSpec::new("demo.count", count).doc("Counts the parcels on a shelf."))
        .common_tool(
            ToolSpec::new("demo.count", parcels_on)
                .doc("Counts the parcels on a shelf: two.")
                .idempotent(),
        );
    each_of_them().into_iter().fold(program, Program::common_tool)
}
