//! The fragments of Rust in the documentation, within flows that make them compile.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tenure::{Ctx, FlowError};

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Flight {
    reference: String,
}

#[derive(Serialize, Deserialize, JsonSchema)]
pub struct Hotel {
    reference: String,
}

/// docs/plans.md
pub async fn trip(ctx: Ctx, to: String) -> Result<(Flight, Hotel), FlowError> {
    let trip = ctx.saga(|s| async move {
        let flight = s.tool("book_flight", &to);
        let flight: Flight =
            flight.undo("cancel_flight", |f: &Flight| json!({"ref": f.reference})).await?;
        let hotel = s.tool("book_hotel", &to);
        let hotel: Hotel =
            hotel.undo("cancel_hotel", |h: &Hotel| json!({"ref": h.reference})).await?;
        Ok((flight, hotel))
    });
    trip.await
}

/// docs/pods/steps.md
pub async fn train(ctx: Ctx, _: Value) -> Result<Value, FlowError> {
    let pod = json!({
        "image": "registry.example/train:7", "command": ["python", "train.py"],
        "env": { "EPOCHS": 3 }, "resources": { "limits": { "memory": "4Gi", "nvidia.com/gpu": 1 } },
        "timeout": "2h", "result_file": "/work/result.json",
    });
    let trained: Value = ctx.tool("pod", pod).await?;
    Ok(trained)
}
