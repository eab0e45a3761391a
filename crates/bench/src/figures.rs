//! Report of a benchmark: medians per case and ratios taken round by round, as JSON or as a table.

use std::fmt::Write;

use serde::Serialize;

/// The whole result of a benchmark whose cases have figures `F` besides their throughput.
#[derive(Debug, Serialize)]
pub(crate) struct Results<F> {
    /// The benchmark.
    pub(crate) bench: &'static str,
    /// Number of measurements of each case.
    pub(crate) rounds: usize,
    /// Medians over the rounds.
    pub(crate) cases: Vec<CaseResults<F>>,
    /// Quotients of throughput.
    pub(crate) ratios: Vec<Ratio>,
    /// Cases that could not be measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) missing: Vec<Missing>,
    /// Other load of the machine, if it was busy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) busy: Option<Busy>,
}

/// Load of a machine by others than the benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Busy {
    /// Load average of the minute before the benchmark.
    pub(crate) load: f64,
    /// Number of processors.
    pub(crate) processors: usize,
    /// Percentage of the processors' time that the hypervisor gave to other machines during the benchmark.
    pub(crate) steal_percent: f64,
}

/// A case that could not be measured.
#[derive(Debug, Serialize)]
pub(crate) struct Missing {
    /// Name of the case.
    pub(crate) name: String,
    /// The reason, in one line.
    pub(crate) why: String,
}

/// One case.
#[derive(Debug, Serialize)]
pub(crate) struct CaseResults<F> {
    /// Name of the case, a path.
    pub(crate) name: String,
    /// Payload, in 10⁹ bits per second.
    pub(crate) gbps: f64,
    /// Other figures of the case.
    #[serde(flatten)]
    pub(crate) figures: F,
}

/// Quotients taken round by round.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    /// Common part of the names of the two cases.
    pub(crate) name: String,
    /// Parts of the names that differ: `over/under`.
    pub(crate) of: String,
    /// The middle one.
    pub(crate) median: f64,
    /// The smallest.
    pub(crate) min: f64,
    /// The largest.
    pub(crate) max: f64,
}

impl<F: Serialize> Results<F> {
    /// One line of JSON.
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("finite numbers under text keys always serialise")
    }
}

impl<F> Results<F> {
    /// The lines of the ratios, in columns, without a last newline.
    pub(crate) fn ratio_lines(&self) -> String {
        let width = |text: fn(&Ratio) -> &str| self.ratios.iter().map(|ratio| text(ratio).len()).max().unwrap_or(0);
        let (name, of) = (width(|ratio| &ratio.name), width(|ratio| &ratio.of) + 1);
        let mut lines = String::new();
        for ratio in &self.ratios {
            let Ratio { median, min, max, .. } = ratio;
            // Writing to a String does not fail.
            let _ = write!(lines, "\n  {:<name$} {:<of$} {median:>6.2}  ({min:.2} to {max:.2})", ratio.name, ratio.of);
        }
        lines.trim_start_matches('\n').to_owned()
    }
}

impl Ratio {
    /// The ratio of two cases from their throughput in each round.
    pub(crate) fn new(name: &str, of: &str, rounds: impl Iterator<Item = (f64, f64)>) -> Self {
        let quotients: Vec<f64> = rounds.map(|(over, under)| if under > 0.0 { over / under } else { 0.0 }).collect();
        let fold = |pick: fn(f64, f64) -> f64| quotients.iter().copied().reduce(pick).unwrap_or(0.0);
        Self {
            name: name.to_owned(),
            of: of.to_owned(),
            median: rounded(median(quotients.iter().copied())),
            min: rounded(fold(f64::min)),
            max: rounded(fold(f64::max)),
        }
    }
}

/// The middle value, or the mean of the two in the middle.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = values.collect();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// Four decimals: more than the precision of any measurement here.
pub(crate) fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle() {
        let cases: [(&[f64], f64); 5] =
            [(&[], 0.0), (&[7.0], 7.0), (&[9.0, 1.0], 5.0), (&[9.0, 1.0, 2.0], 2.0), (&[4.0, 1.0, 3.0, 2.0], 2.5)];
        for (values, want) in cases {
            assert_eq!(median(values.iter().copied()), want, "{values:?}");
        }
    }

    #[test]
    fn ratios_are_taken_round_by_round() {
        let ratio = Ratio::new("a", "fat/thin", [(8.0, 1.0), (8.0, 2.0), (9.0, 1.6), (1.0, 0.0)].into_iter());
        let want = Ratio { name: "a".to_owned(), of: "fat/thin".to_owned(), median: 4.8125, min: 0.0, max: 8.0 };
        assert_eq!(ratio, want);
    }
}
