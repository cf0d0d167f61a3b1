//! The axis of a timeline.
//!
//! A job calls a tool for four milliseconds and then waits for three days. On a straight axis one of the two is all
//! there is. Where too much would be too narrow to see, each stretch between two happenings gets the square root of
//! its length instead: order and overlaps stay true, the figures on the axis say the rest.

use tenure_jobs::view::{BarKind, Timeline};
use tenure_kernel::time::Timestamp;

/// Room at the right end for what is still growing.
const WIDTH: f64 = 98.5;
/// A stretch narrower than this can not be seen.
pub(super) const NARROW: f64 = 0.35;

/// Where moments stand, in percent.
pub(super) struct Axis {
    knots: Vec<(i64, f64)>,
    /// Long stretches are drawn short.
    pub(super) bent: bool,
}

impl Axis {
    pub(super) fn of(t: &Timeline) -> Self {
        let mut at: Vec<i64> = vec![t.from.as_micros(), t.to.as_micros()];
        let mut spans: Vec<(i64, i64)> = Vec::new();
        for lease in &t.leases {
            spans.push((lease.from.as_micros(), lease.to.unwrap_or(t.to).as_micros()));
        }
        for bar in t.lanes.iter().flat_map(|l| &l.bars).filter(|b| b.kind != BarKind::Value) {
            spans.push((bar.from.as_micros(), bar.to.unwrap_or(t.to).as_micros()));
        }
        at.extend(spans.iter().flat_map(|(from, to)| [*from, *to]));
        at.extend(t.marks.iter().map(|m| m.at.as_micros()));
        at.sort_unstable();
        at.dedup();
        let whole = length(at[0], at[at.len() - 1]).max(1.0);
        let thin = spans.iter().filter(|(a, b)| length(*a, *b) / whole * WIDTH < NARROW).count();
        // A few slivers are fine; a drawing of slivers is not.
        let bent = thin * 3 > spans.len();
        let weight = |from: i64, to: i64| match bent {
            true => (length(from, to) / 1_000.0).sqrt() + 0.4,
            false => length(from, to),
        };
        let total: f64 = at.windows(2).map(|w| weight(w[0], w[1])).sum::<f64>().max(1e-9);
        let mut x = 0.0;
        let mut knots = vec![(at[0], 0.0)];
        for w in at.windows(2) {
            x += weight(w[0], w[1]) / total * WIDTH;
            knots.push((w[1], x));
        }
        Axis { knots, bent }
    }

    pub(super) fn at(&self, t: Timestamp) -> f64 {
        let t = t.as_micros();
        let i = self.knots.partition_point(|(k, _)| *k <= t);
        match (i.checked_sub(1).map(|j| self.knots[j]), self.knots.get(i)) {
            (None, _) => 0.0,
            (Some((_, x)), None) => x,
            (Some((t0, x0)), Some((t1, x1))) => {
                x0 + (x1 - x0) * length(t0, t) / length(t0, *t1).max(1.0)
            }
        }
    }

    /// Moments worth a figure, apart from each other: knots where it is bent, even steps where it is straight.
    pub(super) fn ticks(&self) -> Vec<(f64, i64)> {
        let (first, last) = (self.knots[0].0, self.knots[self.knots.len() - 1].0);
        let candidates: Vec<(f64, i64)> = match self.bent {
            true => self.knots.iter().map(|(t, x)| (*x, *t - first)).collect(),
            false => even_steps(last - first)
                .map(|d| (self.at(Timestamp::from_micros(first + d)), d))
                .collect(),
        };
        let mut ticks: Vec<(f64, i64)> = Vec::new();
        for (x, d) in candidates {
            if ticks.last().is_none_or(|(before, _)| x - before > 9.0) && x < 96.0 {
                ticks.push((x, d));
            }
        }
        ticks
    }
}

fn length(from: i64, to: i64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a drawing needs no more than 52 bits")]
    let length = to.saturating_sub(from).max(0) as f64;
    length
}

/// About eight steps of a round length, in microseconds.
fn even_steps(whole: i64) -> impl Iterator<Item = i64> {
    const ROUND: [i64; 21] = [
        100,
        1_000,
        2_000,
        5_000,
        10_000,
        20_000,
        50_000,
        100_000,
        200_000,
        500_000,
        1_000_000,
        2_000_000,
        5_000_000,
        10_000_000,
        30_000_000,
        60_000_000,
        300_000_000,
        900_000_000,
        3_600_000_000,
        21_600_000_000,
        86_400_000_000,
    ];
    let step = ROUND.into_iter().find(|r| whole / r <= 9).unwrap_or(86_400_000_000);
    (0..=whole / step).take(64).map(move |i| i * step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_jobs::view::{Bar, BarState, Lane};
    use tenure_kernel::ids::EntityId;
    use tenure_steps::events::StepId;

    fn timeline(bars: &[(i64, i64)]) -> Timeline {
        let at = Timestamp::from_micros;
        let bar = |(from, to): &(i64, i64)| Bar {
            kind: BarKind::Call,
            from: at(*from),
            to: Some(at(*to)),
            state: BarState::Ok,
            label: String::new(),
            epoch: None,
        };
        let lane = Lane {
            step: StepId("1".into()),
            label: String::new(),
            copied: false,
            bars: bars.iter().map(bar).collect(),
        };
        let last = bars.iter().map(|b| b.1).max().unwrap_or(0);
        Timeline {
            id: EntityId::fixed(9, 9),
            flow: "f@1".into(),
            status: "completed".into(),
            from: at(0),
            to: at(last),
            open: false,
            leases: Vec::new(),
            lanes: vec![lane],
            marks: Vec::new(),
        }
    }

    #[test]
    fn what_can_be_seen_is_drawn_to_scale() {
        let axis = Axis::of(&timeline(&[(0, 1_000_000), (1_000_000, 4_000_000)]));
        assert!(!axis.bent);
        let middle = axis.at(Timestamp::from_micros(2_000_000));
        assert!((middle - WIDTH / 2.0).abs() < 0.01, "{middle}");
        assert_eq!(axis.ticks().first(), Some(&(0.0, 0)));
    }

    #[test]
    fn a_call_of_milliseconds_is_seen_beside_a_wait_of_days() {
        let day = 86_400_000_000;
        let axis = Axis::of(&timeline(&[(0, 4_000), (4_000, 3 * day), (3 * day, 3 * day + 4_000)]));
        assert!(axis.bent);
        let at = |t| axis.at(Timestamp::from_micros(t));
        assert!(at(4_000) > 0.0 && at(4_000) < at(3 * day), "order stays");
        assert!(at(3 * day) < at(3 * day + 4_000));
        assert!(at(day) < at(2 * day), "and within a stretch too");
    }

    #[test]
    fn nothing_at_all_is_a_drawing_too() {
        let axis = Axis::of(&timeline(&[]));
        assert!(axis.at(Timestamp::from_micros(5)).is_finite() && axis.ticks().len() <= 1);
        let moment = Axis::of(&timeline(&[(7, 7)]));
        assert!(moment.at(Timestamp::from_micros(7)).is_finite());
    }
}
