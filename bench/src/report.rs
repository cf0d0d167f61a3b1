//! What a suite found, for people and for programs.

use std::fmt::Write as _;

/// One figure.
#[derive(Clone, Debug)]
pub struct Figure {
    /// The suite, for example `commit`.
    pub suite: &'static str,
    /// The case, for example `callers=50`.
    pub case: String,
    /// What was measured.
    pub metric: &'static str,
    /// How much; `None` where nobody can say, and then `unit` says why.
    pub value: Option<f64>,
    /// Of what.
    pub unit: &'static str,
}

/// All figures of a run.
#[derive(Clone, Debug, Default)]
pub struct Report(pub Vec<Figure>);

impl Report {
    /// Adds one.
    pub fn add(
        &mut self,
        suite: &'static str,
        case: &str,
        metric: &'static str,
        value: f64,
        unit: &'static str,
    ) {
        self.0.push(Figure { suite, case: case.to_owned(), metric, value: Some(value), unit });
    }

    /// Adds one that can not be had here, and why.
    pub fn unknown(
        &mut self,
        suite: &'static str,
        case: &str,
        metric: &'static str,
        why: &'static str,
    ) {
        self.0.push(Figure { suite, case: case.to_owned(), metric, value: None, unit: why });
    }

    /// One JSON object per line.
    pub fn to_json_lines(&self) -> String {
        self.0.iter().fold(String::new(), |mut out, f| {
            let line = serde_json::json!({
                "suite": f.suite, "case": f.case, "metric": f.metric, "value": f.value.map(round), "unit": f.unit,
            });
            // Writing to a String cannot fail.
            let _ = writeln!(out, "{line}");
            out
        })
    }

    /// A table: a row per case, a column per metric.
    pub fn to_table(&self) -> String {
        let mut cases: Vec<&str> = Vec::new();
        let mut metrics: Vec<(&str, &str)> = Vec::new();
        for f in &self.0 {
            if !cases.contains(&f.case.as_str()) {
                cases.push(&f.case);
            }
            if !metrics.contains(&(f.metric, f.unit)) {
                metrics.push((f.metric, f.unit));
            }
        }
        let mut rows = vec![
            std::iter::once("case".to_owned())
                .chain(metrics.iter().map(|(m, u)| format!("{m} ({u})")))
                .collect::<Vec<_>>(),
        ];
        for case in cases {
            let cell = |(m, _): &(&str, &str)| {
                let found = self.0.iter().find(|f| f.case == case && f.metric == *m);
                let value = found.and_then(|f| f.value);
                value.map_or_else(|| "-".to_owned(), |v| round(v).to_string())
            };
            rows.push(std::iter::once(case.to_owned()).chain(metrics.iter().map(cell)).collect());
        }
        let widths: Vec<usize> = (0..rows[0].len())
            .map(|i| rows.iter().map(|r| r[i].len()).max().unwrap_or(0))
            .collect();
        rows.iter().fold(String::new(), |mut out, row| {
            let cells: Vec<String> =
                row.iter().zip(&widths).map(|(c, w)| format!("{c:>w$}")).collect();
            let _ = writeln!(out, "{}", cells.join("  "));
            out
        })
    }
}

/// Three decimals below ten, none above: nobody believes the rest.
fn round(v: f64) -> f64 {
    if v.abs() < 10.0 { (v * 1000.0).round() / 1000.0 } else { v.round() }
}

/// The value below which a share of sorted samples lies.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get(((last as f64) * share).round() as usize).copied().unwrap_or(0.0)
}
