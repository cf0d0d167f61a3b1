//! What the real binary must not give away: passwords of addresses on its output, the store's files to other users, and the terminal of a
//! person to data of others.

use crate::support::{Guarded, complained, own_database, run, said, tenure, wait_until};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(60);
const SECRET: &str = "hunter2hunter2";

/// Where the address of the store comes from.
#[derive(Clone, Copy, Debug)]
enum From {
    Flag,
    Set,
    File,
    Environment,
}

const SOURCES: [From; 4] = [From::Flag, From::Set, From::File, From::Environment];

/// The binary with these words and this address of its store.
fn with_store(from: From, address: &str, dir: &Path, words: &[&str]) -> Command {
    let mut command = tenure();
    command.current_dir(dir).args(words);
    let file = dir.join("tenure.toml");
    match from {
        From::File => fs::write(&file, format!("[store]\nurl = {address:?}\n")).unwrap(),
        _ if file.exists() => fs::remove_file(&file).unwrap(),
        _ => {}
    }
    match from {
        From::Flag => command.args(["--store", address]),
        From::Set => command.args(["--set", &format!("store.url={address}")]),
        From::Environment => command.env("TENURE_STORE_URL", address),
        From::File => &mut command,
    };
    command
}

/// Both streams of an output.
fn all(output: &Output) -> String {
    said(output) + &complained(output)
}

fn keeps_the_secret(what: &str, text: &str) {
    assert!(!text.contains(SECRET), "{what} printed the password: {text}");
    assert!(!text.trim().is_empty(), "{what} printed nothing");
}

/// The private PostgreSQL trusts everybody, so that any password will do.
fn with_password(url: &str) -> [String; 2] {
    let in_login = url.replace("tenure@", &format!("tenure:{SECRET}@"));
    assert_ne!(in_login, url);
    [in_login, format!("{url}?password={SECRET}")]
}

#[test]
fn servers_and_commands_do_not_print_the_password_of_their_store() {
    let dir = tempfile::tempdir().unwrap();
    let database = own_database("secrets");
    let [in_login, in_query] = with_password(&database.url);
    for (n, from) in SOURCES.into_iter().enumerate() {
        let address = if n % 2 == 0 { &in_login } else { &in_query };
        for (command, json) in [("up", false), ("server", true)] {
            let text = output_of_server(from, address, command, json, dir.path());
            keeps_the_secret(&format!("{command} with the address from {from:?}"), &text);
            assert!(text.contains("postgres://"), "the address is shown: {text}");
        }
        for words in [
            &["config"][..],
            &["config", "--json"],
            &["doctor"],
            &["doctor", "--json"],
            &["rules", "--set", "log.filter=trace"],
            &["verify"],
            &["key", "list"],
        ] {
            let output = with_store(from, address, dir.path(), words).output().unwrap();
            keeps_the_secret(&format!("{words:?} with the address from {from:?}"), &all(&output));
        }
    }
}

/// What a server prints until it answers, with its log.
fn output_of_server(from: From, address: &str, command: &str, json: bool, dir: &Path) -> String {
    let (out, err) = (dir.join("out"), dir.join("err"));
    let mut words =
        vec![command, "--set", "server.listen=127.0.0.1:0", "--set", "log.filter=debug"];
    words.extend(json.then_some("--json"));
    let mut command = with_store(from, address, dir, &words);
    command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
    let mut child = Guarded(command.spawn().unwrap());
    wait_until("the server", PATIENCE, || {
        assert!(child.0.try_wait().unwrap().is_none(), "{}", fs::read_to_string(&err).unwrap());
        fs::read_to_string(&out).unwrap().contains("http://127.0.0.1:")
    });
    drop(child);
    fs::read_to_string(out).unwrap() + &fs::read_to_string(err).unwrap()
}

