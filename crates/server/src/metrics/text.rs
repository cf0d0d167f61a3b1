//! The text that Prometheus reads. Everything shown is a snapshot that is at hand when it is asked for, so a writer
//! of sixty lines does what a registry would, and no counter has to be declared twice.

use std::fmt::{Display, Write as _};

/// Writes metrics, each with its help and type.
#[derive(Default)]
pub(super) struct Page {
    text: String,
    name: &'static str,
}

impl Page {
    /// Begins a metric that only rises.
    pub(super) fn counter(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "counter", help)
    }

    /// Begins a metric that goes up and down.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str) -> &mut Self {
        self.begin(name, "gauge", help)
    }

    fn begin(&mut self, name: &'static str, kind: &str, help: &str) -> &mut Self {
        self.name = name;
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        self
    }

    /// One sample without labels.
    pub(super) fn is(&mut self, value: impl Display) -> &mut Self {
        self.with(&[], value)
    }

    /// One sample.
    pub(super) fn with(&mut self, labels: &[(&str, &str)], value: impl Display) -> &mut Self {
        self.sample("", labels, value);
        self
    }

    /// A histogram: each bound with how many were at most that, how many in all, and their sum; `per` of them are one
    /// unit of what is shown.
    pub(super) fn histogram(
        &mut self,
        name: &'static str,
        help: &str,
        (bounds, count, sum): (Vec<(u64, u64)>, u64, u64),
        per: f64,
    ) {
        self.begin(name, "histogram", help);
        for (bound, below) in bounds {
            let le = (bound as f64 / per).to_string();
            self.sample("_bucket", &[("le", &le)], below);
        }
        self.sample("_bucket", &[("le", "+Inf")], count);
        self.sample("_sum", &[], sum as f64 / per);
        self.sample("_count", &[], count);
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let _ = write!(self.text, "{}{suffix}", self.name);
        for (i, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{label}=\"{text}\"", if i == 0 { '{' } else { ',' });
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.text, "{close} {value}");
    }

    /// All of it.
    pub(super) fn done(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_reads_as_the_format_wants_it() {
        let mut page = Page::default();
        page.counter("a_total", "How\nmany.").with(&[("b", "\"x\"\\\n"), ("c", "")], 3);
        page.gauge("g", "Now.").is(1.5);
        page.histogram("h_seconds", "Long.", (vec![(500, 2), (1_000, 3)], 4, 5_000), 1e3);
        let expected = "# HELP a_total How\\nmany.\n# TYPE a_total counter\na_total{b=\"\\\"x\\\"\\\\\\n\",c=\"\"} 3\n\
            # HELP g Now.\n# TYPE g gauge\ng 1.5\n\
            # HELP h_seconds Long.\n# TYPE h_seconds histogram\n\
            h_seconds_bucket{le=\"0.5\"} 2\nh_seconds_bucket{le=\"1\"} 3\nh_seconds_bucket{le=\"+Inf\"} 4\n\
            h_seconds_sum 5\nh_seconds_count 4\n";
        assert_eq!(page.done(), expected);
    }
}
