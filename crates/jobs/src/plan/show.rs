//! The graph of a plan as text: layers from top to bottom, what is in one layer can run side by side.

use super::{
    model::{OnFailure, Plan, Step, What},
    template::{Piece, Template},
};
use std::fmt::Write as _;
use tenure_kernel::limits;

/// A plan laid out.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    /// Steps by layer, by their number in the plan. A step is one layer below the lowest that it needs.
    pub layers: Vec<Vec<usize>>,
    /// From a step to one that needs it; what follows from others is left out.
    pub edges: Vec<(usize, usize)>,
}

/// Lays a plan out. Only for plans that passed the check: steps of a circle are in no layer.
pub fn graph(plan: &Plan) -> Graph {
    let needs = plan.needs();
    let mut layer: Vec<Option<usize>> = vec![None; needs.len()];
    let mut left: Vec<usize> = (0..needs.len()).collect();
    loop {
        let before = left.len();
        left.retain(|&step| {
            let above: Option<Vec<usize>> = needs[step].iter().map(|n| layer[*n]).collect();
            let Some(above) = above else { return true };
            layer[step] = Some(above.into_iter().max().map_or(0, |l| l + 1));
            false
        });
        if left.len() == before || left.is_empty() {
            break;
        }
    }
    let deepest = layer.iter().flatten().max().map_or(0, |l| l + 1);
    let mut layers = vec![Vec::new(); deepest];
    for (step, layer) in layer.iter().enumerate() {
        if let Some(layer) = layer {
            layers[*layer].push(step);
        }
    }
    // What each step needs through others: an edge to one of those says nothing new.
    let mut reach: Vec<Vec<bool>> = vec![Vec::new(); needs.len()];
    let mut edges = Vec::new();
    for &step in layers.iter().flatten() {
        let mut beyond = vec![false; needs.len()];
        for need in &needs[step] {
            beyond.iter_mut().zip(&reach[*need]).for_each(|(all, one)| *all |= *one);
        }
        edges.extend(needs[step].iter().filter(|n| !beyond[**n]).map(|n| (*n, step)));
        needs[step].iter().for_each(|n| beyond[*n] = true);
        reach[step] = beyond;
    }
    Graph { layers, edges }
}

/// What a step does, in a few words.
pub fn does(step: &Step) -> String {
    match &step.what {
        What::Tool { tool, .. } if tool == "llm" => "asks a model".to_owned(),
        What::Tool { tool, .. } => format!("calls {tool}"),
        What::Wait(wait) => {
            let name = wait.name.as_ref().map_or_else(|| step.id.clone(), text);
            let kind = match wait.kind {
                tenure_steps::events::WaitKind::Human => "approval",
                other => other.as_str(),
            };
            format!("waits for {kind} {name:?}")
        }
        What::Sleep(seconds) => format!("sleeps {} s", text(seconds)),
        What::Job { flow, version: Some(v), .. } => format!("runs the job {flow}@{v}"),
        What::Job { flow, .. } => format!("runs the job {flow}"),
        What::Value(value) => {
            let (all, most) = (text(value), 48);
            match limits::clip(&all, most) {
                short if short.len() < all.len() => format!("is {short}…"),
                _ => format!("is {all}"),
            }
        }
    }
}

/// What else is to be known about a step.
pub fn remarks(step: &Step) -> Vec<String> {
    let mut said = Vec::new();
    if let Some(each) = &step.for_each {
        said.push(format!("for each of {}, {} at once", text(&each.items), each.parallel));
    }
    said.extend(step.when.iter().map(|w| format!("when {}", w.source)));
    said.extend(step.undo.iter().map(|u| format!("undone by {}", u.tool)));
    if step.goes_on {
        said.push("may fail".to_owned());
    }
    said
}

/// A template as it was written, shortened.
fn text(template: &Template) -> String {
    match template {
        Template::Plain(serde_json::Value::String(s)) => s.clone(),
        Template::Plain(value) => value.to_string(),
        Template::Whole(expr) => expr.source.clone(),
        Template::Text(pieces) => {
            let piece = |p: &Piece| match p {
                Piece::Plain(plain) => plain.clone(),
                Piece::Expr(expr) => format!("${{{{ {} }}}}", expr.source),
            };
            pieces.iter().map(piece).collect()
        }
        Template::List(items) => {
            format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(", "))
        }
        Template::Object(members) => {
            let member = |(k, t): (&String, &Template)| format!("{k}: {}", text(t));
            format!("{{{}}}", members.iter().map(member).collect::<Vec<_>>().join(", "))
        }
    }
}

/// The graph in words and lines.
pub fn show(plan: &Plan) -> String {
    let graph = graph(plan);
    let mut out = String::new();
    let count = |n: usize, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
    let name = plan.name.as_deref().unwrap_or("a plan");
    // Writing to a String can not fail.
    let _ = writeln!(
        out,
        "{name}: {}, {} deep{}",
        count(plan.steps.len(), "step"),
        graph.layers.len(),
        if plan.on_failure == OnFailure::Undo { ", undone on failure" } else { "" }
    );
    let wide = plan.steps.iter().map(|s| s.id.len()).max().unwrap_or(0);
    for (i, layer) in graph.layers.iter().enumerate() {
        let _ = writeln!(out, "{}", if i == 0 { "" } else { "  │" });
        for (j, &at) in layer.iter().enumerate() {
            let step = &plan.steps[at];
            let mark = match (layer.len(), j) {
                (1, _) => "●",
                (_, 0) => "┬",
                (n, j) if j + 1 == n => "┴",
                _ => "┼",
            };
            let above: Vec<&str> = (graph.edges.iter())
                .filter(|e| e.1 == at)
                .map(|e| plan.steps[e.0].id.as_str())
                .collect();
            let mut line = format!("  {mark} {:wide$}  {}", step.id, does(step));
            if !above.is_empty() {
                let _ = write!(line, "  ← {}", above.join(", "));
            }
            let _ = writeln!(out, "{line}");
            for remark in remarks(step) {
                let bar = if j + 1 == layer.len() { " " } else { "│" };
                let _ = writeln!(out, "  {bar} {:wide$}    {remark}", "");
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIP: &str = include_str!("../../tests/plans/trip.json");

    #[test]
    fn a_plan_is_shown_in_layers() {
        let plan = Plan::parse(TRIP).unwrap();
        let golden = include_str!("../../tests/plans/trip.txt");
        assert_eq!(show(&plan), golden, "\n{}", show(&plan));
    }

    #[test]
    fn an_edge_that_follows_from_others_is_left_out() {
        let text = r#"{"version": 1, "steps": {
            "a": {"value": 1}, "b": {"value": "${{ steps.a.output }}"},
            "c": {"value": "${{ steps.a.output + steps.b.output }}"}}}"#;
        let graph = graph(&Plan::parse(text).unwrap());
        assert_eq!(graph.layers, [vec![0], vec![1], vec![2]]);
        assert_eq!(graph.edges, [(0, 1), (1, 2)]);
    }
}
