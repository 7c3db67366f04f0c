//! The groups of verbs that the help shows. The parser has no groups, so this is a help template.

use std::fmt::Write as _;

/// Every verb, once. A test checks that it is complete.
const GROUPS: [(&str, &[&str]); 5] = [
    (
        "Jobs",
        &[
            "serve", "worker", "job", "queue", "schedule", "outbox", "import",
        ],
    ),
    (
        "Elections",
        &[
            "run", "elect", "status", "watch", "history", "resign", "transfer",
        ],
    ),
    (
        "Nodes and daemons",
        &["nodes", "daemons", "plan", "drain", "undrain"],
    ),
    ("Operations", &["top", "log", "bench", "store"]),
    ("This program", &["completions", "man", "help"]),
];

/// The command, with its verbs in groups.
pub(super) fn grouped(command: clap::Command) -> clap::Command {
    let header = *command.get_styles().get_header();
    let literal = *command.get_styles().get_literal();
    let mut template = "{about}\n\n{usage-heading} {usage}\n".to_owned();
    for (group, verbs) in GROUPS {
        let _ = writeln!(template, "\n{header}{group}:{header:#}");
        for verb in verbs {
            // A build without SQL engines has no outbox.
            if let Some(found) = command.find_subcommand(verb) {
                let about = found.get_about().cloned().unwrap_or_default();
                let _ = writeln!(template, "  {literal}{verb:<11}{literal:#}  {about}");
            }
        }
    }
    let _ = write!(
        template,
        "\n{header}Options:{header:#}\n{{options}}{{after-help}}"
    );
    command.help_template(template)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn every_verb_is_in_one_group() {
        let mut shown: Vec<&str> = GROUPS
            .iter()
            .flat_map(|(_, verbs)| *verbs)
            .copied()
            .collect();
        shown.sort_unstable();
        let command = Cli::command();
        let mut verbs: Vec<&str> = command
            .get_subcommands()
            .map(clap::Command::get_name)
            .collect();
        if cfg!(not(any(
            feature = "postgres",
            feature = "mysql",
            feature = "sqlite"
        ))) {
            verbs.push("outbox");
        }
        verbs.sort_unstable();
        assert_eq!(shown, verbs);
    }
}
