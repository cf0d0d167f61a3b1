//! Rate limits: the virtual schedule with takers whose clocks are wrong, and jobs that wait for it.

use crate::support::{Outside, World, config, machines, store};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tenure_bell::InProcess;
use tenure_edge::{SystemClock, TokioRuntime};
use tenure_engine::pipeline::Pipeline;
use tenure_jobs::{
    crew::{Crew, CrewOptions},
    drive::{JobOptions, Shop},
    shared::limit::{
        Limit, Spec, State, Token,
        decide::{self, Take, free_at, join, set, waiting},
        desk::{LimitError, Limits, check, id_of, rate, rate_text},
        model::{EVERYBODY, Event, limits::*},
    },
    submit::Submission,
    view,
};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    judge::Judge,
    machine::{Machine, decode_event},
    runtime::BoxFuture,
    store::{Answer, HeadFilter, Op, Store},
    time::Timestamp,
};
use tenure_proving::layer::{Layer, Layered};
use tenure_steps::{
    Ctx, FlowError,
    flow::{FlowSpec, Flows},
    tool::Tools,
};

pub(crate) fn spec(count: u32, per_ms: u64, burst: u32, block: u32) -> Spec {
    let (tool, tenant) = ("raise".into(), EVERYBODY.into());
    Spec { tool, tenant, count, per_ms, burst, block, by_operator: false, from_each: None }
}

pub(crate) fn at(ms: i64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + ms * 1_000)
}

/// Takes for one tenant, in turn; nothing where there is no token yet.
fn take(state: &State, count: u32, now: Timestamp) -> Option<(Event, Vec<Token>)> {
    take_for("t", true, state, count, now)
}

fn take_for(
    tenant: &str,
    in_turn: bool,
    state: &State,
    count: u32,
    now: Timestamp,
) -> Option<(Event, Vec<Token>)> {
    match decide::take(state, count, (tenant, in_turn), now).expect("there is a limit") {
        Take::Given(event, tokens) => Some((event, tokens)),
        Take::Full => None,
    }
}

