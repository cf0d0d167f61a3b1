//! What outsiders may ask, and what becomes of it.

use crate::hands::{Hands, TENANT, sending, spec};
use serde_json::{Value, json};
use tenure_agents::{
    agent::Spec,
    desk::{Defaults, DeskError, Outcome, Sending, letters::Requeue},
    drive::load,
    limits,
    rules::Rules,
    turn::{Turn, act, model::Sort},
    view::{self, ItemStatus, agent_view, detail, forecast, inbox, why},
    words::{EndStatus, ForceFinish, Progress, ResumeNow, Stop, ToolResult, ToolStatus, kinds},
};
use tenure_kernel::{
    ids::{EntityId, MailId},
    mail::NewMail,
    stream::Body,
};
use tenure_proving::stores::{Engine, Place};

const MINE: Option<&str> = Some(TENANT);

tenure_proving::on_every_store! {
    an_agent_is_set_paused_resumed_and_removed,
    what_can_not_be_used_is_refused_with_its_field,
    a_profile_may_be_larger_than_a_head,
    sent_twice_under_one_correlation_id_it_is_one_turn,
    an_action_is_wanted_now_or_never,
    results_are_taken_refused_or_kept_with_a_reason,
    a_result_that_comes_before_the_suspend_is_kept_for_it,
    progress_moves_the_deadline_of_its_wait,
    a_person_stops_resumes_and_finishes_turns,
    a_dead_letter_is_sent_again_for_another_wait_or_put_aside,
    the_views_say_where_a_turn_stands_and_what_is_next,
    why_knows_the_line_and_clocks_that_have_not_begun,
    a_result_that_is_sent_again_does_not_answer_the_next_call_of_its_id,
    a_turn_past_its_retention_is_gone_and_its_agent_is_not,
}

fn answer(wait: &str, result: Value) -> ToolResult {
    ToolResult { wait: Some(wait.to_owned()), result, ..ToolResult::default() }
}

fn code(e: DeskError) -> String {
    match e {
        DeskError::Useless { code, .. } => code,
        other => panic!("{other}"),
    }
}

async fn shown(hands: &Hands, name: &str) -> view::AgentView {
    let (head, state) = hands.desk.agent(TENANT, name).await.unwrap();
    agent_view(&hands.store, &head, state).await.unwrap()
}

async fn items(hands: &Hands, turn: EntityId) -> Vec<inbox::Item> {
    inbox::items(&hands.store, &hands.head(turn).await).await.unwrap()
}

async fn an_agent_is_set_paused_resumed_and_removed(hands: Hands) {
    let desk = &hands.desk;
    assert!(desk.set_agent(TENANT, spec("ada"), None).await.unwrap());
    assert!(!desk.set_agent(TENANT, spec("ada"), None).await.unwrap(), "the same again");
    assert!(desk.pause_agent(TENANT, "ada", None).await.unwrap());
    assert!(!desk.pause_agent(TENANT, "ada", None).await.unwrap());
    let turn = hands.send("ada", "wait for me").await;
    hands.until("in line", async || shown(&hands, "ada").await.queue.len() == 1).await;
    assert_eq!(shown(&hands, "ada").await.status, "idle");
    assert!(desk.resume_agent(TENANT, "ada", None).await.unwrap());
    hands.until_status(turn, "dispatched").await;
    let second = hands.send("ada", "and me").await;
    hands.until("in line", async || shown(&hands, "ada").await.queue.len() == 1).await;
    assert!(desk.remove_agent(TENANT, "ada", None).await.unwrap());
    hands.until_status(second, "failed").await;
    let error = hands.state(second).await.outcome.unwrap().error.unwrap();
    assert_eq!(error.code, "agent_removed");
    assert_eq!(hands.head(turn).await.status.name(), "dispatched", "the active one may end");
    let refused = desk.send(sending("ada", "too late")).await.unwrap_err();
    assert!(matches!(refused, DeskError::AgentRemoved(_)), "{refused}");
    assert!(desk.pause_agent(TENANT, "ada", None).await.is_err());
    assert!(desk.set_agent(TENANT, spec("ada"), None).await.unwrap(), "the name is not used up");
    assert_eq!(shown(&hands, "ada").await.status, "dispatched");
}

