//! Every block of code in the documentation is compiled, parsed by the real parser, or run. What no test can reach says
//! why, in a comment right before the block: `<!-- untested: REASON -->`.
//!
//! | language | what is done with a block |
//! |---|---|
//! | `rust` | it stands, line by line, in a file of `docs/examples`, which is compiled here |
//! | `sh`, `console` | a real shell splits it into commands; those of `tenure` are parsed by the real command line ([`shell`]) |
//! | `json` | read by the parser of what it is: a plan, a profile, reports, an event |
//! | `toml` | read as a configuration file, or compared with the dependencies of the workspace |
//! | `yaml` | parsed |
//! | `python` | run by `sdk/python/tests/test_readme.py` |
//! | `py` | compiled by Python: a part of a program |
//! | `sql`, `nginx` | run by the tests that [`ELSEWHERE`] names |
//!
//! [`run`] runs some of the commands on a real server, and [`worker`] is the README's program.

mod blocks;
mod run;
mod shell;

#[path = "../../../../../docs/examples/fragments.rs"]
#[allow(dead_code, reason = "fragments are compiled, and nobody calls them")]
mod fragments;
mod worker;

use blocks::{Block, blocks, pages};
use serde_json::Value;
use std::{fs, path::Path, process::Command};
use tenure::{agents::drive::profile, config::Settings, jobs::plan};

/// Blocks that tests of other places run: page, language, and the test, which names the page.
const ELSEWHERE: [(&str, &str, &str); 7] = [
    ("README.md", "python", "sdk/python/tests/test_readme.py"),
    ("sdk/python/README.md", "python", "sdk/python/tests/test_readme.py"),
    ("sdk/python/README.md", "text", "sdk/python/tests/test_readme.py"),
    ("docs/workers-in-any-language.md", "console", "sdk/python/tests/test_readme.py"),
    ("docs/transactional-submission.md", "sql", "crates/tenure/tests/it/intake.rs"),
    ("docs/security.md", "nginx", "crates/tenure/tests/it/proxy.rs"),
    ("docs/worker-protocol.md", "json", "crates/remote/tests/it/wire.rs"),
];

/// What is wrong with a block, if something is.
fn checked(root: &Path, block: &Block) -> Result<(), String> {
    if let Some(reason) = &block.untested {
        return match reason.split_whitespace().count() {
            0..3 => Err("say in a few words why it is not tested".to_owned()),
            _ => Ok(()),
        };
    }
    let run_elsewhere =
        ELSEWHERE.iter().find(|(page, language, _)| (*page, *language) == block.place());
    if let Some((page, _, test)) = run_elsewhere {
        let test = fs::read_to_string(root.join(test)).map_err(|e| format!("{test}: {e}"))?;
        let name = Path::new(page).file_name().and_then(|n| n.to_str()).unwrap_or(page);
        return test.contains(name).then_some(()).ok_or("the test does not name the page".into());
    }
    match block.language.as_str() {
        "rust" => is_compiled(root, &block.text),
        "sh" | "console" => shell::check(root, &block.commands()),
        "json" => read_json(&block.text),
        "toml" => read_toml(root, &block.text),
        "py" => is_python(&block.text),
        "yaml" => {
            serde_yaml_ng::from_str::<Value>(&block.text).map_err(|e| e.to_string()).map(|_| ())
        }
        "" => Err("give its language".to_owned()),
        other => Err(format!("nothing tests {other}: say why, or test it in documents/mod.rs")),
    }
}