/// In every window at most rate × window + burst + `more` of these moments.
fn fits(spec: &Spec, mut moments: Vec<Timestamp>, more: u32) -> Result<(), String> {
    moments.sort();
    let interval = spec.interval().as_nanos();
    for (i, first) in moments.iter().enumerate() {
        for (n, last) in moments.iter().enumerate().skip(i) {
            let window = last.since(*first).as_nanos();
            // A token is good from the next whole microsecond.
            let allowed = (window + 1_000) / interval + u128::from(spec.burst + more);
            let found = (n - i + 1) as u128;
            if found > allowed {
                return Err(format!(
                    "{found} in {window} ns from {first}, and {allowed} are allowed"
                ));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Eight takers read, think, and commit on the version they read. Their clocks are off by seconds and run backwards;
    /// each uses its tokens when it likes, while they are good.
    #[test]
    fn no_window_has_more_than_the_limit_allows_whatever_the_clocks_say(
        (count, per_ms) in prop_oneof![Just((10u32, 1_000u64)), Just((7, 1_000)), Just((90, 60_000)), Just((333, 1_000))],
        burst in 1u32..30,
        block in 1u32..20,
        steps in prop::collection::vec((0usize..8, 0i64..120, -3_000i64..3_000, 1u32..24, 0u32..=100), 40..220),
    ) {
        let spec = spec(count, per_ms, burst, block);
        let mut state = State { spec: Some(spec.clone()), ..State::default() };
        let mut version = 0u64;
        let mut seen: Vec<(u64, State)> = vec![(0, state.clone()); 8];
        let (mut now, mut from, mut used) = (0i64, Vec::new(), Vec::new());
        for (taker, pause, skew, size, when) in steps {
            now += pause;
            let (read, base) = seen[taker].clone();
            let whose = ["a", "b", "c"][taker % 3];
            let taken = take_for(whose, pause % 2 == 0, &base, size, at(now + skew));
            if taken.is_none() && read == version {
                let (event, _) = join(&base, whose, at(now + skew)).unwrap();
                Limit::apply(&mut state, &event);
                version += 1;
            }
            // Compare and set: one that read an older version gets nothing, and reads anew.
            if let Some((event, tokens)) = taken.filter(|_| read == version) {
                Limit::apply(&mut state, &event);
                version += 1;
                for Token { from: good, until, .. } in tokens {
                    from.push(good);
                    let share = until.since(good).mul_f64(f64::from(when) / 100.0);
                    used.push(good + share);
                }
            }
            seen[taker] = (version, state.clone());
        }
        prop_assert_eq!(state.taken, from.len() as u64);
        if let Err(why) = fits(&spec, from, 0) {
            prop_assert!(false, "from: {}", why);
        }
        if let Err(why) = fits(&spec, used, block) {
            prop_assert!(false, "used: {}", why);
        }
    }

    /// Eight takers with good clocks, each waiting for its token: all that the rate allows is used, by all of them.
    #[test]
    fn nothing_starves_and_nothing_is_lost_among_takers_that_wait(
        burst in 1u32..5, order in prop::collection::vec(0usize..8, 400),
    ) {
        let spec = spec(10, 1_000, burst, 1);
        let mut state = State { spec: Some(spec), ..State::default() };
        let mut free_at = [0i64; 8];
        let mut calls = [0u32; 8];
        for now in 0..20_000i64 {
            for taker in &order[..8] {
                if free_at[*taker] > now {
                    continue;
                }
                let (event, tokens) = take(&state, 1, at(now)).unwrap();
                Limit::apply(&mut state, &event);
                free_at[*taker] = now + 1 + tokens[0].from.since(at(now)).as_millis() as i64;
                calls[*taker] += 1;
            }
        }
        let takers: std::collections::BTreeSet<_> = order[..8].iter().collect();
        let total: u32 = calls.iter().sum();
        prop_assert!(total >= 200, "{total} calls in 20 s at 10 a second");
        for taker in takers {
            prop_assert!(calls[*taker] > 0, "{calls:?}");
        }
    }
}

#[test]
fn a_block_takes_nothing_that_is_good_much_later() {
    let slow = State { spec: Some(spec(1, 60_000, 1, 5)), ..State::default() };
    assert_eq!(take(&slow, 5, at(0)).unwrap().1.len(), 1, "one a minute is not hoarded");
    let quick = State { spec: Some(spec(10, 1_000, 1, 100)), ..State::default() };
    assert_eq!(take(&quick, 100, at(0)).unwrap().1.len(), 11, "no more than a second ahead");
}

#[test]
fn what_is_wrong_with_a_limit_is_said_with_its_field() {
    let field = |spec: &Spec| match check(spec) {
        Err(LimitError::Bad { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert!(check(&spec(10, 1_000, 20, 10)).is_ok());
    assert_eq!(field(&spec(0, 1_000, 1, 1)), "rate");
    assert_eq!(field(&spec(10, 1_000, 0, 10)), "burst");
    assert_eq!(field(&spec(1_000, 1_000, 1, 10)), "block", "each block would last 10 ms");
    assert_eq!(field(&Spec { tool: String::new(), ..spec(1, 1_000, 1, 1) }), "tool");
    assert_eq!(rate("10/s").unwrap(), (10, 1_000));
    assert_eq!(rate("600/m").unwrap(), (600, 60_000));
    for bad in ["", "10", "ten/s", "10/fortnight", "-1/s"] {
        assert!(matches!(rate(bad), Err(LimitError::Bad { field: "rate", .. })), "{bad}");
    }
    assert!(check(&spec(1_000, 1_000, 1, Spec::block_for(1_000, 1_000))).is_ok());
}

#[test]
fn nobody_takes_beyond_the_horizon_and_one_tenant_leaves_room_for_the_next() {
    let mut state = State { spec: Some(spec(10, 1_000, 1, 1)), ..State::default() };
    let all = |state: &mut State, tenant: &str, in_turn: bool| {
        let mut last = at(0);
        while let Some((event, tokens)) = take_for(tenant, in_turn, state, 1, at(0)) {
            Limit::apply(state, &event);
            last = tokens[0].from;
        }
        last
    };
    let tenants = ["many", "more", "most"];
    let ends = tenants.map(|tenant| all(&mut state, tenant, true));
    assert_eq!(ends[0], at(0) + HORIZON / 2, "one alone has half of it");
    assert!(ends.is_sorted_by(|a, b| a < b), "and there is room for each that comes: {ends:?}");
    assert!(ends[2] <= at(0) + HORIZON);
    for n in 0..100 {
        let newest = all(&mut state, &format!("tenant {n}"), true);
        assert!(newest <= at(0) + HORIZON);
    }
    assert!(state.held.len() <= TENANTS_MAX);
    // A tenant's own limit is for it alone, and has the same horizon.
    let own = Spec { tenant: "t".into(), ..spec(10, 1_000, 1, 1) };
    let mut own = State { spec: Some(own), ..State::default() };
    assert_eq!(all(&mut own, "t", true), at(0) + HORIZON / 2);
    // And nothing is lost for longer than that, whoever took it.
    assert!(take(&own, 1, at(3_000)).is_some());
}

#[test]
fn a_line_that_comes_is_not_overtaken_by_its_own_tenant_and_one_that_does_not_is_forgotten() {
    let mut state = State { spec: Some(spec(10, 1_000, 1, 1)), ..State::default() };
    while let Some((event, _)) = take(&state, 1, at(0)) {
        Limit::apply(&mut state, &event);
    }
    let mut places = Vec::new();
    for _ in 0..1_000 {
        let (event, place) = join(&state, "t", at(0)).unwrap();
        Limit::apply(&mut state, &event);
        places.push(place);
    }
    let apart = |p: &[Timestamp]| p[1].since(p[0]) == Duration::from_millis(100);
    assert!(places.windows(2).all(apart), "each has its own moment");
    assert_eq!(waiting(&state, at(0)), 1_000);
    for (n, place) in places.iter().enumerate().take(300) {
        // Each comes a second before its turn, and gets what it came for.
        let now = Timestamp::from_micros(place.as_micros() - 1_000_000);
        assert_eq!(take_for("t", false, &state, 1, now), None, "{n}: out of turn");
        let (event, tokens) = take_for("t", true, &state, 1, now).expect("it is its turn");
        assert_eq!(tokens[0].from, *place);
        Limit::apply(&mut state, &event);
        if n == 200 {
            let other = take_for("other", false, &state, 1, now);
            assert!(other.is_some(), "another tenant finds room at any time");
        }
    }
    assert_eq!(waiting(&state, at(30_000)), 700);
    // One of many other tenants stands in a line of its own, and those behind the first few share one.
    let mut many = state.clone();
    for n in 0..2 * TENANTS_MAX {
        let tenant = format!("tenant {n}");
        let (event, place) = join(&many, &tenant, at(30_000)).unwrap();
        assert!(place < at(60_000), "{tenant} waits until {place}");
        Limit::apply(&mut many, &event);
    }
    assert!(many.lines.len() <= TENANTS_MAX + 1);
    // The others are cancelled. Whoever comes finds the limit idle, and the line is no more.
    let (event, tokens) = take_for("t", false, &state, 1, at(60_000)).unwrap();
    assert_eq!(tokens[0].from, at(60_000));
    Limit::apply(&mut state, &event);
    assert_eq!(waiting(&state, at(60_000)), 0);
}

#[test]
fn a_limit_that_is_set_again_as_it_is_forgets_only_what_nobody_may_have_promised() {
    let spec = spec(10, 1_000, 1, 10);
    let mut state = State { spec: Some(spec.clone()), ..State::default() };
    while let Some((event, _)) = take(&state, 1, at(0)) {
        Limit::apply(&mut state, &event);
    }
    assert!(!decide::is_beyond_all(&state, &spec, at(0)), "it would be a present");
    state.next_ns += 3_600_000_000_000;
    assert!(decide::is_beyond_all(&state, &spec, at(0)), "a clock was an hour ahead");
    let event = set(Some(&state), spec, None, at(0));
    Limit::apply(&mut state, &event);
    assert!(take(&state, 1, at(100)).is_some());
}

#[test]
fn a_rate_is_shown_as_it_was_given() {
    for text in ["10/s", "600/m", "1000/h", "5000/d"] {
        let (count, per_ms) = rate(text).unwrap();
        assert_eq!(rate_text(&Spec { count, per_ms, ..Spec::default() }), text);
    }
}

async fn calls(ctx: Ctx, n: u32) -> Result<Value, FlowError> {
    for i in 0..n {
        let _: Value = ctx.tool("raise", json!({ "i": i })).await?;
    }
    Ok(json!(n))
}

async fn at_once(ctx: Ctx, n: u32) -> Result<Value, FlowError> {
    let one = |ctx: Ctx, i: u32| async move { ctx.tool::<Value>("raise", json!({ "i": i })).await };
    for call in ctx.parallel(0..n, one).await {
        call?;
    }
    Ok(json!(n))
}

pub(crate) fn flows() -> Flows {
    Flows::default().with(FlowSpec::new("calls", calls)).with(FlowSpec::new("at_once", at_once))
}

pub(crate) async fn start(outside: &Outside, options: JobOptions) -> World {
    World::start(flows(), Tools::default().with(outside.tool("raise")), options).await
}

pub(crate) async fn limited(world: &World, spec: Spec) {
    Limits(world.node.pipeline.clone()).set(spec, None).await.unwrap();
    world.crew.local().shop.limits.refresh(&world.node.pipeline).await.unwrap();
}

/// When calls began, by the store's clock.
async fn started(store: &Arc<dyn Store>) -> Vec<Timestamp> {
    started_for(store, None).await
}

/// The same, of one tenant.
pub(crate) async fn started_for(store: &Arc<dyn Store>, tenant: Option<&str>) -> Vec<Timestamp> {
    let tenant = tenant.map(str::to_owned);
    let filter = HeadFilter { kind: Some("job".into()), tenant, ..HeadFilter::default() };
    let mut moments = Vec::new();
    for head in store.heads(filter, 10_000).await.unwrap() {
        for record in store.stream(head.id, 1, 10_000).await.unwrap() {
            let events = record.events().unwrap();
            let starts = events.iter().filter(|e| e.name == "tool_invocation_started");
            moments.extend(starts.map(|e| e.at));
        }
    }
    moments.sort();
    moments
}

/// From the first call on, never more than the limit allows: a worker that is slow makes calls later, never sooner.
pub(crate) fn never_ahead(spec: &Spec, moments: &[Timestamp]) {
    let interval = spec.interval().as_nanos();
    for (n, moment) in moments.iter().enumerate() {
        let allowed =
            moment.since(moments[0]).as_nanos() / interval + u128::from(spec.burst + spec.block);
        assert!((n as u128) < allowed, "call {n} after {:?}", moment.since(moments[0]));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_limited_tool_keep_to_its_rate_and_others_pay_nothing() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    world.until_known_empty("calls@1").await;
    let before = world.submit("calls", json!(3)).await;
    world.until(before, "completed").await;
    assert_eq!(world.commits(before).await, 4, "no limit, no more commits");
    let spec = spec(40, 1_000, 4, 20);
    limited(&world, spec.clone()).await;
    let jobs: Vec<EntityId> =
        futures_util::future::join_all((0..10).map(|_| world.submit("calls", json!(5)))).await;
    for job in jobs {
        world.until(job, "completed").await;
    }
    assert_eq!(outside.total(), 53);
    let moments: Vec<_> = started(&world.store).await.split_off(3);
    never_ahead(&spec, &moments);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_wait_is_on_record_and_says_what_for() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    limited(&world, spec(1, 50_000, 1, 1)).await;
    let first = world.submit("calls", json!(1)).await;
    world.until(first, "completed").await;
    let second = world.submit("at_once", json!(40)).await;
    world.until_seen(second, "job_waiting").await;
    let head = world.head(second).await;
    let seen = view::view(&world.store, &head).await.unwrap();
    let why = view::why(&seen, world.store.now().await.unwrap());
    let says = "waits for the rate limit of raise (everybody's together): its turn comes about";
    assert!(why.contains(says), "{why}");
    assert!(world.story(second).await.contains("\"limit:raise\""), "{}", world.story(second).await);
    assert_eq!(
        world.count(second, "tool_invocation_started").await,
        0,
        "it waits before it starts"
    );
    // Forty steps wait behind the first, and a cancel ends them all.
    assert_eq!(world.count(second, "timer_set").await, 1);
    world.cancel(second).await;
    world.until(second, "cancelled").await;
    assert_eq!(outside.total(), 1);
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_comes_back_from_a_long_wait_in_its_turn() {
    for replay_always in [false, true] {
        let outside = Outside::default();
        let world = start(&outside, JobOptions { replay_always, ..JobOptions::default() }).await;
        // A token is good for a minute: a machine under load may be late.
        limited(&world, spec(10, 60_000, 1, 10)).await;
        let job = world.submit("at_once", json!(2)).await;
        world.until(job, "completed").await;
        assert_eq!(outside.total(), 2);
        assert_eq!(world.count(job, "timer_fired").await, 1, "{}", world.story(job).await);
        let taken =
            Limits(world.node.pipeline.clone()).show(EVERYBODY, "raise").await.unwrap().taken;
        assert_eq!(taken, 2, "one look, in its turn");
        let second = due_after_the_first(&world.store, id_of(EVERYBODY, "raise")).await;
        assert!(started(&world.store).await[1].as_micros() * 1_000 >= second);
        world.check().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_waits_for_a_limit_in_memory_can_be_paused_and_cancelled() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    limited(&world, spec(2, 3_000, 1, 1)).await;
    let job = world.submit("calls", json!(20)).await;
    world.until_seen(job, "tool_invocation_finished").await;
    world.ask(job, tenure_jobs::decide::mail::PAUSE).await;
    world.until_paused(job).await;
    world.ask(job, tenure_jobs::decide::mail::RESUME).await;
    world.until(job, "running").await;
    world.cancel(job).await;
    world.until(job, "cancelled").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_removed_holds_nobody_back() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let limits = Limits(world.node.pipeline.clone());
    limited(&world, spec(1, 3_600_000, 1, 1)).await;
    assert_eq!(limits.list(None).await.unwrap().len(), 1);
    limits.remove(EVERYBODY, "raise", None, true).await.unwrap();
    assert!(matches!(limits.show(EVERYBODY, "raise").await, Err(LimitError::Absent { .. })));
    assert!(limits.list(None).await.unwrap().is_empty());
    // Not refreshed: the worker still believes in it, asks, and learns.
    let job = world.submit("calls", json!(5)).await;
    world.until(job, "completed").await;
    assert_eq!(outside.total(), 5);
}

/// When the second token is good, by the limit's own stream: after the first, if that came after a silence.
async fn due_after_the_first(store: &Arc<dyn Store>, limit: EntityId) -> i64 {
    use tenure_jobs::shared::limit::Event;
    for record in store.stream(limit, 1, 10_000).await.unwrap() {
        for event in record.events().unwrap() {
            if let Ok(Some(Event::TokensTaken { next_ns, .. })) =
                decode_event::<Limit>(&event.name, &event.body)
            {
                return next_ns;
            }
        }
    }
    panic!("no token was taken")
}

#[test]
fn a_slip_of_the_rate_holds_nobody_back_once_it_is_mended() {
    let slow = spec(1, 86_400_000, 1, 1);
    let mut state = State { spec: Some(slow), ..State::default() };
    let (event, _) = take(&state, 1, at(0)).unwrap();
    Limit::apply(&mut state, &event);
    for _ in 0..50 {
        assert_eq!(take(&state, 1, at(1)), None, "nobody takes tomorrow's token");
        let (event, _) = join(&state, "t", at(1)).unwrap();
        Limit::apply(&mut state, &event);
    }
    assert!(decide::last_place(&state, at(1)).unwrap() > at(50 * 86_400_000), "that was the slip");
    let quick = spec(100, 1_000, 5, 50);
    let mended = set(Some(&state), quick.clone(), None, at(1_000));
    Limit::apply(&mut state, &mended);
    assert_eq!(waiting(&state, at(1_000)), 0, "nobody waits for a place of the old rate");
    let free = free_at(&state, at(1_000)).unwrap();
    assert!(free <= at(1_000) + quick.interval(), "{free}");
    // A change is no present either: what was taken a moment ago stays taken.
    for _ in 0..5 {
        let (event, _) = take(&state, 1, at(1_100)).unwrap();
        Limit::apply(&mut state, &event);
    }
    let before = state.next_ns;
    let again = set(Some(&state), quick, None, at(1_100));
    Limit::apply(&mut state, &again);
    assert_eq!(state.next_ns, before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_for_a_token_that_is_far_away_is_looked_at_again_within_ten_minutes() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    limited(&world, spec(1, 86_400_000, 1, 1)).await;
    let job = world.submit("at_once", json!(2)).await;
    world.until_seen(job, "job_parked").await;
    let head = world.head(job).await;
    let timer = head.timers.iter().next().unwrap().clone();
    assert!(timer.at <= head.changed_at + Duration::from_secs(600), "it looks again: {timer:?}");
    world.cancel(job).await;
    world.until(job, "cancelled").await;
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_limits_on_one_call_are_both_kept() {
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let all = spec(20, 1_000, 1, 5);
    let tenant = "acme".to_owned();
    let own = Spec { tenant: tenant.clone(), ..spec(15, 1_000, 1, 4) };
    limited(&world, all.clone()).await;
    limited(&world, own.clone()).await;
    let mut jobs = Vec::new();
    for _ in 0..6 {
        let (tenant, flow, input) = (tenant.clone(), "calls".into(), json!(5));
        let submission = Submission { tenant, flow, input, ..Submission::default() };
        jobs.push(world.jobs.submit(submission).await.unwrap().id);
    }
    for job in jobs {
        world.until(job, "completed").await;
    }
    assert_eq!(outside.total(), 30);
    let moments = started(&world.store).await;
    for (whose, spec) in [(EVERYBODY, all), (tenant.as_str(), own)] {
        // No call begins before its token is good, of the slower limit or of the quicker.
        never_ahead(&spec, &moments);
        let taken = given_out(&world.store, id_of(whose, &spec.tool)).await;
        assert!(taken >= 30, "{whose}: {taken}");
    }
    world.check().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_has_its_share_of_the_limit_book() {
    use tenure_jobs::shared::limit::book::LIMITS_PER_TENANT_MAX;
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let limits = Limits(world.node.pipeline.clone());
    let of = |tenant: &str, n: usize| Spec {
        tool: format!("tool{n}"),
        tenant: tenant.into(),
        ..spec(10, 1_000, 1, 10)
    };
    for n in 0..LIMITS_PER_TENANT_MAX {
        limits.set(of("a", n), None).await.unwrap();
    }
    let full = limits.set(of("a", LIMITS_PER_TENANT_MAX), None).await.unwrap_err();
    assert!(matches!(full, LimitError::Bad { field: "tool", .. }), "{full}");
    let id = id_of("a", &format!("tool{LIMITS_PER_TENANT_MAX}"));
    assert!(world.store.head(id).await.unwrap().is_none(), "nothing half-written");
    limits.set(Spec { count: 5, ..of("a", 0) }, None).await.unwrap();
    // Whoever limits the tenant has room all the same, and what they set stays.
    let operators = Spec { by_operator: true, ..of("a", LIMITS_PER_TENANT_MAX) };
    limits.set(operators.clone(), None).await.unwrap();
    let (tool, mine) =
        (&operators.tool, Spec { count: 11, by_operator: false, ..operators.clone() });
    for refused in
        [limits.set(mine, None).await.err(), limits.remove("a", tool, None, false).await.err()]
    {
        assert!(matches!(refused, Some(LimitError::Operators { .. })), "{refused:?}");
    }
    assert_eq!(limits.show("a", tool).await.unwrap().spec, operators);
    // No number of tenants fills the book of another, or the common one.
    for tenant in 0..10 {
        for n in 0..LIMITS_PER_TENANT_MAX {
            limits.set(of(&format!("t{tenant}"), n), None).await.unwrap();
        }
    }
    limits.set(Spec { by_operator: true, ..of(EVERYBODY, 0) }, None).await.unwrap();
    limits.set(of("b", 0), None).await.unwrap();
    assert_eq!(limits.list(None).await.unwrap().len(), 11 * LIMITS_PER_TENANT_MAX + 3);
    assert_eq!(limits.list(Some("b")).await.unwrap().len(), 2);
    limits.remove("a", tool, None, true).await.unwrap();
}

/// Its first half is done and the process dies: the limit is gone, and the book still lists it.
#[tokio::test(flavor = "multi_thread")]
async fn a_removal_that_was_cut_in_half_is_finished_by_asking_again() {
    use tenure_jobs::shared::{
        amend,
        limit::book::{self, LimitBook},
    };
    use tenure_kernel::machine::{Decision, decode_state};
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    let pipeline = world.node.pipeline.clone();
    let limits = Limits(pipeline.clone());
    let listed = || async {
        let head = world.store.head(book::id_of("a")).await.unwrap().unwrap();
        decode_state::<LimitBook>(&head.state).unwrap().limits.len()
    };
    let spec = Spec { tool: "billing/charge".into(), tenant: "a".into(), ..spec(10, 1_000, 1, 10) };
    limits.set(spec.clone(), None).await.unwrap();
    assert_eq!(listed().await, 1, "a tool may have a slash in its name");
    let id = id_of("a", &spec.tool);
    let removed = |_: Option<&State>, _: &tenure_kernel::machine::Cx| {
        Ok::<_, LimitError>(Decision::event(Event::LimitRemoved { by: None }))
    };
    amend::<Limit, LimitError>(&pipeline, id, "a", removed).await.unwrap();
    assert_eq!(listed().await, 1);
    limits.remove("a", &spec.tool, None, false).await.unwrap();
    assert_eq!(listed().await, 0);
    let gone = limits.remove("a", &spec.tool, None, false).await.unwrap_err();
    assert!(matches!(gone, LimitError::Absent { .. }), "{gone}");
}

/// Sets a limit, as another process does, right before the book is written to by this one.
struct SetBetween {
    under: Arc<dyn Store>,
    spec: Spec,
    armed: AtomicBool,
}

impl Layer for SetBetween {
    fn under(&self) -> &dyn Store {
        &*self.under
    }

    fn apply_shared(&self, ops: Arc<Vec<Op>>) -> BoxFuture<'_, Result<Vec<Answer>, StoreError>> {
        Box::pin(async move {
            let strikes = |op: &Op| match op {
                Op::Commit(commit) => commit.events.iter().any(|e| e.name == "limit_struck"),
                _ => false,
            };
            if ops.iter().any(strikes) && self.armed.swap(false, SeqCst) {
                let limits = Limits(pipeline_on(self.under.clone()));
                let set = limits.set(self.spec.clone(), None).await.unwrap();
                assert!(set, "it was removed before");
            }
            self.under.apply_shared(ops).await
        })
    }
}

fn pipeline_on(store: Arc<dyn Store>) -> Pipeline {
    Pipeline::new(store, Arc::new(InProcess::new()), Arc::new(TokioRuntime::current()), &config())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_set_while_it_is_removed_is_there_and_in_its_book_or_neither() {
    for tenant in [EVERYBODY, "a"] {
        let under = store();
        let spec = Spec { tenant: tenant.into(), ..spec(10, 1_000, 1, 10) };
        Limits(pipeline_on(under.clone())).set(spec.clone(), None).await.unwrap();
        let armed = AtomicBool::new(true);
        let between = SetBetween { under: under.clone(), spec: spec.clone(), armed };
        let limits = Limits(pipeline_on(Arc::new(Layered(between))));
        limits.remove(tenant, &spec.tool, None, true).await.unwrap();
        assert_eq!(limits.show(tenant, &spec.tool).await.unwrap().spec, spec);
        // What workers look for stands in the book; what is listed is what they find.
        assert_eq!(limits.list(Some(tenant)).await.unwrap().len(), 1, "{tenant}");
    }
}

/// A limit has neither timer nor mail, and is sealed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_has_grown_long_is_due_to_be_sealed() {
    use tenure_kernel::{
        commit::{Commit, Expect},
        limits::SEGMENT_EVENTS,
        machine::encode_state,
        stream::{Body, NewEvent},
    };
    let outside = Outside::default();
    let world = start(&outside, JobOptions::default()).await;
    limited(&world, spec(1_000_000, 1_000, 1_000_000, 250_000)).await;
    let id = id_of(EVERYBODY, "raise");
    let mut written = world.head(id).await.version;
    while written < SEGMENT_EVENTS {
        let head = world.head(id).await;
        assert_eq!(head.due, None, "nothing is owed at version {}", head.version);
        let mut state = tenure_kernel::machine::decode_state::<Limit>(&head.state).unwrap();
        let mut events = Vec::new();
        for _ in 0..200.min(SEGMENT_EVENTS - written) {
            let (event, _) = take(&state, 1, at(0)).unwrap();
            Limit::apply(&mut state, &event);
            events.push(NewEvent::new(Limit::name(&event), Body::json(&event)));
        }
        let expect = Expect::Nobody { epoch: head.epoch, version: head.version };
        let mut commit = Commit::new(world.node.pipeline.commit_id(), id, expect, events);
        commit.state = Some(encode_state::<Limit>(&state));
        world.node.pipeline.commit(commit).await.unwrap();
        written = world.head(id).await.version;
    }
    world.place.until("it is sealed", async || world.head(id).await.sealed > 0).await;
    world.check().await;
}

/// Workers beside the world's own, each with a pipeline of its own.
pub(crate) async fn seven_more(store: &Arc<dyn Store>, tools: impl Fn() -> Tools) -> Vec<Crew> {
    let mut crews = Vec::new();
    for n in 0..7 {
        let rt = Arc::new(TokioRuntime::current());
        let pipeline = Pipeline::new(store.clone(), Arc::new(InProcess::new()), rt, &config());
        let shop = Arc::new(Shop::new(flows(), tools(), JobOptions::default()));
        let (name, drain) = (format!("crew {n}"), Duration::from_secs(5));
        let options = CrewOptions { name, executor: None, slots: 4, drain };
        crews.push(Crew::start(pipeline, Arc::new(config()), shop, options).await.unwrap());
    }
    crews
}

/// A store in a directory.
pub(crate) fn sqlite(dir: &Path) -> Arc<dyn Store> {
    let (judge, clock) = (Judge::new(machines().tables()), Arc::new(SystemClock));
    Arc::new(tenure_store::sqlite::SqliteStore::open(dir, judge, clock, 1).unwrap())
}

/// Eight workers of their own on one store and one limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn eight_workers_on_one_limit_are_exact_on_sqlite() {
    let dir = tempfile::tempdir().unwrap();
    let store = sqlite(dir.path());
    let outside = Outside::default();
    let tools = || Tools::default().with(outside.tool("raise"));
    let world = World::on(store.clone(), flows(), tools(), JobOptions::default()).await;
    let spec = spec(60, 1_000, 5, 20);
    limited(&world, spec.clone()).await;
    let _crews = seven_more(&store, tools).await;
    let jobs: Vec<EntityId> =
        futures_util::future::join_all((0..40).map(|_| world.submit("calls", json!(4)))).await;
    for job in jobs {
        world.until(job, "completed").await;
    }
    assert_eq!(outside.total(), 160);
    never_ahead(&spec, &started(&store).await);
    let taken = given_out(&store, id_of(EVERYBODY, "raise")).await;
    assert!(taken >= 160, "{taken}");
    world.check().await;
}

/// Tokens by the limit's own stream; each block moves the schedule by at least as many intervals.
pub(crate) async fn given_out(store: &Arc<dyn Store>, limit: EntityId) -> u64 {
    use tenure_jobs::shared::limit::Event;
    let (mut state, mut total) = (State::default(), 0);
    for record in store.stream(limit, 1, 10_000).await.unwrap() {
        for event in record.events().unwrap() {
            let Some(event) = decode_event::<Limit>(&event.name, &event.body).unwrap() else {
                continue;
            };
            if let (Event::TokensTaken { count, next_ns, .. }, Some(spec)) = (&event, &state.spec) {
                let least = i64::from(*count) * i64::try_from(spec.interval().as_nanos()).unwrap();
                assert!(next_ns - state.next_ns >= least);
                total += u64::from(*count);
            }
            Limit::apply(&mut state, &event);
        }
    }
    total
}