async fn what_can_not_be_used_is_refused_with_its_field(hands: Hands) {
    let desk = &hands.desk;
    let field = |e: DeskError| match e {
        DeskError::Bad { field, .. } | DeskError::TooLarge { field, .. } => field,
        other => panic!("{other}"),
    };
    for (name, target, bad) in [("a b", "t", "name"), ("", "t", "name"), ("a", "x.y", "target")] {
        let mut agent = spec("a");
        (agent.name, agent.target) = (name.into(), target.into());
        assert_eq!(field(desk.set_agent(TENANT, agent, None).await.unwrap_err()), bad);
    }
    let mut large = spec("ada");
    let room = limits::PROFILE_BYTES_MAX - json!({ "instructions": "" }).to_string().len();
    large.profile = json!({ "instructions": "x".repeat(room + 1) });
    assert_eq!(field(desk.set_agent(TENANT, large.clone(), None).await.unwrap_err()), "profile");
    large.profile = json!({ "instructions": "x".repeat(room) });
    assert!(desk.set_agent(TENANT, large, None).await.unwrap());
    for subject in ["orders.create", "cmd.sys.x", "tenure.bell.s1", "_INBOX.x", "evt.a", "$JS.API"]
    {
        let mut agent = spec("ada");
        let tool = json!({ "name": "t", "run": { "external": { "subject": subject } } });
        agent.profile = json!({ "tools": [tool] });
        let refused = desk.set_agent(TENANT, agent, None).await.unwrap_err();
        assert_eq!(field(refused), "profile", "{subject}");
    }
    let nobody = desk.send(sending("bob", "hello")).await.unwrap_err();
    assert!(matches!(nobody, DeskError::NoAgent(_)), "{nobody}");
    let silent = Sending { messages: Vec::new(), ..sending("ada", "") };
    assert_eq!(field(desk.send(silent).await.unwrap_err()), "messages");
    let odd = Sending { messages: vec![json!("hello")], ..sending("ada", "") };
    assert_eq!(field(desk.send(odd).await.unwrap_err()), "messages");
    let huge = sending("ada", &"x".repeat(limits::MESSAGE_BYTES_MAX));
    assert_eq!(field(desk.send(huge).await.unwrap_err()), "messages");
    let most = limits::MESSAGE_BYTES_MAX - 40;
    assert!(desk.send(sending("ada", &"x".repeat(most))).await.is_ok());
    let other = desk.agent("other", "ada").await.unwrap_err();
    assert!(matches!(other, DeskError::NoAgent(_)), "another tenant's is not there");
}

/// A head has room for a few kilobytes; a larger profile is read from the event that set it.
async fn a_profile_may_be_larger_than_a_head(hands: Hands) {
    let desk = &hands.desk;
    let with = |bytes: usize| {
        let profile = json!({ "instructions": "x".repeat(bytes) });
        Spec { profile, ..spec("ada") }
    };
    for bytes in [100_000, 50_000, 100, 200_000] {
        let agent = with(bytes);
        assert!(desk.set_agent(TENANT, agent.clone(), None).await.unwrap());
        assert!(!desk.set_agent(TENANT, agent.clone(), None).await.unwrap(), "the same again");
        desk.pause_agent(TENANT, "ada", None).await.unwrap();
        desk.resume_agent(TENANT, "ada", None).await.unwrap();
        assert_eq!(shown(&hands, "ada").await.profile.as_ref(), Some(&agent.profile));
        let read = load::agent(&hands.store, TENANT, "ada").await.unwrap().unwrap();
        assert_eq!((read.profile_at.is_some(), &read.spec), (bytes > 10_000, &agent));
    }
    let turn = hands.send("ada", "go").await;
    hands.until_status(turn, "dispatched").await;
    let (machines, store) = (crate::hands::machines(), &*hands.store);
    let tables = machines.tables();
    let problems = tenure_engine::checkers::check_everything(store, &machines, &tables);
    assert_eq!(problems.await, Vec::<String>::new());
}

