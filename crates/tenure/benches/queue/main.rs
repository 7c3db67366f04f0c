//! What the queue is worth: speed, depth, recovery, durable commits, and latency under independent arrivals.
//!
//! `make bench-queue` runs all of it, `make bench-queue ONLY=depth` one section. Each section is a process of its
//! own, so that what one has left in memory helps or hinders no other. Where a goal is a ratio both sides are
//! measured in the same run, in turns; where it is a speed it is counted in processor time, so that a busy
//! machine changes little. Prints the goals and whether they were met; never fails because of one.
//!
//! `cargo bench -p tenure --bench queue -- [--json] [SECTION…]`

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark talks, and may fail"
)]

mod arrivals;
mod depth;
mod durable;
mod recovery;
mod report;
mod rig;
mod speed;

use report::Report;

/// The sections, in the order in which they run.
const SECTIONS: [&str; 5] = ["speed", "depth", "recovery", "durable", "arrivals"];

fn main() {
    let mut wanted: Vec<String> = Vec::new();
    let (mut json, mut alone) = (false, false);
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--json" => json = true,
            // In this process, one section.
            "--alone" => alone = true,
            // What cargo adds.
            "--bench" => {}
            section if SECTIONS.contains(&section) => wanted.push(argument),
            other => {
                println!("there is no section {other}, only {}", SECTIONS.join(", "));
                return;
            }
        }
    }
    if alone {
        return wanted
            .iter()
            .for_each(|section| run(section, Report::new(json)));
    }
    if !json {
        Report::heading();
    }
    for section in SECTIONS {
        if !wanted.is_empty() && !wanted.iter().any(|one| one == section) {
            continue;
        }
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        program.args(["--alone", section]);
        if json {
            program.arg("--json");
        }
        let status = program.status().unwrap();
        if !status.success() {
            println!("{section}: {status}");
        }
    }
}

fn run(section: &str, report: Report) {
    let report = report.of(section);
    match section {
        "speed" => speed::measure(&report),
        "depth" => depth::measure(&report),
        "recovery" => recovery::measure(&report),
        "durable" => durable::measure(&report),
        _ => arrivals::measure(&report),
    }
}