#[test]
fn addresses_that_do_not_work_are_refused_without_their_password() {
    let dir = tempfile::tempdir().unwrap();
    let run_with = |words: &[&str]| all(&run(words, dir.path()));
    let broken = [
        format!("postgres://u:{SECRET}@127.0.0.1:1/x"),
        format!("postgres://u:{SECRET}@127.0.0.1:1/x?nonsense=1"),
        format!("postgres://u:{SECRET}@127.0.0.1:1/x?sslmode=strict"),
        format!("postgres://u:{SECRET}@127.0.0.1:1/x?sslmode=verify-full&sslrootcert=/absent"),
        format!("postgres://u:a?b{SECRET}@127.0.0.1:1/x"),
        format!("postgres://u:a@{SECRET}@127.0.0.1:1/x"),
        format!("postgres://127.0.0.1:1/x?password={SECRET}"),
        format!("mysql://u:{SECRET}@h/x"),
        format!("host=127.0.0.1 password={SECRET}"),
    ];
    for address in &broken {
        for from in SOURCES {
            for command in ["up", "rules", "doctor"] {
                let output = with_store(from, address, dir.path(), &[command]).output().unwrap();
                assert!(!output.status.success(), "{address}");
                keeps_the_secret(&format!("{command} with {from:?}"), &all(&output));
            }
        }
    }
    let _ = fs::remove_file(dir.path().join("tenure.toml"));
    // Not where an address belongs.
    let bare = format!("postgres://u:{SECRET}@h/x");
    for words in [
        vec!["config", "--set", &bare],
        vec!["config", "--set", &format!("{bare}?a=b")],
        vec!["config", "--set", &format!("server.listen={bare}")],
        vec!["job", "list", "--server", &format!("http://u:{SECRET}@127.0.0.1:1")],
        vec!["job", "list", "--server", &format!("ftp://u:{SECRET}@127.0.0.1:1")],
        vec!["worker", "--server", &format!("ftp://u:{SECRET}@127.0.0.1:1")],
        vec!["doctor", "--server", &format!("ftp://u:{SECRET}@127.0.0.1:1")],
    ] {
        keeps_the_secret(&format!("{words:?}"), &run_with(&words));
    }
    let settings = [
        format!("bus.url=redis://u:{SECRET}@h:6379,redis://:{SECRET}@g"),
        format!("redis.addresses=rediss://u:{SECRET}@h"),
        format!("llm.base_url=https://u:{SECRET}@h/v1?key={SECRET}"),
        format!("egress.proxy=http://{SECRET}:{SECRET}@proxy:3128"),
        format!("collector.server=https://u:{SECRET}@h"),
    ];
    for setting in &settings {
        for more in [&[][..], &["--json"]] {
            let words = [&["config", "--set", setting], more].concat();
            let output = run(&words, dir.path());
            assert!(output.status.success(), "{}", complained(&output));
            keeps_the_secret(setting, &all(&output));
        }
    }
    // The parser of the file shows lines; the help of a command shows variables.
    fs::write(dir.path().join("tenure.toml"), format!("[store]\nurl = \"{bare}\n")).unwrap();
    keeps_the_secret("a file that cannot be read", &run_with(&["config"]));
    fs::remove_file(dir.path().join("tenure.toml")).unwrap();
    for command in ["worker", "job", "executor", "collector"] {
        let mut help = tenure();
        help.args([command, "--help"]).env("TENURE_SERVER", format!("http://u:{SECRET}@h"));
        keeps_the_secret(command, &all(&help.output().unwrap()));
    }
}

/// Every file below a directory, with its mode.
fn modes(dir: &Path, found: &mut Vec<(String, u32)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let meta = fs::metadata(&path).unwrap();
        found.push((path.display().to_string(), meta.permissions().mode() & 0o777));
        if meta.is_dir() {
            modes(&path, found);
        }
    }
}