async fn sent_twice_under_one_correlation_id_it_is_one_turn(hands: Hands) {
    hands.agent("ada").await;
    let once = Sending { correlation_id: Some("order-7".into()), ..sending("ada", "buy") };
    let first = hands.desk.send(once.clone()).await.unwrap();
    let again = hands.desk.send(once.clone()).await.unwrap();
    assert_eq!((again.turn, first.existed, again.existed), (first.turn, false, true));
    let other = Sending { messages: sending("ada", "sell").messages, ..once.clone() };
    let refused = hands.desk.send(other).await.unwrap_err();
    assert!(matches!(refused, DeskError::OtherInput(turn) if turn == first.turn), "{refused}");
    hands.agent("bob").await;
    let elsewhere = Sending { agent: "bob".into(), ..once };
    assert!(!hands.desk.send(elsewhere).await.unwrap().existed, "the id is the agent's own");
}

async fn an_action_is_wanted_now_or_never(hands: Hands) {
    hands.agent("ada").await;
    let action = Sending {
        sort: Sort::UiAction,
        correlation_id: Some("click".into()),
        ..sending("ada", "refresh")
    };
    let first = hands.desk.send(action.clone()).await.unwrap();
    hands.until_status(first.turn, "dispatched").await;
    let again = hands.desk.send(action.clone()).await.unwrap();
    assert!(again.existed, "a repetition finds its turn");
    let another = Sending { correlation_id: None, ..action };
    let busy = hands.desk.send(another).await.unwrap_err();
    assert!(matches!(busy, DeskError::AgentBusy { .. }), "{busy}");
}

async fn results_are_taken_refused_or_kept_with_a_reason(hands: Hands) {
    let desk = &hands.desk;
    let turn = hands.suspended("ada", &[("call-1", "search"), ("call-2", "search")]).await;
    let unknown = EntityId::fixed(9, 9);
    let nobody = desk.result(MINE, unknown, answer("1.1", json!(1)), None).await.unwrap_err();
    assert!(matches!(nobody, DeskError::NoTurn(_)), "{nobody}");
    let theirs = desk.result(Some("other"), turn, answer("1.1", json!(1)), None).await;
    assert!(matches!(theirs, Err(DeskError::NoTurn(_))));
    let before = hands.head(turn).await;
    let wrong = desk.result(MINE, turn, answer("7.1", json!(1)), None).await.unwrap_err();
    assert_eq!(code(wrong), "unknown_call");
    let nameless = desk.result(MINE, turn, ToolResult::default(), None).await.unwrap_err();
    assert_eq!(code(nameless), "unknown_call");
    let epoch = hands.state(turn).await.turn_epoch;
    for (told, expected) in [(epoch + 1, "epoch_from_the_future"), (epoch - 1, "stale_epoch")] {
        let said = ToolResult { turn_epoch: Some(told), ..answer("1.1", json!(1)) };
        assert_eq!(code(desk.result(MINE, turn, said, None).await.unwrap_err()), expected);
    }
    let huge = answer("1.1", json!("x".repeat(40_000)));
    let huge = desk.result(MINE, turn, huge, None).await.unwrap_err();
    assert!(matches!(huge, DeskError::TooLarge { .. }), "{huge}");
    let after = hands.head(turn).await;
    assert_eq!((before.version, before.mail_count), (after.version, after.mail_count));

    let said = answer("1.1", json!({ "found": 3 }));
    let first = desk.result(MINE, turn, said.clone(), None).await.unwrap();
    assert_eq!(first.outcome, Outcome::Accepted);
    hands.until("applied", async || hands.state(turn).await.waits.len() == 1).await;
    let again = desk.result(MINE, turn, said, None).await.unwrap();
    assert_eq!(again.outcome, Outcome::Already);
    let late = desk.result(MINE, turn, answer("1.1", json!("other")), None).await.unwrap();
    assert_eq!(late.outcome, Outcome::TooLate);
    hands
        .until("noted", async || items(&hands, turn).await.iter().any(|i| i.id == late.item))
        .await;
    let by_call = ToolResult {
        tool_call_id: Some("call-2".into()),
        status: ToolStatus::Failed,
        ..ToolResult::default()
    };
    desk.result(MINE, turn, by_call, Some("my-key")).await.unwrap();
    hands.until_status(turn, "ready").await;
    assert_eq!(hands.state(turn).await.turn_epoch, epoch + 1);
    let mut held = hands.claim("ada").await;
    hands.ask_model(&mut held).await;
    hands.finish(&mut held, json!({ "answer": 42 })).await;
    let over = desk.result(MINE, turn, answer("1.2", json!(2)), None).await.unwrap_err();
    assert!(matches!(over, DeskError::TurnOver { kept: true, .. }), "{over}");
    let kept = items(&hands, turn).await;
    let kept = kept.iter().find(|i| i.code.as_deref() == Some("turn_over")).unwrap();
    assert_eq!((kept.status, &kept.body["result"]), (ItemStatus::Error, &json!(2)));
}

