//! `tenure log verify`: checks everything that is stored, including the election of its leaders.

use std::process::ExitCode;

use anyhow::Context;
use serde_json::json;
use tenure::Token;
use tenure::core::ElectionName;
use tenure::log;
use tenure::log::inspect::{Finding, Verified};

use crate::EXIT_NO;
use crate::args::LogVerify;
use crate::output::{Data, Paint, Progress, Style, counted, printable};

pub(super) async fn verify(arguments: LogVerify) -> anyhow::Result<ExitCode> {
    let (verified, findings) = match look(&arguments).await {
        Ok(found) => found,
        // Damage that stops the whole reading is a finding too.
        Err(error) => match error.downcast_ref() {
            Some(log::Error::Corrupt { location, what }) => {
                let (location, what) = (location.clone(), what.clone());
                let damage = Finding::Damage { location, what };
                (Verified::default(), vec![damage])
            }
            _ => return Err(error),
        },
    };
    report(&arguments, &verified, &findings)
}

/// Reads everything.
async fn look(arguments: &LogVerify) -> anyhow::Result<(Verified, Vec<Finding>)> {
    let stored = super::expect(&arguments.place).await?;
    let progress = Progress::new();
    let tell = |so_far: &Verified| {
        let (records, bytes) = (so_far.records, so_far.bytes >> 20);
        progress.show(|| {
            format!(
                "reading: {} so far, {bytes} MiB",
                counted(records, "record")
            )
        });
    };
    let (verified, mut findings) = stored.verify_and_tell(&tell).await?;
    progress.clear();
    // Read after the log, since terms only grow.
    let summary = stored.summary();
    let led = Token {
        lineage: summary.lineage,
        term: summary.term,
    };
    let view = super::namespace(&arguments.place).await?;
    let troubles = view.election_troubles(&ElectionName::queue(), led).await?;
    let damage = |(location, what)| Finding::Damage { location, what };
    findings.extend(troubles.into_iter().map(damage));
    Ok((verified, findings))
}

fn report(
    arguments: &LogVerify,
    verified: &Verified,
    findings: &[Finding],
) -> anyhow::Result<ExitCode> {
    let (mut damage, mut remains) = (Vec::new(), Vec::new());
    for finding in findings {
        match finding {
            Finding::Damage { location, what } => damage.push((location, what)),
            Finding::Remains { location, what } => remains.push((location, what)),
        }
    }
    let text = if arguments.json {
        let documents = |found: &[(&String, &String)]| -> Vec<_> {
            let document = |(location, what)| json!({"location": location, "what": what});
            found.iter().copied().map(document).collect()
        };
        let document = json!({
            "snapshots": verified.snapshots,
            "frames": verified.frames,
            "records": verified.records,
            "bytes": verified.bytes,
            "place": verified.place,
            "position": verified.position,
            "damage": documents(&damage),
            "remains": documents(&remains),
        });
        serde_json::to_string_pretty(&document)? + "\n"
    } else {
        let paint = Paint::of(&std::io::stdout());
        let line = |style, label: &str, (location, what): &(&String, &String)| {
            let label = paint.apply(style, label);
            format!("{label} {}: {}\n", printable(location), printable(what))
        };
        let mut text = String::new();
        text.extend(
            damage
                .iter()
                .map(|found| line(Style::Bad, "damaged", found)),
        );
        text.extend(
            remains
                .iter()
                .map(|found| line(Style::Faint, "harmless", found)),
        );
        let verdict = match damage.len() {
            0 => paint.apply(Style::Good, "intact"),
            count => paint.apply(Style::Bad, &format!("{count} damaged")),
        };
        text += &format!(
            "{verdict}: {}, {} with {}, {}, up to log index {} and record {}\n",
            counted(verified.snapshots, "snapshot"),
            counted(verified.frames, "frame"),
            counted(verified.records, "record"),
            counted(verified.bytes, "byte"),
            verified.place,
            verified.position
        );
        text
    };
    let mut data = Data::new();
    data.write(&text);
    data.finish().context("cannot write the report")?;
    Ok(if damage.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(EXIT_NO)
    })
}
