//! The table: what was measured, what is wanted, and whether it was met.

use serde_json::json;

pub(crate) struct Report {
    json: bool,
    section: String,
}

/// What is wanted of a figure.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// For information.
    None,
}

impl Report {
    pub(crate) fn new(json: bool) -> Self {
        Self {
            json,
            section: String::new(),
        }
    }

    pub(crate) fn of(mut self, section: &str) -> Self {
        section.clone_into(&mut self.section);
        self
    }

    pub(crate) fn heading() {
        println!("{:<10} {:<62} {:>14}   goal", "section", "what", "measured");
    }

    /// One figure, in a unit.
    pub(crate) fn row(&self, what: &str, measured: f64, unit: &str, goal: Goal) {
        let (sign, limit, met) = match goal {
            Goal::AtLeast(limit) => (">=", Some(limit), Some(measured >= limit)),
            Goal::AtMost(limit) => ("<=", Some(limit), Some(measured <= limit)),
            Goal::None => ("", None, None),
        };
        if self.json {
            let row = json!({"section": self.section, "what": what, "measured": measured,
                             "unit": unit, "goal": limit, "met": met});
            println!("{row}");
            return;
        }
        let goal = limit.map_or(String::new(), |limit| {
            let met = if met == Some(true) { "met" } else { "MISSED" };
            format!("{sign} {} {met}", number(limit))
        });
        let section = &self.section;
        let measured = format!("{} {unit}", number(measured));
        println!("{section:<10} {what:<62} {measured:>14}   {goal}");
    }
}

fn number(number: f64) -> String {
    match number.abs() {
        size if size >= 1000.0 => {
            let digits = format!("{number:.0}");
            let from_end = |index: usize| digits.len() - index;
            let mut text = String::new();
            for (index, digit) in digits.chars().enumerate() {
                if index > 0 && from_end(index) % 3 == 0 {
                    text.push(',');
                }
                text.push(digit);
            }
            text
        }
        size if size >= 100.0 || number.fract() == 0.0 => format!("{number:.0}"),
        _ => format!("{number:.2}"),
    }
}