async fn a_result_that_comes_before_the_suspend_is_kept_for_it(hands: Hands) {
    hands.agent("ada").await;
    let turn = hands.send("ada", "find out").await;
    let early = |call: &str| ToolResult {
        tool_call_id: Some(call.into()),
        result: json!("soon"),
        ..ToolResult::default()
    };
    hands.until_status(turn, "dispatched").await;
    let kept = hands.desk.result(MINE, turn, early("call-9"), None).await.unwrap();
    assert_eq!(kept.outcome, Outcome::Kept);
    hands.until("kept", async || hands.state(turn).await.early == ["call-9"]).await;
    let shown = items(&hands, turn).await;
    assert!(shown.iter().any(|i| i.status == ItemStatus::Pending && i.id == kept.item));
    // The same again is the same. Another one is a dead letter, and no item that nobody ever looks at.
    let again = hands.desk.result(MINE, turn, early("call-9"), None).await.unwrap();
    assert_eq!((again.outcome, &again.item), (Outcome::Already, &kept.item));
    let other = ToolResult { result: json!("another"), ..early("call-9") };
    let other = hands.desk.result(MINE, turn, other, None).await.unwrap();
    assert_eq!(other.outcome, Outcome::TooLate);
    hands.until("dead", async || hands.state(turn).await.dead == 1).await;
    let dead = inbox::dead_items(&hands.store, turn).await.unwrap();
    assert_eq!((&dead[0].id, dead[0].code.as_deref()), (&other.item, Some("already_kept")));
    assert_eq!(dead[0].body["result"], "another");
    // What was kept and never asked for says why it was not used.
    hands.desk.stop(MINE, turn, Stop::default()).await.unwrap();
    hands.until_status(turn, "failed").await;
    let shown = items(&hands, turn).await;
    let unused = shown.iter().find(|i| i.id == kept.item).unwrap();
    assert_eq!((unused.status, unused.code.as_deref()), (ItemStatus::Skipped, Some("turn_over")));
    assert_eq!(unused.archived_at, Some(hands.head(turn).await.changed_at));
}

/// Rule `inbox_processing`: a worker had the turn and did nothing. Nobody has it then, and the inbox says so.
#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_was_taken_from_its_worker_is_pending_again() {
    let place = Place::new(Engine::Memory, &crate::hands::machines()).await;
    let rules = Rules { inbox_processing_ms: 20, ..Rules::default() };
    let defaults = Defaults { rules, ..Defaults::default() };
    let hands = Hands::with(place, defaults, std::time::Duration::from_secs(30)).await;
    hands.agent("ada").await;
    let turn = hands.send("ada", "find out").await;
    let mut held = hands.claim("ada").await;
    let (state, cx) = (held.state::<Turn>().unwrap(), hands.cx(&held).await);
    // A step that may take no time to speak of: the rule counts from the claim. It may have fired before this is written.
    let _ = held.record::<Turn>(act::start_step(&state, &cx, 1, Value::Null), &[]).await;
    hands.until("taken back", async || hands.state(turn).await.takeovers == 1).await;
    let head = hands.head(turn).await;
    assert_eq!((head.status.name(), head.holder), ("ready", None));
    let item = inbox::whole(&hands.store, &head).await.unwrap().swap_remove(0);
    assert_eq!((item.id, item.status), (turn.to_string(), ItemStatus::Pending));
    assert_eq!((item.processed_at, item.archived_at), (None, None));
}

