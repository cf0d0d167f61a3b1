//! `tenure completions` and `tenure manual`: what a shell and `man` read, made from the command line itself.

use super::{Failure, table::plural};
use crate::cli;
use clap::Args;
use clap_complete::Shell;
use std::{fs, path::PathBuf};

/// Options of `completions`.
#[derive(Args, Clone, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Options of `manual`.
#[derive(Args, Clone, Debug)]
pub struct Manual {
    /// Where the pages are written, one for each command; pages of the same names are replaced
    #[arg(long, value_name = "DIRECTORY")]
    pub out: PathBuf,
}

/// A script for the shell.
pub fn completions(options: &Completions) -> String {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut cli::command(), "tenure", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A page for each command: `tenure.1`, `tenure-job.1`, `tenure-job-list.1`.
pub fn manual(options: &Manual, json: bool) -> Result<String, Failure> {
    let out = &options.out;
    let bad = |e: std::io::Error| {
        Failure::System(format!("manual pages cannot be written to {}: {e}", out.display()))
    };
    fs::create_dir_all(out).map_err(bad)?;
    // The page lists the commands itself: the groups of the help would repeat them.
    let command = cli::command().help_template(clap::builder::StyledStr::new());
    clap_mangen::generate_to(command, out).map_err(bad)?;
    let entries = fs::read_dir(out).map_err(bad)?.filter_map(Result::ok);
    let mut pages: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    pages.retain(|path| path.extension().is_some_and(|e| e == "1"));
    pages.sort();
    Ok(match json {
        true => format!("{}\n", serde_json::json!({ "pages": pages })),
        false => format!(
            "{} in {}. `man -l {}` shows the first.\n",
            plural(pages.len(), "page"),
            out.display(),
            out.join("tenure.1").display()
        ),
    })
}