fn is_python(text: &str) -> Result<(), String> {
    let compile =
        "import ast, sys; compile(sys.argv[1], 'page', 'exec', ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)";
    let python = Command::new("python3").args(["-c", compile, text]).output();
    let output = python.map_err(|e| format!("python3: {e}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Lines without their indentation, which a page and a file may have in different depth.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

fn is_compiled(root: &Path, text: &str) -> Result<(), String> {
    let wanted = lines(text);
    for file in fs::read_dir(root.join("docs/examples")).map_err(|e| e.to_string())? {
        let path = file.map_err(|e| e.to_string())?.path();
        let source = fs::read_to_string(&path).map_err(|e| e.to_string())?;
        if lines(&source).windows(wanted.len()).any(|part| part == wanted) {
            return Ok(());
        }
    }
    Err("no file of docs/examples has these lines".to_owned())
}

fn read_json(text: &str) -> Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let has = |name: &str| value.get(name).is_some();
    if has("steps") {
        let read = serde_json::from_str(text).map_err(|e| e.to_string())?;
        return plan::check(&read, None).map(|_| ()).map_err(|problems| format!("{problems:?}"));
    }
    if has("instructions") {
        return profile::check(&value).map(|_| ()).map_err(|problems| problems.join("; "));
    }
    if let Some(reports) = value.get("reports").and_then(Value::as_array) {
        let read = |one: &Value| tenure_pods::report::Report::read(one.clone());
        return reports.iter().try_for_each(|one| read(one).map(|_| ()).map_err(|e| e.to_string()));
    }
    if has("type") && has("data") {
        let read = tenure_pods::envelope::Envelope::read(text.as_bytes());
        return read.map(|_| ()).map_err(|e| format!("{e:?}"));
    }
    Err("nothing here knows what it is: say why, or test it in documents/mod.rs".to_owned())
}

fn read_toml(root: &Path, text: &str) -> Result<(), String> {
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| e.message().to_owned())?;
    if let Some(dependencies) = table.get("dependencies").and_then(toml::Value::as_table) {
        return dependencies.iter().try_for_each(|(name, wanted)| is_ours(root, name, wanted));
    }
    let dir = tempfile::tempdir().map_err(|e| e.to_string())?;
    let file = dir.path().join("tenure.toml");
    fs::write(&file, text).map_err(|e| e.to_string())?;
    let settings = Settings::load(Some(&file), [], &[]).map_err(|e| e.to_string())?;
    // Some settings are judged where they are used, so that the other commands do not mind.
    let problem = settings.iter().find_map(|(key, ..)| settings.problem(key.name));
    problem.map_or(Ok(()), |problem| Err(problem.to_string()))
}

/// A dependency that a page asks for is one of ours in the version of the workspace: two versions of `schemars` do not fit.
fn is_ours(root: &Path, name: &str, wanted: &toml::Value) -> Result<(), String> {
    if wanted.get("path").is_some() {
        return Ok(());
    }
    let workspace = fs::read_to_string(root.join("Cargo.toml")).map_err(|e| e.to_string())?;
    let workspace: toml::Table = workspace.parse().map_err(|e: toml::de::Error| e.to_string())?;
    let ours = &workspace["workspace"]["dependencies"][name];
    let version = |of: &toml::Value| of.get("version").unwrap_or(of).as_str().map(str::to_owned);
    match (version(ours), version(wanted)) {
        // `1` is every 1.x, also ours.
        (Some(ours), Some(wanted)) if format!("{ours}.").starts_with(&format!("{wanted}.")) => {
            Ok(())
        }
        _ => Err(format!("{name}: the page has {wanted}, the workspace {ours}")),
    }
}

#[test]
fn every_block_of_the_documentation_is_tested_or_says_why_not() {
    let root = blocks::root();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for block in pages(&root).iter().flat_map(|page| blocks(&root, page)) {
        count += 1;
        if let Err(why) = checked(&root, &block) {
            wrong.push(format!("{}:{} ({}): {why}", block.page, block.line, block.language));
        }
    }
    assert!(count > 60, "only {count} blocks were found");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The check above fails for what it has to find.
#[test]
fn a_block_that_is_wrong_is_found() {
    let root = blocks::root();
    let found = |language: &str, text: &str| {
        let page = format!("# Page\n\n```{language}\n{text}\n```\n");
        let blocks = blocks::of("docs/page.md", &page);
        let [block] = &blocks[..] else { panic!("{} blocks in {page}", blocks.len()) };
        checked(&root, block).err()
    };
    for (language, text, expected) in [
        ("rust", "fn nobody_has_this() {}", "docs/examples"),
        ("sh", "tenure job sumbit ask", "sumbit"),
        ("sh", "tenure job submit ask --kee 7", "--kee"),
        ("sh", "tenure up --set server.listne=127.0.0.1:0", "server.listne"),
        ("sh", "tenure agent set ada '{\"instructons\": \"x\"}'", "instructons"),
        ("sh", "echo 'no end", "matching"),
        ("sh", "frobnicate --now", "frobnicate"),
        ("sh", "scripts/no-such-script", "no-such-script"),
        ("sh", "curl -s localhost:7777/v1/jbos", "/v1/jbos"),
        ("console", "$ tenure jbo list", "jbo"),
        ("json", "{\"version\": 1, \"steps\": {\"a\": {\"vlaue\": 1}}}", "vlaue"),
        ("json", "{\"instructions\": \"x\", \"tools\": [{\"nam\": 1}]}", "nam"),
        ("json", "{\"reports\": [{\"task\": 1}]}", "task_id"),
        ("json", "{\"a\": 1,}", "trailing comma"),
        ("json", "{\"a\": 1}", "nothing here knows"),
        ("toml", "[server]\nlistne = \"x\"", "server.listne"),
        ("toml", "[dependencies]\nschemars = \"0.8\"", "schemars"),
        ("yaml", "a: [1", "line"),
        ("py", "def f(:", "SyntaxError"),
        ("", "something", "language"),
        ("cobol", "STOP RUN.", "cobol"),
    ] {
        let said = found(language, text).unwrap_or_else(|| panic!("{text:?} passes"));
        assert!(said.contains(expected), "{text:?}: {said:?} does not say {expected:?}");
    }
    for (language, text) in [
        ("sh", "tenure job why ID | cat   # one sentence"),
        ("sh", "FOO=bar tenure up --set server.tick_seconds=2 &"),
        ("console", "$ tenure job list --status \\\n    failed\nID  FLOW  and other output"),
        ("toml", "[worker]\nlease_seconds = 30"),
    ] {
        assert_eq!(found(language, text), None, "{text:?}");
    }
    let page = "<!-- untested: it needs two clusters -->\n```text\nx\n```\n<!-- untested: no -->\n```text\ny\n```\n";
    let said: Vec<bool> =
        blocks::of("docs/page.md", page).iter().map(|b| checked(&root, b).is_ok()).collect();
    assert_eq!(said, [true, false], "a reason is a few words");
}

/// Commands that are named within a sentence exist, with the options that the sentence gives them.
#[test]
fn commands_that_are_named_in_a_sentence_exist() {
    let root = blocks::root();
    let mut wrong = Vec::new();
    for page in pages(&root) {
        let text = fs::read_to_string(root.join(&page)).unwrap();
        for span in blocks::inline(&text).filter(|span| span.starts_with("tenure ")) {
            if let Err(why) = shell::names_a_command(&span) {
                wrong.push(format!("{page}: `{span}`: {why}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(shell::names_a_command("tenure jbo list").is_err());
    assert!(shell::names_a_command("tenure job list --sttaus x").is_err());
    assert!(shell::names_a_command("tenure job list --status x").is_ok());
}