/// The answer to a result got lost, the turn went on, and its model uses the same id again.
async fn a_result_that_is_sent_again_does_not_answer_the_next_call_of_its_id(hands: Hands) {
    let desk = &hands.desk;
    let turn = hands.suspended("ada", &[("call_0", "search")]).await;
    let said = ToolResult { tool_call_id: Some("call_0".into()), ..ToolResult::default() };
    let first = desk.result(MINE, turn, said.clone(), Some("K")).await.unwrap();
    assert_eq!(first.outcome, Outcome::Accepted);
    let mut held = hands.claim("ada").await;
    hands.ask_model(&mut held).await;
    hands.suspend(&mut held, &[("call_0", "search")]).await;
    let again = desk.result(MINE, turn, said.clone(), Some("K")).await.unwrap();
    assert_eq!(again.outcome, Outcome::Already);
    let bare = desk.result(MINE, turn, said.clone(), None).await.unwrap_err();
    assert_eq!(code(bare), "ambiguous_call");
    assert_eq!(hands.state(turn).await.waits[0].id, "2.1", "still open");
    let epoch = hands.state(turn).await.turn_epoch;
    let exact = ToolResult { turn_epoch: Some(epoch), ..said };
    desk.result(MINE, turn, exact, None).await.unwrap();
    hands.until_status(turn, "ready").await;
}

async fn why_knows_the_line_and_clocks_that_have_not_begun(hands: Hands) {
    let said = async |turn| {
        let view = view::turn_view(&hands.store, &hands.head(turn).await).await.unwrap();
        (why(&view, hands.store.now().await.unwrap()), view)
    };
    hands.agent("ada").await;
    hands.desk.pause_agent(TENANT, "ada", None).await.unwrap();
    let turn = hands.send("ada", "wait").await;
    hands.until("in line", async || said(turn).await.1.line.is_some()).await;
    let (told, _) = said(turn).await;
    assert!(told.contains("paused") && told.contains("tenure agent resume ada"), "{told}");
    hands.desk.resume_agent(TENANT, "ada", None).await.unwrap();
    hands.until_status(turn, "dispatched").await;
    let second = hands.send("ada", "wait").await;
    hands.until("in line", async || said(second).await.1.line.is_some()).await;
    assert!(said(second).await.0.contains("one turn is before it"), "{}", said(second).await.0);
    // Resumed, and every worker is busy: nobody can lose what nobody has.
    let mut held = hands.claim("ada").await;
    hands.ask_model(&mut held).await;
    hands.suspend(&mut held, &[("c", "search")]).await;
    hands.desk.result(MINE, turn, answer("1.1", json!(1)), None).await.unwrap();
    hands.until_status(turn, "ready").await;
    let (told, view) = said(turn).await;
    assert!(!told.contains("loses it"), "{told}");
    let rules: Vec<&str> = view.next_rules.iter().map(|r| r.rule.as_str()).collect();
    assert!(!rules.contains(&"resume_lease") && rules.contains(&"active_reap"), "{rules:?}");
    let _held = hands.claim("ada").await;
    let (_, view) = said(turn).await;
    assert!(view.next_rules.iter().any(|r| r.rule == "resume_lease"));
    // Given back: nobody was lost.
    let mut given_back = view;
    (given_back.holder, given_back.resumed) = (None, false);
    let told = why(&given_back, hands.store.now().await.unwrap());
    assert!(told.contains("given it back") && !told.contains("0 of"), "{told}");
}

/// A worker hangs, and a rule ends the turn: what was accepted meanwhile is shown with its reason.
#[tokio::test]
async fn what_nobody_read_before_the_end_is_shown() {
    let mut defaults = tenure_agents::desk::Defaults::default();
    // Before a claim the reaper's clock has this time as well.
    defaults.rules.dispatched_timeout_ms = 0;
    defaults.rules.active_reap_ms = 1_500;
    defaults.rules.inbox_processing_ms = 0;
    let lease = std::time::Duration::from_secs(30);
    let place = Place::new(Engine::Memory, &crate::hands::machines()).await;
    let hands = Hands::with(place, defaults, lease).await;
    hands.agent("ada").await;
    let turn = hands.send("ada", "find out").await;
    let _held = hands.claim("ada").await;
    let early = ToolResult { tool_call_id: Some("c".into()), ..ToolResult::default() };
    let result = hands.desk.result(MINE, turn, early, None).await.unwrap();
    let finish = ForceFinish { deliverable: json!("mine"), ..ForceFinish::default() };
    let finish = hands.desk.force_finish(MINE, turn, finish).await.unwrap();
    hands.until_status(turn, "failed").await;
    let items = items(&hands, turn).await;
    for id in [&result.item, &finish.item] {
        let item = items.iter().find(|i| i.id == *id).unwrap();
        assert_eq!((item.status, item.code.as_deref()), (ItemStatus::Skipped, Some("turn_over")));
    }
}

