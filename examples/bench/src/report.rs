//! Medians, their ratios, and the two ways to print them.

use serde_json::json;
use std::fmt::Write as _;

/// The rates of one contender, one for each round.
pub(crate) struct Measured {
    scenario: &'static str,
    name: &'static str,
    pub(crate) per_second: Vec<f64>,
}

impl Measured {
    pub(crate) fn new(scenario: &'static str, name: &'static str) -> Self {
        Self {
            scenario,
            name,
            per_second: Vec::new(),
        }
    }

    fn median(&self) -> f64 {
        median(&self.per_second)
    }

    fn lowest(&self) -> f64 {
        self.per_second
            .iter()
            .copied()
            .fold(f64::INFINITY, f64::min)
    }

    fn highest(&self) -> f64 {
        self.per_second.iter().copied().fold(0.0, f64::max)
    }

    /// From the lowest to the highest, as a share of the median.
    fn spread(&self) -> f64 {
        (self.highest() - self.lowest()) / self.median()
    }
}

/// The least ratio of the median of `ours` to the median of `against`.
pub(crate) struct Target {
    pub(crate) scenario: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) against: &'static str,
    pub(crate) at_least: f64,
}

/// The measured ratio beside its target.
pub(crate) struct Ratio<'a> {
    target: &'a Target,
    of_medians: f64,
    /// The ratio within each round, which a machine that is busy for a while disturbs less.
    by_round: Vec<f64>,
}

impl Ratio<'_> {
    fn met(&self) -> bool {
        self.of_medians >= self.target.at_least
    }
}

/// One ratio for each target whose two sides were measured.
pub(crate) fn ratios<'a>(measured: &[Measured], targets: &'a [Target]) -> Vec<Ratio<'a>> {
    let find = |scenario, name| {
        measured
            .iter()
            .find(|m| m.scenario == scenario && m.name == name)
    };
    targets
        .iter()
        .filter_map(|target| {
            let ours = find(target.scenario, target.ours)?;
            let against = find(target.scenario, target.against)?;
            let rounds = ours.per_second.iter().zip(&against.per_second);
            Some(Ratio {
                target,
                of_medians: ours.median() / against.median(),
                by_round: rounds.map(|(ours, against)| ours / against).collect(),
            })
        })
        .collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[middle],
        _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
    }
}

/// The table.
pub(crate) fn table(measured: &[Measured], ratios: &[Ratio<'_>]) -> String {
    let mut out = format!(
        "\n{:8} {:24} {:>10} {:>10} {:>10} {:>8}\n",
        "", "messages a second", "median", "lowest", "highest", "spread"
    );
    for m in measured {
        let (median, lowest, highest) = (m.median(), m.lowest(), m.highest());
        let _ = writeln!(
            out,
            "{:8} {:24} {median:>10.0} {lowest:>10.0} {highest:>10.0} {:>6.0} %",
            m.scenario,
            m.name,
            100.0 * m.spread()
        );
    }
    if !ratios.is_empty() {
        let _ = writeln!(
            out,
            "\n{:8} {:44} {:>7} {:>8} {:>7}",
            "", "ratio", "medians", "by round", "target"
        );
    }
    for r in ratios {
        let pair = format!("{} : {}", r.target.ours, r.target.against);
        let verdict = if r.met() { "met" } else { "MISSED" };
        let _ = writeln!(
            out,
            "{:8} {pair:44} {:>7.2} {:>8.2} {:>7} {verdict}",
            r.target.scenario,
            r.of_medians,
            median(&r.by_round),
            format!("≥ {:.2}", r.target.at_least)
        );
    }
    out
}

/// The same as JSON, with the figures of each round.
pub(crate) fn json(
    messages: usize,
    rounds: usize,
    measured: &[Measured],
    ratios: &[Ratio<'_>],
) -> String {
    let measured: Vec<_> = measured
        .iter()
        .map(|m| {
            json!({
                "scenario": m.scenario, "name": m.name,
                "median_per_second": m.median().round(), "spread": m.spread(), "per_second": m.per_second,
            })
        })
        .collect();
    let ratios: Vec<_> = ratios
        .iter()
        .map(|r| {
            json!({
                "scenario": r.target.scenario, "ours": r.target.ours, "against": r.target.against,
                "ratio": r.of_medians, "ratio_by_round": r.by_round,
                "target": r.target.at_least, "met": r.met(),
            })
        })
        .collect();
    json!({ "messages": messages, "rounds": rounds, "measured": measured, "ratios": ratios })
        .to_string()
}
