//! Commands of the documentation. A real shell reads them, so quotes, variables, pipes and comments mean what they mean to a
//! reader; every program that a page may name is replaced by one that writes down how it was called.

use super::blocks;
use clap::{CommandFactory as _, Parser as _};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tenure::{
    cli::{Cli, Command as Product, TopCommand},
    commands::agent,
    entry,
};

/// Programs of others that a page may name. How they are called is not looked at.
const OTHERS: [&str; 10] =
    ["cut", "date", "docker", "jq", "kubectl", "man", "nginx", "openssl", "pip", "psql"];
/// Programs whose calls are looked at.
const LOOKED_AT: [&str; 3] = ["cargo", "curl", "tenure"];
/// Programs of the checkout are found by their path.
const OURS: [&str; 4] = ["check", "bench/run", "scripts/build-times", "sdk/python/check"];
/// Writes down how it was called: a record of parts.
const NOTE: &str = "printf '%s\\037' \"$@\" >> \"$CALLS\"; printf '\\036' >> \"$CALLS\"";

/// What is wrong with these commands, if something is.
pub fn check(root: &Path, commands: &str) -> Result<(), String> {
    for call in calls(root, commands)? {
        let words: Vec<&str> = call.iter().map(String::as_str).collect();
        let said = match words[..] {
            ["tenure", ..] => parses(&words),
            ["cargo", ..] => builds(root, &words),
            ["curl", ..] => asks(root, &words),
            _ => Ok(()),
        };
        said.map_err(|why| format!("{}: {why}", words.join(" ")))?;
    }
    Ok(())
}

/// Every call that a shell makes of these commands, with its arguments.
pub fn calls(root: &Path, commands: &str) -> Result<Vec<Vec<String>>, String> {
    let bad = |e: std::io::Error| e.to_string();
    let dir = tempfile::tempdir().map_err(bad)?;
    for ours in OURS.iter().filter(|path| root.join(path).exists()) {
        let path = dir.path().join(ours);
        fs::create_dir_all(path.parent().unwrap_or(dir.path())).map_err(bad)?;
        fs::write(&path, format!("#!/bin/sh\nset -- {ours} \"$@\"\n{NOTE}\n")).map_err(bad)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(bad)?;
    }
    let others = OTHERS.iter().chain(&LOOKED_AT);
    let functions: String =
        others.map(|name| format!("{name}() {{ set -- {name} \"$@\"; {NOTE}; }}\n")).collect();
    // A command that nothing here knows is an error; one that the page sends to the background is waited for.
    let unknown = "command_not_found_handle() { echo \"$1\" >> \"$UNKNOWN\"; }\n";
    let script = format!("cat() {{ :; }}\n{unknown}{functions}{commands}\nwait\n");
    let (noted, unknown) = (dir.path().join("calls"), dir.path().join("unknown"));
    let shell = Command::new(bash()?)
        .args(["--norc", "-c", &script])
        .current_dir(dir.path())
        .env_clear()
        .envs([("PATH", "/nowhere"), ("HOME", "/home/you"), ("LANG", "C.UTF-8")])
        .env("CALLS", &noted)
        .env("UNKNOWN", &unknown)
        .stdin(Stdio::null())
        .output()
        .map_err(bad)?;
    if unknown.exists() {
        let names = fs::read_to_string(&unknown).map_err(bad)?;
        return Err(format!("nothing here knows the programs {names:?}"));
    }
    let complaints = String::from_utf8_lossy(&shell.stderr);
    if !complaints.trim().is_empty() {
        return Err(format!("the shell says: {}", complaints.trim()));
    }
    let noted =
        if noted.exists() { fs::read_to_string(&noted).map_err(bad)? } else { String::new() };
    let records = noted.split_terminator('\u{1e}');
    Ok(records.map(|r| r.split_terminator('\u{1f}').map(str::to_owned).collect()).collect())
}

/// Where the shell is: the environment of the commands has no programs at all.
fn bash() -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|directory| directory.join("bash"));
    found.into_iter().find(|file| file.exists()).ok_or_else(|| "bash is not installed".to_owned())
}