async fn progress_moves_the_deadline_of_its_wait(hands: Hands) {
    let turn = hands.suspended("ada", &[("c", "search")]).await;
    let before = hands.state(turn).await.resume_deadline().unwrap();
    let said = Progress { wait: Some("1.1".into()), note: "half".into(), ..Progress::default() };
    hands.desk.progress(MINE, turn, said, None).await.unwrap();
    hands
        .until("moved", async || hands.state(turn).await.resume_deadline().unwrap() > before)
        .await;
    let nobody = Progress { wait: Some("9.9".into()), ..Progress::default() };
    let refused = hands.desk.progress(MINE, turn, nobody, None).await.unwrap_err();
    assert_eq!(code(refused), "unknown_call");
}

async fn a_person_stops_resumes_and_finishes_turns(hands: Hands) {
    let desk = &hands.desk;
    let turn = hands.suspended("ada", &[("c", "search"), ("d", "buy")]).await;
    let wrong = ResumeNow { wait: Some("8.8".into()), ..ResumeNow::default() };
    assert_eq!(code(desk.resume_now(MINE, turn, wrong).await.unwrap_err()), "unknown_call");
    let one =
        ResumeNow { wait: Some("1.2".into()), by: Some("eve".into()), ..ResumeNow::default() };
    desk.resume_now(MINE, turn, one).await.unwrap();
    hands.until("one less", async || hands.state(turn).await.waits.len() == 1).await;
    desk.resume_now(MINE, turn, ResumeNow::default()).await.unwrap();
    hands.until_status(turn, "ready").await;
    let not_now = desk.resume_now(MINE, turn, ResumeNow::default()).await.unwrap_err();
    assert!(matches!(not_now, DeskError::NotNow { .. }), "{not_now}");

    let finish = ForceFinish {
        status: EndStatus::Partial,
        deliverable: json!({ "so": "far" }),
        by: Some("eve".into()),
        ..ForceFinish::default()
    };
    let never = ForceFinish { status: EndStatus::Canceled, ..finish.clone() };
    assert!(matches!(
        desk.force_finish(MINE, turn, never).await,
        Err(DeskError::Bad { field: "status", .. })
    ));
    desk.force_finish(MINE, turn, finish.clone()).await.unwrap();
    hands.until_status(turn, "partial").await;
    let end = view::detail::end_of(&hands.store, turn).await.unwrap().unwrap();
    assert_eq!(end.deliverable.unwrap().content, json!({ "so": "far" }));
    assert_eq!(end.forced.unwrap().by.as_deref(), Some("eve"));
    let over = desk.force_finish(MINE, turn, finish).await.unwrap_err();
    assert!(matches!(over, DeskError::TurnOver { kept: false, .. }), "{over}");

    desk.pause_agent(TENANT, "ada", None).await.unwrap();
    let waiting = hands.send("ada", "never mind").await;
    let future = Stop { turn_epoch: Some(99), ..Stop::default() };
    let refused = desk.stop(MINE, waiting, future).await.unwrap_err();
    assert_eq!(code(refused), "epoch_from_the_future");
    desk.stop(MINE, waiting, Stop::default()).await.unwrap();
    hands.until_status(waiting, "canceled").await;
    let view = view::turn_view(&hands.store, &hands.head(waiting).await).await.unwrap();
    assert_eq!(inbox::turn_item(&view).status, ItemStatus::Skipped);
}

async fn post(hands: &Hands, turn: EntityId, id: &str, kind: &'static str, body: Value) {
    let body = Body::json(&body);
    let mail = NewMail { to: turn, id: MailId(id.into()), kind: kind.into(), body };
    hands.node.pipeline.mail(mail).await.unwrap();
}

