//! The thin slice, end to end: a process that works on the embedded store is killed in the middle of
//! its work, another takes over, and every effect happened once.

use crate::support::{complained, run, said};

#[test]
fn work_whose_process_is_killed_in_the_middle_is_done_and_each_effect_happened_once() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["demo", "--json", "--errands", "4", "--keep", "data"], dir.path());
    assert!(output.status.success(), "{}", complained(&output));
    let told: serde_json::Value = serde_json::from_str(&said(&output)).unwrap();
    assert_eq!(told["done"], 4);
    assert_eq!(told["effects"], 8, "every step had its effect");
    let calls = told["calls"].as_u64().unwrap();
    assert!(
        (9..=12).contains(&calls),
        "those whose answers were lost were asked for again: {calls}"
    );
    assert_eq!(told["kept"], true);

    let store = ["--store", "sqlite:data"];
    let verified = run(&[&store[..], &["verify"]].concat(), dir.path());
    assert_eq!(said(&verified), "every stream is intact\n", "{}", complained(&verified));
    let rules = run(&[&store[..], &["rules", "--json"]].concat(), dir.path());
    let rules: serde_json::Value = serde_json::from_str(&said(&rules)).unwrap();
    let fired = |name: &str| {
        let row = rules.as_array().unwrap().iter().find(|r| r["rule"] == name).unwrap();
        row["fired"].as_u64().unwrap()
    };
    // The dead worker and the dead server, their lanes, and the errand that was held.
    assert!(fired("holder_check") >= 3, "{rules}");
    assert_eq!(fired("must_end_by"), 0);
}

#[test]
fn the_demo_tells_its_story_in_words_and_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let output = run(&["demo", "--errands", "1"], dir.path());
    let story = said(&output);
    assert!(output.status.success(), "{story}{}", complained(&output));
    for words in [
        "was killed right after",
        "taken over",
        "1 of 1 errands are done",
        "2 effects were asked for, the outside world has 2",
    ] {
        assert!(story.contains(words), "{words:?} is missing in:\n{story}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}
