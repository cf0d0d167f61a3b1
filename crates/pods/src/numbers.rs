//! The text that Prometheus reads, for the processes of this crate.

use std::fmt::Write as _;

/// Writes metrics, each with its help and type.
#[derive(Default)]
pub(crate) struct Page(String);

impl Page {
    /// Begins a metric.
    pub fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// One sample.
    pub fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let quoted = |v: &str| v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<String> =
            labels.iter().map(|(k, v)| format!("{k}=\"{}\"", quoted(v))).collect();
        let _ = match labels.is_empty() {
            true => writeln!(self.0, "{name} {value}"),
            false => writeln!(self.0, "{name}{{{}}} {value}", labels.join(",")),
        };
    }

    /// A metric of one sample.
    pub fn one(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.line(name, &[], value);
    }

    /// All of it.
    pub fn done(self) -> String {
        self.0
    }
}