async fn a_dead_letter_is_sent_again_for_another_wait_or_put_aside(hands: Hands) {
    let desk = &hands.desk;
    let turn = hands.suspended("ada", &[("c", "search"), ("d", "buy")]).await;
    // As somebody would who does not use the desk.
    let wrong = json!({ "tool_call_id": "x", "turn_epoch": 900, "result": { "n": 1 } });
    post(&hands, turn, "stray", kinds::TOOL_RESULT, wrong).await;
    post(&hands, turn, "noise", "banana", json!({})).await;
    hands.until("both dead", async || hands.state(turn).await.dead == 2).await;
    let dead = inbox::dead_items(&hands.store, turn).await.unwrap();
    let codes: Vec<_> = dead.iter().filter_map(|d| d.code.as_deref()).collect();
    assert_eq!(codes, ["epoch_from_the_future", "unknown_type"]);
    let view = view::turn_view(&hands.store, &hands.head(turn).await).await.unwrap();
    let now = hands.store.now().await.unwrap();
    assert!(why(&view, now).contains("2 dead letters"), "{}", why(&view, now));

    let none = desk.skip(MINE, turn, "nothing", None).await.unwrap_err();
    assert!(matches!(none, DeskError::NoItem { .. }), "{none}");
    let how = Requeue { wait: Some("1.2".into()), by: Some("eve".into()) };
    desk.requeue(MINE, turn, "stray", how.clone()).await.unwrap();
    hands.until("applied", async || hands.state(turn).await.waits.len() == 1).await;
    assert_eq!(hands.state(turn).await.waits[0].id, "1.1", "the other wait was answered");
    desk.skip(MINE, turn, "noise", None).await.unwrap();
    hands.until("none left", async || hands.state(turn).await.dead == 0).await;
    let gone = desk.requeue(MINE, turn, "stray", how).await.unwrap_err();
    assert!(matches!(gone, DeskError::NoItem { .. }), "a letter is dealt with once: {gone}");
    let statuses = items(&hands, turn).await;
    let of = |id: &str| statuses.iter().find(|i| i.id == id).unwrap().status;
    assert_eq!((of("stray"), of("noise")), (ItemStatus::Requeued, ItemStatus::Skipped));

    post(&hands, turn, "later", "banana", json!({})).await;
    hands.until("dead", async || hands.state(turn).await.dead == 1).await;
    desk.stop(MINE, turn, Stop::default()).await.unwrap();
    hands.until_status(turn, "failed").await;
    let over = desk.requeue(MINE, turn, "later", Requeue::default()).await.unwrap_err();
    assert!(matches!(over, DeskError::TurnOver { .. }), "{over}");
    let view = view::turn_view(&hands.store, &hands.head(turn).await).await.unwrap();
    assert_eq!(view.dead_letters, 1);
    desk.skip(MINE, turn, "later", None).await.unwrap();
    assert!(inbox::dead_items(&hands.store, turn).await.unwrap().is_empty());
    let view = view::turn_view(&hands.store, &hands.head(turn).await).await.unwrap();
    assert_eq!(view.dead_letters, 0, "put aside after the end");
}

