//! What a suite found, for people and for programs.

use serde_json::Value;
use std::{fmt::Write as _, time::Duration};
use tenure_kernel::error::StoreError;

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
        align(&rows)
    }
}

/// Columns under each other. Every row has as many cells as the first.
fn align(rows: &[Vec<String>]) -> String {
    let columns = rows.first().map_or(0, Vec::len);
    let widths: Vec<usize> =
        (0..columns).map(|i| rows.iter().map(|r| r[i].len()).max().unwrap_or(0)).collect();
    rows.iter().fold(String::new(), |mut out, row| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(c, w)| format!("{c:>w$}")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}", cells.join("  "));
        out
    })
}

/// One case of a suite whose figures belong together: a flat object, told in the order in which it was made.
#[derive(Clone, Debug)]
pub struct Case(Vec<(&'static str, Value)>);

impl Case {
    /// Of this suite.
    pub fn of(suite: &'static str) -> Self {
        Case(vec![("suite", suite.into())])
    }

    /// Adds a word or a count.
    pub fn with(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        self.0.push((name, value.into()));
        self
    }

    /// Adds a measured number.
    pub fn measured(self, name: &'static str, value: f64) -> Self {
        self.with(name, round(value))
    }

    fn to_json(&self) -> String {
        let member = |(name, value): &(&str, Value)| format!("{}:{value}", Value::from(*name));
        format!("{{{}}}", self.0.iter().map(member).collect::<Vec<_>>().join(","))
    }
}

/// Cases for programs, one JSON object per line, or for people: a line per figure where there is one case, a row
/// per case where there are more.
pub fn tell(cases: &[Case], json: bool) -> String {
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match cases {
        _ if json => cases.iter().map(|c| c.to_json() + "\n").collect(),
        [one] => {
            let width = one.0.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            one.0.iter().map(|(name, value)| format!("{name:width$}  {}\n", word(value))).collect()
        }
        _ => {
            // Cases of one suite may say more or less; a column is there if any of them has it.
            let mut names: Vec<&str> = Vec::new();
            for (name, _) in cases.iter().flat_map(|c| &c.0) {
                if !names.contains(name) {
                    names.push(name);
                }
            }
            let cell = |case: &Case, name: &str| {
                let found = case.0.iter().find(|(n, _)| *n == name);
                found.map_or_else(|| "-".to_owned(), |(_, value)| word(value))
            };
            let head = names.iter().map(|n| (*n).to_owned()).collect();
            let rows = cases.iter().map(|c| names.iter().map(|n| cell(c, n)).collect());
            align(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
        }
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

/// The longest time that [`counted`] measures for.
const LONGEST: Duration = Duration::from_secs(60);

/// Measures for `time`. If nothing was counted, because a busy machine took longer than that for one operation, measures again
/// for twice as long. Returns what was counted and the time in which it was.
///
/// # Errors
/// Those of `measure`, and one if nothing was counted in a minute.
pub async fn counted<T>(
    mut time: Duration,
    mut measure: impl AsyncFnMut(Duration) -> Result<Vec<T>, StoreError>,
) -> Result<(Vec<T>, Duration), StoreError> {
    loop {
        let counted = measure(time).await?;
        if !counted.is_empty() {
            return Ok((counted, time));
        }
        if time >= LONGEST {
            let seconds = time.as_secs_f64();
            return Err(StoreError::Refused(format!("nothing was completed in {seconds:.1} s")));
        }
        time = time.max(Duration::from_millis(1)) * 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_window_in_which_nothing_ended_is_measured_again_for_longer() {
        let mut asked = Vec::new();
        let second = Duration::from_secs(1);
        let (seen, time) = counted(second, async |time| {
            asked.push(time);
            Ok(if time < 4 * second { vec![] } else { vec![1] })
        })
        .await
        .unwrap();
        assert_eq!((seen, time), (vec![1], 4 * second));
        assert_eq!(asked, [second, 2 * second, 4 * second]);
        let never = counted::<u8>(Duration::ZERO, async |_| Ok(vec![])).await;
        assert!(never.unwrap_err().to_string().contains("nothing was completed in"));
    }

    #[test]
    fn a_case_is_told_in_order_to_programs_and_to_people() {
        let case = |n: u64| Case::of("drain").with("jobs", n).measured("seconds", 1.234_567);
        assert_eq!(tell(&[case(7)], true), "{\"suite\":\"drain\",\"jobs\":7,\"seconds\":1.235}\n");
        assert_eq!(tell(&[case(7)], false), "suite    drain\njobs     7\nseconds  1.235\n");
        let wider = case(12).with("http", true);
        assert_eq!(
            tell(&[case(7), wider], false),
            "suite  jobs  seconds  http\ndrain     7    1.235     -\ndrain    12    1.235  true\n"
        );
    }
}
