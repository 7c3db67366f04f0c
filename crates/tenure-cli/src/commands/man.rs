//! `tenure man`: a manual page for each verb, from the same definition as its help.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap_mangen::roff::{Roff, roman};

use crate::args::{self, Man};

pub(crate) fn run(arguments: &Man) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    let cannot = || format!("cannot write manual pages to {}", directory.display());
    fs::create_dir_all(directory).with_context(cannot)?;
    let mut command = args::command();
    command.build();
    write(command, directory).with_context(cannot)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the pages of a command and of its subcommands.
fn write(mut command: clap::Command, directory: &Path) -> std::io::Result<()> {
    for below in command.get_subcommands() {
        write(below.clone(), directory)?;
    }
    let version = concat!("tenure ", env!("CARGO_PKG_VERSION"));
    let has_verbs = command.has_subcommands();
    let after = command.get_after_help().map(ToString::to_string);
    let usage = command.render_usage().to_string();
    let man = clap_mangen::Man::new(command)
        .source(version)
        .manual("Tenure");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    // Taken from the help, since the page generator leaves out the names of values.
    synopsis(&usage).to_writer(&mut page)?;
    man.render_options_section(&mut page)?;
    if has_verbs {
        man.render_subcommands_section(&mut page)?;
    }
    after_help(&after.unwrap_or_default()).to_writer(&mut page)?;
    let mut file = fs::File::create(directory.join(man.get_filename()))?;
    file.write_all(&page)
}

fn synopsis(usage: &str) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    for line in usage.lines() {
        let line = line.trim_start_matches("Usage:").trim();
        roff.text([roman(line)]).control("br", []);
    }
    roff
}

/// Formats the end of the help. A line like `Examples:` starts a section; indented lines stay unchanged.
fn after_help(text: &str) -> Roff {
    let mut roff = Roff::new();
    let mut is_headed = false;
    let mut is_as_it_is = false;
    let mut set_as_it_is = |roff: &mut Roff, wanted: bool| {
        if std::mem::replace(&mut is_as_it_is, wanted) != wanted {
            roff.control(if wanted { "nf" } else { "fi" }, []);
        }
    };
    for line in text.lines() {
        let is_heading = line.len() < 30 && line.ends_with(':') && !line.starts_with(' ');
        if is_heading || !is_headed {
            set_as_it_is(&mut roff, false);
            let heading = line.trim_end_matches(':').to_uppercase();
            roff.control("SH", [if is_heading { &*heading } else { "DETAILS" }]);
            is_headed = true;
        }
        if is_heading {
            continue;
        }
        if line.is_empty() {
            set_as_it_is(&mut roff, false);
            roff.control("PP", []);
        } else {
            set_as_it_is(&mut roff, line.starts_with(' '));
            roff.text([roman(line.trim_start())]);
        }
    }
    set_as_it_is(&mut roff, false);
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_a_section_and_keep_their_lines() {
        let page = after_help("Reads it.\nAll.\n\nExamples:\n  tenure a\n  tenure b\n").to_roff();
        let expected =
            ".SH DETAILS\nReads it.\nAll.\n.PP\n.SH EXAMPLES\n.nf\ntenure a\ntenure b\n.fi\n";
        assert!(page.ends_with(expected), "{page}");
    }
}
