//! What a program cannot reach. Each test lets a real program try.

use crate::{command::sh, support::*};
use serde_json::Value;
use std::{fs, path::Path};
use tenure_tools::{
    CommandOptions, Secrets, command,
    command::{SandboxOptions, Writable, confines_files},
};

async fn run(sandbox: SandboxOptions, input: Value) -> String {
    let options = CommandOptions { sandbox, ..CommandOptions::default() };
    let result = Call::new().of(&command(options, Secrets::default()), input).await.unwrap();
    result["stdout"].as_str().unwrap().to_owned()
}

/// Prints each process whose environment or memory it can open, with its session.
const SPY: &str = r#"
echo "parent $PPID session $$"
for process in /proc/[0-9]*; do
  for file in environ mem; do
    if ( : < $process/$file ) 2>/dev/null; then
      echo "$file ${process#/proc/} $(cut -d ' ' -f 6 $process/stat 2>/dev/null)"
    fi
  done
done
if kill -0 $PPID 2>/dev/null; then echo "signals $PPID"; fi
"#;

struct Spied {
    parent: String,
    session: String,
    /// Processes that were opened, with their session.
    opened: Vec<(String, String)>,
    signals: bool,
}

async fn spy(landlock: bool) -> Spied {
    let dir = tempfile::tempdir().unwrap();
    let out =
        run(SandboxOptions { landlock, ..SandboxOptions::default() }, sh(dir.path(), SPY)).await;
    let mut spied =
        Spied { parent: String::new(), session: String::new(), opened: Vec::new(), signals: false };
    for line in out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        match words.as_slice() {
            ["parent", parent, "session", session] => {
                (spied.parent, spied.session) = ((*parent).to_owned(), (*session).to_owned());
            }
            ["signals", _] => spied.signals = true,
            [_, process, session] => spied.opened.push(((*process).into(), (*session).into())),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(spied.parent, std::process::id().to_string());
    assert!(!spied.opened.is_empty(), "a program reads its own environment: the look works");
    spied
}

#[tokio::test]
async fn a_program_reads_no_environment_and_no_memory_but_its_own() {
    if !confines_files() {
        eprintln!("not tried: this kernel has no Landlock");
        return;
    }
    let spied = spy(true).await;
    let others: Vec<_> = spied.opened.iter().filter(|(_, s)| *s != spied.session).collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(!spied.signals, "nor does it send signals to the worker");
}

#[tokio::test]
async fn without_landlock_the_worker_is_hidden_all_the_same_also_from_root() {
    let spied = spy(false).await;
    assert!(spied.opened.iter().all(|(p, _)| *p != spied.parent), "{:?}", spied.opened);
}

fn tree(root: &Path) {
    for directory in ["data", "work", "else"] {
        fs::create_dir(root.join(directory)).unwrap();
        fs::write(root.join(directory).join("file"), directory).unwrap();
    }
    std::os::unix::fs::symlink(root.join("data"), root.join("work/link")).unwrap();
}

#[tokio::test]
async fn a_program_neither_reads_what_is_hidden_nor_writes_outside() {
    if !confines_files() {
        eprintln!("not tried: this kernel has no Landlock");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().canonicalize().unwrap();
    tree(&root);
    let here = root.display();
    let lines = format!(
        "try() {{ if ( eval \"$2\" ) >/dev/null 2>&1; then echo \"$1\"; fi; }}
        try read_else 'cat {here}/else/file'
        try read_hidden 'cat {here}/data/file'
        try read_by_link 'cat {here}/work/link/file'
        try list_hidden 'ls {here}/data'
        try write_work 'echo x > {here}/work/new'
        try write_else 'echo x > {here}/else/new'
        try change_else 'echo x > {here}/else/file'
        try remove_else 'rm {here}/else/file'
        try write_hidden 'echo x > {here}/data/file'
        try move_in 'mv {here}/work/new {here}/data/new'
        try null 'echo x > /dev/null'"
    );
    let confined = |writable| SandboxOptions {
        writable,
        hidden: vec![root.join("data")],
        ..SandboxOptions::default()
    };
    // The script itself lies in a directory of its own.
    let scripts = tempfile::tempdir().unwrap();
    let below = Writable::Below(vec![root.join("work")]);
    let done = run(confined(below), sh(scripts.path(), &lines)).await;
    assert_eq!(done.lines().collect::<Vec<_>>(), ["read_else", "write_work", "null"]);
    assert_eq!(fs::read_to_string(root.join("else/file")).unwrap(), "else");
    let done = run(confined(Writable::Everywhere), sh(scripts.path(), &lines)).await;
    let done: Vec<_> = done.lines().collect();
    assert!(done.contains(&"write_else") && done.contains(&"remove_else"), "{done:?}");
    assert!(!done.iter().any(|d| d.contains("hidden") || d.contains("link")), "{done:?}");
    assert_eq!(fs::read_to_string(root.join("data/file")).unwrap(), "data");
}

#[tokio::test]
async fn a_program_gains_no_rights_and_keeps_to_its_limits() {
    let dir = tempfile::tempdir().unwrap();
    let sandbox = SandboxOptions {
        open_files_max: Some(64),
        file_bytes_max: Some(512 * 1024),
        memory_bytes_max: Some(1 << 30),
        ..SandboxOptions::default()
    };
    let lines = "grep NoNewPrivs /proc/self/status | tr -d '\\t'; ulimit -c; ulimit -Hn; ulimit -v; ulimit -f
        cut -d ' ' -f 6 /proc/$$/stat; echo $$";
    let out = run(sandbox, sh(dir.path(), lines)).await;
    let lines: Vec<_> = out.lines().collect();
    // Of files a shell counts blocks of 512 bytes, of memory kibibytes.
    assert_eq!(lines[..5], ["NoNewPrivs:1", "0", "64", "1048576", "1024"], "{out}");
    assert_eq!(lines[5], lines[6], "it leads a session of its own");
}
