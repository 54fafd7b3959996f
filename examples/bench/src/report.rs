//! Medians, ratios, and the two ways they are printed.

use serde_json::json;
use std::fmt::Write as _;

/// What one contender did, a figure for each round.
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
        let mut sorted = self.per_second.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
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
}

/// What we want to reach: the median of `ours` over the median of `against`.
pub(crate) struct Target {
    pub(crate) scenario: &'static str,
    pub(crate) ours: &'static str,
    pub(crate) against: &'static str,
    pub(crate) at_least: f64,
}

/// What we did reach.
pub(crate) struct Ratio<'a> {
    target: &'a Target,
    ratio: f64,
}

impl Ratio<'_> {
    fn met(&self) -> bool {
        self.ratio >= self.target.at_least
    }
}

/// One ratio for each target whose two sides were measured.
pub(crate) fn ratios<'a>(measured: &[Measured], targets: &'a [Target]) -> Vec<Ratio<'a>> {
    let median = |scenario, name| {
        measured
            .iter()
            .find(|m| m.scenario == scenario && m.name == name)
            .map(Measured::median)
    };
    targets
        .iter()
        .filter_map(|target| {
            let ours = median(target.scenario, target.ours)?;
            let against = median(target.scenario, target.against)?;
            Some(Ratio {
                target,
                ratio: ours / against,
            })
        })
        .collect()
}

/// For people.
pub(crate) fn table(measured: &[Measured], ratios: &[Ratio<'_>]) -> String {
    let mut out = format!(
        "\n{:8} {:24} {:>10} {:>10} {:>10}\n",
        "", "messages a second", "median", "lowest", "highest"
    );
    for m in measured {
        let (median, lowest, highest) = (m.median(), m.lowest(), m.highest());
        let _ = writeln!(
            out,
            "{:8} {:24} {median:>10.0} {lowest:>10.0} {highest:>10.0}",
            m.scenario, m.name
        );
    }
    if !ratios.is_empty() {
        let _ = writeln!(
            out,
            "\n{:8} {:44} {:>6} {:>7}",
            "", "ratio of the medians", "ratio", "target"
        );
    }
    for r in ratios {
        let pair = format!("{} : {}", r.target.ours, r.target.against);
        let verdict = if r.met() { "met" } else { "MISSED" };
        let _ = writeln!(
            out,
            "{:8} {pair:44} {:>6.2} {:>7} {verdict}",
            r.target.scenario,
            r.ratio,
            format!("≥ {:.1}", r.target.at_least)
        );
    }
    out
}

/// For programs.
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
                "median_per_second": m.median().round(), "per_second": m.per_second,
            })
        })
        .collect();
    let ratios: Vec<_> = ratios
        .iter()
        .map(|r| {
            json!({
                "scenario": r.target.scenario, "ours": r.target.ours, "against": r.target.against,
                "ratio": r.ratio, "target": r.target.at_least, "met": r.met(),
            })
        })
        .collect();
    json!({ "messages": messages, "rounds": rounds, "measured": measured, "ratios": ratios })
        .to_string()
}