/// The command line of the product takes it, its settings exist, and JSON in it is what it has to be.
fn parses(words: &[&str]) -> Result<(), String> {
    let cli = Cli::try_parse_from(words).map_err(|e| e.to_string())?;
    let TopCommand::Product(command) = &cli.command else { return Ok(()) };
    let mut common = cli.common.clone();
    // `URL` and the like stand for an address.
    common.store = None;
    common.config = None;
    entry::settings(&common, command.flags()).map_err(|e| e.to_string())?;
    if let Product::Agent(agent::Options { action: agent::Action::Set(set), .. }) = command
        && let Some(profile) = set.profile.as_deref().filter(|p| p.starts_with('{'))
    {
        let profile: Value = serde_json::from_str(profile).map_err(|e| e.to_string())?;
        tenure::agents::drive::profile::check(&profile).map_err(|problems| problems.join("; "))?;
    }
    Ok(())
}

/// What cargo is asked to build is a package of the workspace; what it passes on to `tenure` is a command.
fn builds(root: &Path, words: &[&str]) -> Result<(), String> {
    if let Some(at) = words.iter().position(|word| *word == "-p") {
        let package = words.get(at + 1).copied().unwrap_or_default();
        let directory = package.strip_prefix("tenure-").unwrap_or(package);
        if !root.join("crates").join(directory).exists() && package != "tenure-bench" {
            return Err(format!("there is no package {package}"));
        }
    }
    match (words.get(1), words.iter().position(|word| *word == "--")) {
        (Some(&"run"), Some(at)) => parses(&[&["tenure"], &words[at + 1..]].concat()),
        _ => Ok(()),
    }
}

/// Where curl is sent is a path of the API, and what it sends is JSON.
fn asks(root: &Path, words: &[&str]) -> Result<(), String> {
    let sources = blocks::files(&root.join("crates/server/src"), "rs");
    let texts: Vec<String> = sources.iter().filter_map(|f| fs::read_to_string(f).ok()).collect();
    // Every route has its path in an attribute, from which the OpenAPI document is made.
    let said = texts.iter().flat_map(|text| text.split("path = \"").skip(1));
    let mut paths = said.filter_map(|rest| rest.split('"').next());
    let path = words.iter().find_map(|word| word.find("/v1/").map(|at| &word[at..]));
    let path = path.ok_or("no path under /v1")?.split('?').next().unwrap_or_default();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let theirs: Vec<&str> = template.split('/').collect();
        theirs.len() == parts.len()
            && theirs.iter().zip(&parts).all(|(t, p)| t == p || t.starts_with('{'))
    };
    if !paths.any(fits) {
        return Err(format!("the API has no path {path}"));
    }
    match words.iter().position(|word| *word == "-d").and_then(|at| words.get(at + 1)) {
        Some(body) if body.starts_with('{') => serde_json::from_str::<Value>(body)
            .map(|_| ())
            .map_err(|e| format!("its body is no JSON: {e}")),
        _ => Ok(()),
    }
}

/// A command that a sentence names: its words lead to a command, and its options are that command's.
pub fn names_a_command(span: &str) -> Result<(), String> {
    let mut command = Cli::command();
    command.build();
    let (mut at, mut of_the_laboratory) = (&command, false);
    for word in span.split_whitespace().skip(1) {
        if let Some(next) = at.find_subcommand(word.trim_end_matches(',')) {
            at = next;
            of_the_laboratory |= ["drill", "soak", "sim", "bench"].contains(&word);
        } else if word.starts_with('-') || of_the_laboratory {
            break;
        } else if at.has_subcommands() && word.chars().all(|c| c.is_ascii_lowercase() || c == '-') {
            return Err(format!("{} has no command {word}", at.get_name()));
        } else {
            break;
        }
    }
    let is_option = |word: &&str| word.starts_with("--") && word.len() > 2;
    for word in span.split_whitespace().map(|w| w.trim_start_matches('[')).filter(is_option) {
        let name: String =
            word[2..].chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
        let known = at.get_arguments().any(|a| a.get_long() == Some(&name));
        if !known && !of_the_laboratory && name != "help" {
            return Err(format!("{} has no option --{name}", at.get_name()));
        }
    }
    Ok(())
}
