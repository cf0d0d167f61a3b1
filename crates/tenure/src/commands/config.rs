//! `tenure config`.

use super::Failure;
use crate::config::{Settings, other_variable, variable};

/// Every setting, its value, who set it, and what it does.
pub fn run(settings: &Settings, json: bool) -> Result<String, Failure> {
    if json {
        let rows: Vec<_> = settings
            .iter()
            .map(|(key, value, origin)| {
                serde_json::json!({
                    "key": key.name, "value": value, "origin": origin, "variable": variable(key.name),
                    "other_variable": other_variable(key.name), "doc": key.doc, "problem": settings.problem(key.name).map(|p| p.to_string())
                })
            })
            .collect();
        return Ok(format!("{}\n", serde_json::Value::Array(rows)));
    }
    let rows: Vec<(String, String, &str)> = settings
        .iter()
        .map(|(k, v, o)| (format!("{} = {}", k.name, v), o.to_string(), k.doc))
        .collect();
    let wide = rows.iter().map(|r| r.0.len()).max().unwrap_or(0);
    let wide_origin = rows.iter().map(|r| r.1.len()).max().unwrap_or(0);
    let lines = rows
        .iter()
        .map(|(setting, origin, doc)| format!("{setting:wide$}  {origin:wide_origin$}  {doc}\n"));
    // Settings of a few commands do not stop the others.
    let problems = settings.iter().filter_map(|(key, ..)| settings.problem(key.name));
    let problems = problems.map(|p| format!("\nproblem: {p}; what needs it will not start"));
    Ok(lines.chain(problems).collect::<String>().trim_end().to_owned() + "\n")
}
