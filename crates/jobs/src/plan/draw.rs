//! The graph of a plan as SVG: layers from left to right, lines from what is needed to what needs it. One file
//! without scripts or fonts of its own, light and dark.

use super::{
    model::{OnFailure, Plan, Step},
    show::{does, graph, remarks},
};
use std::fmt::Write as _;
use tenure_kernel::limits;

const BOX_WIDTH: f64 = 218.0;
const GAP_X: f64 = 74.0;
const GAP_Y: f64 = 22.0;
const MARGIN: f64 = 28.0;
const TITLE: f64 = 58.0;
const LINE: f64 = 16.0;
/// Letters that fit in a box.
const LETTERS: usize = 31;
/// Letters of a name, which are bold and stand beside a dot.
const NAME_LETTERS: usize = 22;
/// What a line takes that passes between boxes.
const LANE: f64 = 6.0;
/// Places for lines that pass between boxes. With more of them nobody could follow a line anyway: all go straight.
const LANES_MAX: usize = 4_000;

const STYLE: &str = "
  svg { --paper: #fbfbfd; --ink: #1d2433; --dim: #667085; --line: #b3bccb; --card: #ffffff; --edge: #d9dfe8; }
  @media (prefers-color-scheme: dark) {
    svg { --paper: #14181f; --ink: #e8ecf3; --dim: #98a3b5; --line: #4b5668; --card: #1c222c; --edge: #323b49; }
  }
  text { font-family: ui-sans-serif, system-ui, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: var(--ink); }
  .paper { fill: var(--paper); } .name { font-size: 13.5px; font-weight: 600; }
  .title { font-size: 17px; font-weight: 650; } .dim { font-size: 11.5px; fill: var(--dim); }
  .card { fill: var(--card); stroke: var(--edge); } .wire { fill: none; stroke: var(--line); stroke-width: 1.6; }
  .tip { fill: var(--line); } .tool { fill: #3b82f6; } .wait { fill: #f59e0b; } .sleep { fill: #94a3b8; }
  .job { fill: #8b5cf6; } .value { fill: #10b981; }";

struct Card {
    x: f64,
    y: f64,
    height: f64,
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn short(text: &str, letters: usize) -> String {
    match text.chars().count() > letters {
        true => text.chars().take(letters - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

fn lines(step: &Step) -> Vec<String> {
    let mut lines = vec![short(&does(step), LETTERS)];
    lines.extend(remarks(step).iter().map(|r| short(r, LETTERS)));
    lines
}

/// The graph with a place in every layer that a line passes, so that no line runs behind a box and seems to be
/// that box's. Such a place is numbered behind the steps.
struct Lanes {
    layers: Vec<Vec<usize>>,
    /// Every line with all its places, the two steps included.
    lines: Vec<Vec<usize>>,
}

impl Lanes {
    fn of(mut layers: Vec<Vec<usize>>, edges: &[(usize, usize)], steps: usize) -> Lanes {
        let mut layer_of = vec![0; steps];
        for (i, layer) in layers.iter().enumerate() {
            layer.iter().for_each(|step| layer_of[*step] = i);
        }
        let passed = |(from, to): &(usize, usize)| layer_of[*from] + 1..layer_of[*to];
        let straight = edges.iter().map(|edge| passed(edge).len()).sum::<usize>() > LANES_MAX;
        let (mut next, mut lines) = (steps, Vec::new());
        for edge in edges {
            let mut line = vec![edge.0];
            for layer in passed(edge).filter(|_| !straight) {
                layers[layer].push(next);
                line.push(next);
                next += 1;
            }
            line.push(edge.1);
            lines.push(line);
        }
        let edges: Vec<_> = lines.iter().flat_map(|l| l.windows(2).map(|w| (w[0], w[1]))).collect();
        let layers = arrange(&layers, &edges, next);
        Lanes { layers, lines }
    }

    fn places(&self) -> usize {
        self.layers.iter().map(Vec::len).sum()
    }
}

/// The drawing.
pub fn svg(plan: &Plan) -> String {
    let graph = graph(plan);
    let lanes = Lanes::of(graph.layers, &graph.edges, plan.steps.len());
    let order = &lanes.layers;
    let height_of = |place: usize| match plan.steps.get(place) {
        Some(step) => 22.0 + LINE * (1 + lines(step).len()) as f64,
        None => LANE,
    };
    let tall = |layer: &Vec<usize>| {
        let boxes: f64 = layer.iter().map(|place| height_of(*place)).sum();
        boxes + GAP_Y * layer.len().saturating_sub(1) as f64
    };
    let inner = order.iter().map(tall).fold(0.0, f64::max);
    let mut cards: Vec<Option<Card>> = (0..lanes.places()).map(|_| None).collect();
    for (i, layer) in order.iter().enumerate() {
        let mut y = TITLE + MARGIN + (inner - tall(layer)) / 2.0;
        for &place in layer {
            let height = height_of(place);
            cards[place] = Some(Card { x: MARGIN + i as f64 * (BOX_WIDTH + GAP_X), y, height });
            y += height + GAP_Y;
        }
    }
    let columns = order.len().max(1) as f64;
    let width = 2.0 * MARGIN + columns * BOX_WIDTH + (columns - 1.0) * GAP_X;
    let width = width.max(360.0);
    let height = TITLE + 2.0 * MARGIN + inner;
    let mut out = String::new();
    // Writing to a String can not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\">\n<style>{STYLE}\n</style>\n\
         <rect class=\"paper\" width=\"100%\" height=\"100%\"/>\n"
    );
    title(&mut out, plan);
    for line in &lanes.lines {
        let stops: Vec<&Card> = line.iter().filter_map(|place| cards[*place].as_ref()).collect();
        wire(&mut out, &stops);
    }
    for (step, card) in plan.steps.iter().zip(&cards) {
        if let Some(card) = card {
            draw(&mut out, step, card);
        }
    }
    out.push_str("</svg>\n");
    out
}

fn title(out: &mut String, plan: &Plan) {
    let name = plan.name.as_deref().unwrap_or("Plan");
    let name = escape(limits::clip(name, 120));
    let undone = if plan.on_failure == OnFailure::Undo { ", undone on failure" } else { "" };
    let steps = plan.steps.len();
    let _ = write!(
        out,
        "<text class=\"title\" x=\"{MARGIN}\" y=\"38\">{name}</text>\n\
         <text class=\"dim\" x=\"{MARGIN}\" y=\"58\">{steps} step{}{undone}</text>\n",
        if steps == 1 { "" } else { "s" }
    );
}

/// A line from the first stop to the last, straight through those between.
fn wire(out: &mut String, stops: &[&Card]) {
    let Some((last, before)) = stops.split_last() else { return };
    out.push_str("<path class=\"wire\" d=\"");
    for (i, (from, to)) in stops.iter().zip(&stops[1..]).enumerate() {
        let (x1, y1) = (from.x + BOX_WIDTH, from.y + from.height / 2.0);
        let tip = if i + 1 == before.len() { 6.0 } else { 0.0 };
        let (x2, y2) = (to.x - tip, to.y + to.height / 2.0);
        let bend = ((x2 - x1) / 2.0).max(24.0);
        let to = if i == 0 { 'M' } else { 'L' };
        let _ = write!(
            out,
            "{to}{x1:.1} {y1:.1} C{:.1} {y1:.1} {:.1} {y2:.1} {x2:.1} {y2:.1} ",
            x1 + bend,
            x2 - bend,
        );
    }
    let (x, y) = (last.x, last.y + last.height / 2.0);
    let _ = write!(out, "\"/>\n<path class=\"tip\" d=\"M{x:.1} {y:.1} l-8 -4.5 v9 z\"/>\n");
}

fn draw(out: &mut String, step: &Step, card: &Card) {
    let (x, y, h) = (card.x, card.y, card.height);
    if step.for_each.is_some() {
        // Several of the same: a second card looks out behind the first.
        let _ = writeln!(
            out,
            "<rect class=\"card\" x=\"{:.1}\" y=\"{:.1}\" width=\"{BOX_WIDTH}\" height=\"{h:.1}\" rx=\"9\"/>",
            x + 5.0,
            y + 5.0
        );
    }
    let dash = if step.when.is_some() { " stroke-dasharray=\"5 4\"" } else { "" };
    let _ = write!(
        out,
        "<rect class=\"card\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{BOX_WIDTH}\" height=\"{h:.1}\" rx=\"9\"{dash}/>\n\
         <circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"5\"/>\n\
         <text class=\"name\" x=\"{:.1}\" y=\"{:.1}\">{}</text>\n",
        step.kind(),
        x + 16.0,
        y + 19.0,
        x + 29.0,
        y + 23.5,
        escape(&short(&step.id, NAME_LETTERS))
    );
    for (i, line) in lines(step).iter().enumerate() {
        let at = y + 23.5 + LINE * (i + 1) as f64;
        let _ = writeln!(
            out,
            "<text class=\"dim\" x=\"{:.1}\" y=\"{at:.1}\">{}</text>",
            x + 14.0,
            escape(line)
        );
    }
}

/// Within a layer, steps stand near the middle of what they are tied to: forth and back a few times.
fn arrange(layers: &[Vec<usize>], edges: &[(usize, usize)], steps: usize) -> Vec<Vec<usize>> {
    let mut layers = layers.to_vec();
    // What each is tied to, to the left and to the right: every edge is looked at once in a round.
    let (mut left, mut right) = (vec![Vec::new(); steps], vec![Vec::new(); steps]);
    for (from, to) in edges {
        left[*to].push(*from);
        right[*from].push(*to);
    }
    let mut place = vec![0.0f64; steps];
    let settle = |layer: &[usize], place: &mut Vec<f64>| {
        for (i, &step) in layer.iter().enumerate() {
            place[step] = i as f64 - layer.len() as f64 / 2.0;
        }
    };
    layers.iter().for_each(|l| settle(l, &mut place));
    for round in 0..6 {
        let forth = round % 2 == 0;
        let ties = if forth { &left } else { &right };
        for i in 0..layers.len() {
            let at = if forth { i } else { layers.len() - 1 - i };
            let middle = |step: usize| match ties[step].as_slice() {
                [] => place[step],
                tied => tied.iter().map(|t| place[*t]).sum::<f64>() / tied.len() as f64,
            };
            let mut ranked: Vec<(f64, usize)> =
                layers[at].iter().map(|step| (middle(*step), *step)).collect();
            ranked.sort_by(|a, b| a.0.total_cmp(&b.0));
            layers[at] = ranked.into_iter().map(|(_, step)| step).collect();
            settle(&layers[at], &mut place);
        }
    }
    layers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drawing_has_every_step_and_nothing_of_a_name_gets_out_of_its_text() {
        let text = r#"{"version": 1, "name": "<b>&", "steps": {
            "a": {"tool": "x\"<script>"}, "b": {"value": "${{ steps.a.output }}", "when": "input.n < 3"}}}"#;
        let drawn = svg(&Plan::parse(text).unwrap());
        assert!(drawn.contains("&lt;b&gt;&amp;") && !drawn.contains("<script"), "{drawn}");
        assert!(drawn.contains(">a</text>") && drawn.contains(">b</text>"));
        assert_eq!(drawn.matches("class=\"wire\"").count(), 1);
    }

    #[test]
    fn a_line_over_several_layers_has_a_place_of_its_own_in_each() {
        let lanes = Lanes::of(vec![vec![0], vec![1], vec![2]], &[(0, 1), (1, 2), (0, 2)], 3);
        assert_eq!(lanes.lines, [vec![0, 1], vec![1, 2], vec![0, 3, 2]]);
        assert_eq!((lanes.places(), lanes.layers[1].len()), (4, 2));
    }

    #[test]
    fn as_many_lines_as_a_plan_can_have_are_drawn() {
        let step = |layer: usize, i: usize, after: Vec<String>| {
            (format!("s{layer}_{i:03}"), serde_json::json!({"value": 1, "after": after}))
        };
        let sizes = [100, 300, 100];
        let names = |layer: usize| {
            (0..sizes[layer]).map(|i| format!("s{layer}_{i:03}")).collect::<Vec<_>>()
        };
        let steps = (0..sizes.len()).flat_map(|layer| {
            let after = move || if layer == 0 { Vec::new() } else { names(layer - 1) };
            (0..sizes[layer]).map(move |i| step(layer, i, after()))
        });
        // Larger than a plan may be: only the drawing is looked at.
        let plan =
            serde_json::json!({"version": 1, "steps": steps.collect::<serde_json::Map<_, _>>()});
        let plan = Plan::read_judged(&plan.into()).unwrap();
        let drawn = svg(&plan);
        assert_eq!(drawn.matches("class=\"wire\"").count(), 100 * 300 + 300 * 100);
    }

    #[test]
    fn lines_go_straight_where_there_would_be_too_many_places_for_them() {
        let layers = |n: usize| (0..n).map(|i| vec![i]).collect::<Vec<_>>();
        let passing = |n: usize| Lanes::of(layers(n), &[(0, n - 1)], n).places() - n;
        assert_eq!(passing(LANES_MAX + 2), LANES_MAX);
        assert_eq!(passing(LANES_MAX + 3), 0);
    }
}