#[test]
fn no_other_user_reads_the_files_of_a_server() {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (_server, url) = up(dir.path(), "022");
    let id = ask(dir.path(), &url, "Ship it?", "ada");
    let exported = run(&["export", &id, "-o", "job.tenure", "--server", &url], dir.path());
    assert!(exported.status.success(), "{}", complained(&exported));
    let mut found = Vec::new();
    modes(dir.path(), &mut found);
    for name in ["tenure.db", "tenure.db-wal", "tenure.db-shm", "admin.key", "lock", "job.tenure"] {
        assert!(found.iter().any(|(path, _)| path.ends_with(name)), "{name} in {found:?}");
    }
    found.retain(|(_, mode)| mode & 0o077 != 0);
    assert_eq!(found, [], "files that others can read");
}

/// A server on SQLite with this umask, and its address.
fn up(dir: &Path, umask: &str) -> (Guarded, String) {
    let mut command = crate::support::clean(Command::new("sh"));
    command.args(["-c", &format!("umask {umask}; exec \"$0\" \"$@\""), crate::BINARY, "up"]);
    command.args(["--json", "--set", "server.listen=127.0.0.1:0", "--set", "log.filter=error"]);
    command.current_dir(dir).stdout(std::process::Stdio::piped());
    let mut child = Guarded(command.spawn().unwrap());
    let mut line = String::new();
    let out = child.0.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut line).unwrap();
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    let url = said["url"].as_str().unwrap().to_owned();
    (child, url)
}

/// A job that waits for an answer: its id.
fn ask(dir: &Path, url: &str, question: &str, by: &str) -> String {
    let input = serde_json::json!({ "question": question }).to_string();
    let submit = ["job", "submit", "ask", &input, "--json", "--server", url, "--by", by];
    let submitted = run(&submit, dir);
    assert!(submitted.status.success(), "{}", complained(&submitted));
    let job: serde_json::Value = serde_json::from_str(&said(&submitted)).unwrap();
    job["id"].as_str().unwrap().to_owned()
}

#[test]
fn data_of_others_does_not_reach_the_terminal_as_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    let (_server, url) = up(dir.path(), "022");
    // Clears the screen, sets the title, and as one character of Latin-1; deletes; reverses the line.
    let hostile = "\u{1b}[2J\u{1b}]0;owned\u{7}\u{9b}31m\u{7f}\u{202e}\r";
    let id = ask(dir.path(), &url, hostile, hostile);
    wait_until("the question", PATIENCE, || {
        said(&run(&["job", "show", &id, "--server", &url], dir.path())).contains("parked")
    });
    let cancel = ["job", "cancel", &id, "--why", hostile, "--by", hostile, "--server", &url];
    let is_hostile = |c: &char| c.is_control() && *c != '\n' && *c != '\t' || *c == '\u{202e}';
    let mut shown = 0;
    let mut look = |words: &[&str]| {
        for json in [&[][..], &["--json"]] {
            let words = [words, &["--server", &url], json].concat();
            let text = all(&run(&words, dir.path()));
            assert_eq!(text.chars().find(is_hostile), None, "{words:?}: {text:?}");
            shown += usize::from(text.contains("\\u001b[2J"));
        }
    };
    for _ in 0..2 {
        for command in ["show", "events", "trace", "why", "verify", "replay"] {
            look(&["job", command, &id]);
        }
        look(&["job", "list"]);
        // Once more when it is over; a second cancellation changes nothing.
        let _ = run(&cancel, dir.path());
    }
    // Errors of the server quote what was sent.
    look(&["job", "show", hostile]);
    look(&["gate", "show", hostile]);
    assert!(shown > 4, "the text itself is shown, escaped: {shown}");
}

#[test]
fn keys_are_for_tenants_whose_names_have_the_form_of_all_others() {
    let dir = tempfile::tempdir().unwrap();
    for bad in ["acme/x", "*", "*/each", "", "a b", "none", "a\u{1b}[2J"] {
        let refused = run(&["key", "create", "ci", "--tenant", bad], dir.path());
        assert!(!refused.status.success(), "{bad:?}");
        let words = complained(&refused);
        assert!(words.contains("name of a tenant") && words.contains("letters, digits"), "{words}");
    }
    assert!(run(&["key", "create", "ci", "--tenant", "acme"], dir.path()).status.success());
}
