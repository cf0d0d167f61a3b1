//! `tenure task budget`.

use super::{Budget, Cli, text};
use crate::commands::{
    Failure,
    job::{fields, text::read},
};
use serde_json::Value;
use tenure_pods::desk::BudgetView;

impl Cli {
    pub(super) async fn budget(&self, o: &Budget) -> Result<String, Failure> {
        let Some(tenant) = &o.tenant else {
            let answer = self.api.get(&["tasks", "budgets"], &[]).await?;
            let all: Vec<BudgetView> = read(answer["budgets"].clone())?;
            return Ok(self.say(&answer, || text::budgets(&all)));
        };
        let path = ["tasks", "budgets", tenant.as_str()];
        if o.clear {
            self.api.delete(&path, &[]).await?;
        }
        let terms = [o.per_minute, o.burst, o.in_flight];
        let answer = match terms.iter().any(Option::is_some) {
            false => self.api.get(&path, &[]).await?,
            true => {
                let body = fields([
                    ("per_minute", o.per_minute.map(Value::from)),
                    ("burst", o.burst.map(Value::from)),
                    ("in_flight", o.in_flight.map(Value::from)),
                    self.by(),
                ]);
                self.api.put(&path, &body).await?
            }
        };
        let one: BudgetView = read(answer.clone())?;
        Ok(self.say(&answer, || text::budget(&one)))
    }
}
