//! Jobs that an application asks for in a transaction of its own, as `psql` sees it: with the transaction or not at
//! all, each once, and what can not run is a failed job under the id that was given.

use crate::support::{Database, Guarded, complained, fast, own_database, said, tenure, wait_until};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Output, Stdio},
    time::Duration,
};

const PATIENCE: Duration = Duration::from_secs(120);
const ASK: &str = r#"'{"question": "Ship it?"}'"#;

fn psql(url: &str, sql: &str) -> Output {
    let mut command = Command::new("psql");
    command.args([url, "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql]);
    command.stdin(Stdio::null()).output().expect("psql starts")
}

/// What a statement answers.
fn ask(url: &str, sql: &str) -> String {
    let output = psql(url, sql);
    assert!(output.status.success(), "{sql}: {}", complained(&output));
    said(&output).trim().to_owned()
}

/// A server on the database, in a process of its own.
fn up(db: &Database, more: &[&str]) -> Guarded {
    let mut command = tenure();
    let fixed = ["up", "--json", "--store", &db.url, "--set", "server.listen=127.0.0.1:0"];
    command.args(fixed).args(["--set", "log.filter=error"]).args(more);
    let mut child = Guarded(command.stdout(Stdio::piped()).spawn().expect("it starts"));
    let out = child.0.stdout.take().expect("it is piped");
    let mut line = String::new();
    BufReader::new(out).read_line(&mut line).unwrap();
    assert!(line.contains("url"), "{line:?}");
    child
}

fn left(db: &Database) -> String {
    ask(&db.url, "SELECT count(*) FROM tenure.intake")
}

fn empty(db: &Database) {
    wait_until("an empty intake", PATIENCE, || left(db) == "0");
}

fn jobs(db: &Database) -> String {
    ask(&db.url, "SELECT count(*) FROM tenure.heads WHERE kind = 'job'")
}

/// Status, and why it failed.
fn outcome(db: &Database, id: &str) -> (String, String) {
    let sql = format!(
        "SELECT status || '|' || coalesce(convert_from(state, 'UTF8')::jsonb -> 'failure' ->> 'reason', '')
         FROM tenure.heads WHERE id = '{id}'"
    );
    let answer = ask(&db.url, &sql);
    let (status, reason) = answer.split_once('|').unwrap_or((&answer, ""));
    (status.to_owned(), reason.to_owned())
}

#[test]
fn a_job_comes_with_its_transaction_or_not_at_all() {
    let db = own_database("intake_tx");
    let server = up(&db, &[]);
    let url = &db.url;
    ask(url, "CREATE TABLE orders (n int, job uuid)");
    let insert = format!("INSERT INTO orders VALUES (1, tenure.submit('ask', {ASK}))");
    let rolled = psql(url, &format!("BEGIN; {insert}; ROLLBACK"));
    assert!(rolled.status.success(), "{}", complained(&rolled));
    ask(url, &format!("BEGIN; {insert}; COMMIT"));
    let id = ask(url, "SELECT job FROM orders");
    wait_until("the job", PATIENCE, || outcome(&db, &id).0 == "parked");
    empty(&db);
    assert_eq!(jobs(&db), "1", "what was rolled back did not happen");
    // Time-ordered, as every id of ours.
    assert_eq!((&id[14..15], id.len()), ("7", 36), "{id}");
    let created =
        ask(url, &format!("SELECT created_at / 1000 FROM tenure.heads WHERE id = '{id}'"));
    let told = i64::from_str_radix(&id.replace('-', "")[..12], 16).unwrap();
    assert!((created.parse::<i64>().unwrap() - told).abs() < 60_000, "{id} {created}");
    drop(server);
}

#[test]
fn what_can_not_run_is_a_failed_job_and_holds_up_nobody() {
    let db = own_database("intake_bad");
    let server = up(&db, &[]);
    let url = &db.url;
    // All in one transaction: the bad ones among the good.
    let wishes = [
        (format!("'ask', {ASK}"), "parked", ""),
        ("'nobody-knows-this'".to_owned(), "failed", "unknown_flow"),
        ("'bulk', '{}'".to_owned(), "failed", "forbidden"),
        ("NULL".to_owned(), "failed", "unknown_flow"),
        ("'', '{}'".to_owned(), "failed", "unknown_flow"),
        (format!("repeat('x', 5000), {ASK}"), "failed", "unknown_flow"),
        ("'ask', '{\"question\": 7}'".to_owned(), "failed", "schema_violation"),
        ("'ask', NULL, NULL".to_owned(), "failed", "schema_violation"),
        (format!("'ask', {ASK}, '[]'"), "failed", "bad_options"),
        (format!("'ask', {ASK}, '{{\"colour\": 1}}'"), "failed", "bad_options"),
        (format!("'ask', {ASK}, '{{\"tenant\": \"a/b\"}}'"), "failed", "bad_options"),
        (
            format!("'ask', {ASK}, jsonb_build_object('key', repeat('k', 5000))"),
            "failed",
            "bad_options",
        ),
        (format!("'ask', {ASK}, '{{\"version\": 99}}'"), "failed", "unknown_flow"),
        (
            "'ask', jsonb_build_object('question', repeat('q', 2000000))".to_owned(),
            "failed",
            "payload_too_large",
        ),
        ("'ask', ('{\"question\": \"x\", \"n\": 1e999}')::jsonb".to_owned(), "failed", "bad_json"),
        (
            format!("'ask', {ASK}, '{{\"priority\": 3, \"must_end_in_seconds\": 600}}'"),
            "parked",
            "",
        ),
    ];
    let plan =
        |steps: &str| format!("'plan', '{{\"plan\": {{\"version\": 1, \"steps\": {steps}}}}}'");
    let wishes: Vec<_> = wishes
        .into_iter()
        .chain([
            (
                plan(r#"{"a": {"value": 1}, "b": {"tool": "chrge", "after": ["a"]}}"#),
                "failed",
                "plan_invalid",
            ),
            (
                plan(r#"{"a": {"value": 1, "after": ["b"]}, "b": {"value": 1, "after": ["a"]}}"#),
                "failed",
                "plan_invalid",
            ),
            (plan(r#"{"a": {"value": 1}}"#), "completed", ""),
        ])
        .collect();
    let rows: Vec<String> = wishes
        .iter()
        .enumerate()
        .map(|(i, (w, ..))| format!("({i}, tenure.submit({w}))"))
        .collect();
    ask(url, "CREATE TABLE mine (n int, job uuid)");
    ask(url, &format!("INSERT INTO mine VALUES {}", rows.join(", ")));
    empty(&db);
    for (i, (wish, status, reason)) in wishes.iter().enumerate() {
        let id = ask(url, &format!("SELECT job FROM mine WHERE n = {i}"));
        wait_until("its outcome", PATIENCE, || outcome(&db, &id).0 == *status);
        assert_eq!(outcome(&db, &id).1, *reason, "{wish}");
        if *reason == "plan_invalid" {
            let sql = format!("SELECT count(*) FROM tenure.records WHERE entity = '{id}'");
            assert_eq!(ask(url, &sql), "1", "{wish}: it ended where it was born");
        }
    }
    drop(server);
    // Every chain is sound, that of the failed ones too.
    let verified = tenure().args(["verify", "--store", url]).output().unwrap();
    assert!(verified.status.success(), "{}{}", said(&verified), complained(&verified));
}

#[test]
fn the_same_key_is_the_same_job_and_other_input_is_refused_at_once() {
    let db = own_database("intake_key");
    let server = up(&db, &[]);
    let url = &db.url;
    let submit = |input: &str| {
        format!(
            "SELECT tenure.submit('ask', '{{\"question\": \"{input}\"}}', '{{\"key\": \"order/7\"}}')"
        )
    };
    // Twice in one transaction, before anybody has seen it; and again when the job is there.
    let twice = ask(url, &format!("BEGIN; {}; {}; COMMIT", submit("a"), submit("a")));
    let ids: Vec<&str> = twice.lines().collect();
    assert_eq!((ids.len(), ids[0]), (2, ids[1]), "{twice}");
    let refused = psql(url, &submit("b"));
    assert!(complained(&refused).contains("other input"), "{}", complained(&refused));
    empty(&db);
    assert_eq!(ask(url, &submit("a")), ids[0]);
    let refused = psql(url, &submit("b"));
    assert!(complained(&refused).contains("other input"), "{}", complained(&refused));
    assert_eq!((jobs(&db).as_str(), left(&db).as_str()), ("1", "0"));
    drop(server);
}

/// A few bytes of `jsonb` whose text is more than Postgres can write.
const ENDLESS: &str = "(SELECT jsonb_agg(1e131000) FROM generate_series(1, 10000))";

#[test]
fn a_row_that_can_not_even_be_read_is_a_failed_job_and_holds_up_nobody() {
    let db = own_database("intake_huge");
    // Nobody serves: all of them are taken at once later.
    drop(up(&db, &[]));
    let url = &db.url;
    let unwritable = psql(url, &format!("SELECT octet_length({ENDLESS}::text)"));
    assert!(!unwritable.status.success(), "it is meant to be more than Postgres can write");
    let text = |bytes: usize| format!("to_jsonb(repeat('x', {}))", bytes - 2);
    let options = |bytes: usize| {
        format!("jsonb_build_object('colour', repeat('x', {}))", bytes - r#"{"colour": ""}"#.len())
    };
    let (input_max, options_max) = (1024 * 1024, 64 * 1024);
    let wishes = [
        (format!("'ask', {ENDLESS}"), "payload_too_large", "payload_bytes_max"),
        (format!("repeat('x', 50000000), {ASK}"), "unknown_flow", "at most"),
        // At each limit, and past it.
        (format!("'ask', {}", text(input_max)), "schema_violation", ""),
        (format!("'ask', {}", text(input_max + 1)), "payload_too_large", ""),
        (format!("'ask', {ASK}, {}", options(options_max)), "bad_options", "unknown field"),
        (format!("'ask', {ASK}, {}", options(options_max + 1)), "bad_options", "more than 65536"),
        (format!("'ask', {}", text(16 * 1024 * 1024)), "payload_too_large", ""),
        (
            format!("'ask', {}, '{{\"key\": \"huge\"}}'", text(16 * 1024 * 1024 + 1)),
            "payload_too_large",
            "",
        ),
        (format!("'ask', {ASK}"), "", ""),
    ];
    let submit = |wish: &str| ask(url, &format!("SELECT tenure.submit({wish})"));
    let ids: Vec<String> = wishes.iter().map(|(wish, ..)| submit(wish)).collect();
    assert_eq!(submit(&wishes[7].0), ids[7], "the same key while it waits");
    let kept = ask(
        url,
        "SELECT string_agg((input IS NOT NULL)::int::text, '' ORDER BY id) FROM tenure.intake",
    );
    assert_eq!(kept, "011111101", "what no server takes is not kept");
    let server = up(&db, &[]);
    empty(&db);
    for (id, (wish, reason, says)) in ids.iter().zip(&wishes) {
        let status = if reason.is_empty() { "parked" } else { "failed" };
        wait_until("its outcome", PATIENCE, || outcome(&db, id).0 == status);
        assert_eq!(outcome(&db, id).1, *reason, "{wish}");
        let error = format!(
            "SELECT convert_from(state, 'UTF8')::jsonb -> 'failure' ->> 'error' FROM tenure.heads WHERE id = '{id}'"
        );
        assert!(ask(url, &error).contains(says), "{wish}: {}", ask(url, &error));
    }
    drop(server);
}

#[test]
fn a_key_means_the_same_job_before_and_after_it_was_made_whatever_its_numbers_and_letters() {
    let db = own_database("intake_same");
    drop(up(&db, &[]));
    let url = &db.url;
    let submit = |key: &str, x: &str| {
        let input = format!("jsonb_build_object('question', 'x', 'n', jsonb_build_array({x}))");
        psql(url, &format!("SELECT tenure.submit('ask', {input}, '{{\"key\": \"{key}\"}}')"))
    };
    let same = |key: &str, x: &str| {
        let output = submit(key, x);
        assert!(output.status.success(), "{key}: {}", complained(&output));
        said(&output).trim().to_owned()
    };
    let differs = |key: &str, x: &str| {
        let refused = submit(key, x);
        assert!(
            complained(&refused).contains("other input"),
            "{key} {x}: {}",
            complained(&refused)
        );
    };
    let numbers = [
        ("third", "10/3.0", "10/3.0 + 0.01"),
        ("whole", "9007199254740993", "9007199254740992"),
        ("large", "123456789012345678901234567890", "123456789012345678901234567890 * 2"),
        ("tiny", "1e-400", "1e-300"),
        ("text", "'10/3.0'", "10/3.0"),
    ];
    let ids: Vec<String> = numbers.iter().map(|(key, x, _)| same(key, x)).collect();
    let all = || {
        for ((key, x, y), id) in numbers.iter().zip(&ids) {
            assert_eq!(same(key, x), *id, "{key}");
            differs(key, y);
        }
    };
    all();
    let server = up(&db, &["--set", "tools.command_tenants=default"]);
    empty(&db);
    all();
    assert_eq!(jobs(&db), numbers.len().to_string());
    // A job that returned a letter which `jsonb` can not hold.
    const PRINTED: &str = r#""a\\000 %s", "\\u0000""#;
    let print = |args: &str| {
        let input = format!(r#"{{"program": "printf", "args": [{args}]}}"#);
        psql(url, &format!("SELECT tenure.submit('command', '{input}', '{{\"key\": \"nul\"}}')"))
    };
    let id = said(&print(PRINTED)).trim().to_owned();
    wait_until("its end", PATIENCE, || {
        ask(url, &format!("SELECT status FROM tenure.heads WHERE id = '{id}'")) == "completed"
    });
    let head = format!("SELECT convert_from(state, 'UTF8') FROM tenure.heads WHERE id = '{id}'");
    assert!(ask(url, &head).contains(r"a\u0000"), "{}", ask(url, &head));
    assert_eq!(said(&print(PRINTED)).trim(), id);
    assert!(complained(&print("\"b\"")).contains("other input"));
    drop(server);
}

#[test]
fn a_role_that_can_do_nothing_else_can_submit_for_its_tenant() {
    let db = own_database("intake_role");
    let server = up(&db, &[]);
    let role = format!("app_{}", std::process::id());
    let url = &db.url;
    ask(url, &format!("CREATE ROLE {role} LOGIN"));
    let at = url.find("://").unwrap() + 3;
    let host = url[at..].split_once('@').unwrap().1;
    let app = format!("{}{role}@{host}", &url[..at]);
    let submit = format!("SELECT tenure.submit('ask', {ASK})");
    assert!(!psql(&app, &submit).status.success(), "nothing was granted yet");
    ask(url, &format!("GRANT USAGE ON SCHEMA tenure TO {role}"));
    assert!(!psql(&app, &submit).status.success(), "the function is not for everybody");
    ask(url, &format!("GRANT EXECUTE ON FUNCTION tenure.submit(text, jsonb, jsonb) TO {role}"));
    ask(url, &format!("INSERT INTO tenure.intake_roles VALUES ('{role}', 'shop')"));
    // Objects of the caller's own are not found by the function.
    let trap = "CREATE TEMP TABLE intake (id uuid); CREATE TEMP TABLE intake_roles (role text, tenant text)";
    let id = ask(&app, &format!("{trap}; {submit}"));
    let other =
        ask(&app, &format!("SELECT tenure.submit('ask', {ASK}, '{{\"tenant\": \"bank\"}}')"));
    for forbidden in ["tenure.heads", "tenure.intake", "tenure.keys", "tenure.intake_roles"] {
        let looked = psql(&app, &format!("SELECT * FROM {forbidden}"));
        assert!(complained(&looked).contains("permission denied"), "{forbidden}");
    }
    empty(&db);
    let tenant = |id: &str| ask(url, &format!("SELECT tenant FROM tenure.heads WHERE id = '{id}'"));
    assert_eq!((tenant(&id).as_str(), tenant(&other).as_str()), ("shop", "shop"));
    assert_eq!(outcome(&db, &other), ("failed".to_owned(), "bad_options".to_owned()));
    drop(server);
    ask(url, &format!("DROP OWNED BY {role}; DROP ROLE {role}"));
}

#[test]
fn a_member_of_a_bound_role_is_bound_and_a_role_without_a_row_is_bound_to_the_default() {
    let db = own_database("intake_group");
    let server = up(&db, &[]);
    let url = &db.url;
    let name = |what: &str| format!("{what}_{}", std::process::id());
    let (group, other, login, stranger) =
        (name("group"), name("other"), name("login"), name("stranger"));
    ask(url, &format!("CREATE ROLE {group} NOLOGIN; CREATE ROLE {other} NOLOGIN"));
    ask(url, &format!("CREATE ROLE {login} LOGIN IN ROLE {group}; CREATE ROLE {stranger} LOGIN"));
    for role in [&group, &stranger] {
        ask(url, &format!("GRANT USAGE ON SCHEMA tenure TO {role}"));
        let grant = "GRANT EXECUTE ON FUNCTION tenure.submit(text, jsonb, jsonb) TO";
        ask(url, &format!("{grant} {role}"));
    }
    ask(
        url,
        &format!("INSERT INTO tenure.intake_roles VALUES ('{group}', 'shop'), ('{other}', 'bank')"),
    );
    let at = url.find("://").unwrap() + 3;
    let host = url[at..].split_once('@').unwrap().1;
    let submit = |role: &str, tenant: Option<&str>| {
        let options = tenant.map_or("{}".to_owned(), |t| format!("{{\"tenant\": \"{t}\"}}"));
        let app = format!("{}{role}@{host}", &url[..at]);
        psql(&app, &format!("SELECT tenure.submit('ask', {ASK}, '{options}')"))
    };
    let became = |output: Output| {
        assert!(output.status.success(), "{}", complained(&output));
        let id = said(&output).trim().to_owned();
        empty(&db);
        let sql = format!("SELECT tenant FROM tenure.heads WHERE id = '{id}'");
        (ask(url, &sql), outcome(&db, &id).1)
    };
    let is = |tenant: &str, reason: &str| (tenant.to_owned(), reason.to_owned());
    assert_eq!(became(submit(&login, None)), is("shop", ""));
    assert_eq!(became(submit(&login, Some("bank"))), is("shop", "bad_options"));
    assert_eq!(became(submit(&stranger, None)), is("default", ""));
    assert_eq!(became(submit(&stranger, Some("shop"))), is("default", "bad_options"));
    // Two groups: one of theirs, by name. A group within a group counts.
    ask(url, &format!("GRANT {other} TO {group}"));
    assert_eq!(became(submit(&login, Some("bank"))), is("bank", ""));
    let either = submit(&login, None);
    assert!(complained(&either).contains("several tenants"), "{}", complained(&either));
    ask(url, &format!("INSERT INTO tenure.intake_roles VALUES ('{stranger}', '*')"));
    assert_eq!(became(submit(&stranger, Some("anybody"))), is("anybody", ""));
    // The owner is bound by nobody's row.
    assert_eq!(
        became(psql(url, &format!("SELECT tenure.submit('ask', {ASK}, '{{\"tenant\": \"x\"}}')"))),
        is("x", "")
    );
    drop(server);
    for role in [&login, &stranger, &group, &other] {
        ask(url, &format!("DROP OWNED BY {role}; DROP ROLE {role}"));
    }
}

/// Ten thousand in one transaction; two servers, one of which is killed in the middle.
#[test]
fn many_rows_become_as_many_jobs_whoever_dies_on_the_way() {
    let count = if fast() { 1_000 } else { 10_000 };
    let db = own_database("intake_many");
    let mut first = up(&db, &[]);
    let second = up(&db, &[]);
    let url = &db.url;
    let sql = format!(
        "CREATE TABLE mine AS SELECT n, tenure.submit('ask', {ASK}) AS job FROM generate_series(1, {count}) n"
    );
    ask(url, &sql);
    let some = (count / 20).to_string();
    wait_until("some jobs", PATIENCE, || {
        jobs(&db).parse::<i64>().unwrap() > some.parse::<i64>().unwrap()
    });
    first.0.kill().unwrap();
    first.0.wait().unwrap();
    empty(&db);
    assert_eq!(jobs(&db), count.to_string());
    let unknown =
        "SELECT count(*) FROM mine m LEFT JOIN tenure.heads h ON h.id = m.job WHERE h.id IS NULL";
    assert_eq!(ask(url, unknown), "0");
    drop(second);
}

/// The job was made and its server died before the row was gone: exactly that is put there.
#[test]
fn a_crash_between_the_job_and_the_row_makes_no_second_job() {
    let db = own_database("intake_crash");
    let server = up(&db, &[]);
    let url = &db.url;
    drop(server);
    for (wish, status) in [(format!("'ask', {ASK}"), "parked"), ("'nobody'".to_owned(), "failed")] {
        let id = ask(url, &format!("SELECT tenure.submit({wish})"));
        ask(url, "DROP TABLE IF EXISTS copy; CREATE TABLE copy AS SELECT * FROM tenure.intake");
        let server = up(&db, &[]);
        empty(&db);
        wait_until("the job", PATIENCE, || outcome(&db, &id).0 == status);
        let version =
            || ask(url, &format!("SELECT count(*) FROM tenure.records WHERE entity = '{id}'"));
        let before = version();
        ask(url, "INSERT INTO tenure.intake SELECT * FROM copy; NOTIFY tenure, 'intake'");
        empty(&db);
        assert_eq!((version(), outcome(&db, &id).0.as_str()), (before, status));
        drop(server);
    }
    assert_eq!(jobs(&db), "2");
}

/// Nobody hears the notification: then it is the tick.
#[test]
fn without_a_bell_rows_are_served_with_the_tick_and_while_nobody_serves_them_it_shows() {
    let db = own_database("intake_bell");
    drop(up(&db, &[]));
    let url = &db.url;
    let id = ask(url, &format!("SELECT tenure.submit('ask', {ASK})"));
    ask(url, "UPDATE tenure.intake SET at = at - 120000000");
    let doctor = tenure().args(["doctor", "--json", "--store", url]).output().unwrap();
    let report = said(&doctor);
    assert!(report.contains("in the table intake"), "{report}");
    // Already waiting at the start; then with every listener thrown out between two ticks.
    let server =
        up(&db, &["--set", "server.tick_seconds=0.3", "--set", "server.pulse_gap_seconds=0.6"]);
    wait_until("the job", PATIENCE, || outcome(&db, &id).0 == "parked");
    let deaf = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'tenure bell %'";
    let submit = format!(
        "INSERT INTO tenure.intake SELECT tenure.new_id(), tenure.moment(), 0, 0, 'default', NULL, NULL, 'test', 'ask', {ASK}, '{{}}'"
    );
    ask(url, deaf);
    // Without any notification at all.
    ask(url, &submit);
    empty(&db);
    assert_eq!(jobs(&db), "2");
    drop(server);
}

#[test]
fn the_example_of_the_documentation_runs() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/transactional-submission.md");
    let page = std::fs::read_to_string(page).unwrap();
    let block = |n: usize| page.split("```sql").nth(n).and_then(|rest| rest.split("```").next());
    let (example, grants) = (block(1).unwrap(), block(2).unwrap());
    let db = own_database("intake_doc");
    let server = up(&db, &[]);
    let ids = ask(&db.url, example);
    assert!(!ids.is_empty());
    empty(&db);
    let shown: Value = serde_json::json!(jobs(&db));
    assert_eq!(shown, "1");
    // A role belongs to the whole server: it is made and forgotten in one transaction.
    ask(&db.url, &format!("BEGIN; CREATE ROLE shop; {grants}; ROLLBACK"));
    drop(server);
}