async fn the_views_say_where_a_turn_stands_and_what_is_next(hands: Hands) {
    hands.agent("ada").await;
    let turn = hands.send("ada", "find out").await;
    hands.until_status(turn, "dispatched").await;
    let now = hands.store.now().await.unwrap();
    let head = hands.head(turn).await;
    let rules: Vec<_> = forecast(&head, now).into_iter().map(|f| (f.rule, f.ends)).collect();
    let ends = |rule: &str| {
        rules.iter().find(|(r, _)| r == rule).unwrap_or_else(|| panic!("{rule}")).1.clone()
    };
    assert_eq!(rules[0].0, "pending_wakeup", "{rules:?}");
    assert_eq!(ends("dispatched_timeout").as_deref(), Some("timeout"));
    assert_eq!(ends("must_end_by").as_deref(), Some("timeout"));
    let later = forecast(&head, now + std::time::Duration::from_secs(40));
    assert!(later.iter().any(|f| f.rule == "dispatched_timeout" && f.now));
    assert_eq!(hands.head(turn).await.version, head.version, "nothing was written");
    let view = view::turn_view(&hands.store, &head).await.unwrap();
    assert_eq!(inbox::turn_item(&view).status, ItemStatus::Pending);
    assert!(why(&view, now).contains("no worker of target ada"), "{}", why(&view, now));

    let mut held = hands.claim("ada").await;
    hands.ask_model(&mut held).await;
    let view = view::turn_view(&hands.store, &hands.head(turn).await).await.unwrap();
    assert_eq!((view.status.as_str(), view.step), ("running", 1));
    assert_eq!(view.holder.as_ref().unwrap().name, "hands");
    assert_eq!(inbox::turn_item(&view).status, ItemStatus::Processing);
    let taken = inbox::whole(&hands.store, &hands.head(turn).await).await.unwrap().swap_remove(0);
    assert!(taken.processed_at.is_some_and(|at| at >= view.created_at), "{taken:?}");
    assert_eq!((taken.status, taken.archived_at), (ItemStatus::Processing, None));
    assert!(why(&view, now).contains("asks the model for step 1"), "{}", why(&view, now));
    hands.suspend(&mut held, &[("c", "search")]).await;
    assert_eq!(shown(&hands, "ada").await.status, "suspended");
    let view = view::turn_view(&hands.store, &hands.head(turn).await).await.unwrap();
    assert_eq!(inbox::turn_item(&view).status, ItemStatus::Consumed);
    let read = inbox::whole(&hands.store, &hands.head(turn).await).await.unwrap().swap_remove(0);
    assert_eq!((read.processed_at, read.archived_at), (taken.processed_at, Some(view.changed_at)));
    assert!(why(&view, now).contains("waits for search (1.1"), "{}", why(&view, now));
    let next = forecast(&hands.head(turn).await, now);
    assert_eq!((next[0].rule.as_str(), next[0].wait.as_deref()), ("tool_timeout", Some("1.1")));
    assert_eq!(next[0].events, ["wait_timed_out", "turn_resumed"]);

    hands.desk.result(MINE, turn, answer("1.1", json!({ "n": 1 })), None).await.unwrap();
    let mut held = hands.claim("ada").await;
    hands.ask_model(&mut held).await;
    hands.finish(&mut held, json!({ "answer": 42 })).await;
    let whole = detail(&hands.store, &hands.head(turn).await).await.unwrap();
    assert_eq!(whole.messages[0]["content"], "find out");
    assert_eq!(whole.steps.len(), 2);
    let call = &whole.steps[0].calls[0];
    assert_eq!((call.tool.as_str(), call.status.as_deref()), ("search", Some("success")));
    assert_eq!(whole.end.unwrap().deliverable.unwrap().content, json!({ "answer": 42 }));
    assert!(forecast(&hands.head(turn).await, now).is_empty());
    hands.until("closed", async || shown(&hands, "ada").await.recent.len() == 1).await;
    let agent = shown(&hands, "ada").await;
    assert_eq!((agent.status.as_str(), agent.recent[0].status.as_str()), ("idle", "success"));
    let (machines, store) = (crate::hands::machines(), &*hands.store);
    let tables = machines.tables();
    let problems = tenure_engine::checkers::check_everything(store, &machines, &tables);
    assert_eq!(problems.await, Vec::<String>::new());
}

/// Retention drops whole turns that are over. Their agent stays, with what it remembers of them, and those that are open.
async fn a_turn_past_its_retention_is_gone_and_its_agent_is_not(hands: Hands) {
    hands.agent("ada").await;
    let named = Sending { correlation_id: Some("n-1".into()), ..sending("ada", "first") };
    let turn = hands.desk.send(named.clone()).await.unwrap().turn;
    let mut held = hands.claim("ada").await;
    hands.ask_model(&mut held).await;
    hands.finish(&mut held, json!(1)).await;
    hands.until("its end is read", async || shown(&hands, "ada").await.status == "idle").await;
    assert!(hands.desk.send(named.clone()).await.unwrap().existed);
    let open = hands.suspended("ada", &[("c", "search")]).await;
    let gone = async || {
        // What is due is what ended before now; it goes once nothing of it is left to be delivered.
        let now = hands.store.now().await.unwrap();
        hands.store.retire(now, 100).await.unwrap();
        hands.store.head(turn).await.unwrap().is_none()
    };
    hands.until("it is gone", gone).await;
    assert!(hands.store.stream(turn, 1, 9).await.unwrap().is_empty());
    let missing = hands.desk.result(MINE, turn, answer("1.1", json!(1)), None).await;
    assert!(matches!(missing, Err(DeskError::NoTurn(_))), "{missing:?}");
    assert_eq!(hands.head(open).await.status.name(), "suspended", "open ones stay");
    let agent = shown(&hands, "ada").await;
    assert_eq!(agent.recent[0].turn, turn, "what it remembers is its own");
    // The name is free again, and names another turn.
    let again = hands.desk.send(named).await.unwrap();
    assert!(!again.existed && again.turn != turn);
}
