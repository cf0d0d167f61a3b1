//! What may be set, and what is said about what may not.

use super::*;
use tenure_agents::desk::Defaults;
use tenure_engine::config::EngineConfig;
use tenure_jobs::drive::JobOptions;
use tenure_pods::{task::model::CleanupWhen, verdict::Policy};

fn load(env: &[(&str, &str)], flags: &[&str]) -> Result<Settings, BadConfig> {
    let env = env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
    let flags: Vec<String> = flags.iter().map(|f| (*f).to_owned()).collect();
    Settings::load(None, env, &flags)
}

#[test]
fn flags_overrule_the_environment_which_overrules_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenure.toml");
    std::fs::write(
        &file,
        "[worker]\nlease_seconds = 20\nrenewal_seconds = 2\n[server]\ntick_seconds = 1.5\n",
    )
    .unwrap();
    let env = [("TENURE_WORKER_LEASE_SECONDS".to_owned(), "30".to_owned())];
    let flags = ["server.tick_seconds=2".to_owned()];
    let s = Settings::load(Some(&file), env, &flags).unwrap();
    let of = |name: &str| {
        s.iter().find(|(k, ..)| k.name == name).map(|(_, v, o)| (v.to_owned(), o.clone())).unwrap()
    };
    assert_eq!(
        of("worker.lease_seconds"),
        ("30".into(), Origin::Environment("TENURE_WORKER_LEASE_SECONDS".into()))
    );
    assert_eq!(of("server.tick_seconds"), ("2".into(), Origin::Flag));
    assert_eq!(of("worker.renewal_seconds").1, Origin::File(file.display().to_string()));
    assert_eq!(of("log.format").1, Origin::Default);
}

#[test]
fn a_bad_value_names_key_value_and_fix() {
    let e = load(&[("TENURE_WORKER_LEASE_SECONDS", "soon")], &[]).unwrap_err().to_string();
    assert_eq!(
        e,
        "environment TENURE_WORKER_LEASE_SECONDS: worker.lease_seconds = \"soon\" is not a number of seconds, such as 15 or 0.5"
    );
    let e = load(&[], &["store.url=mysql://x"]).unwrap_err().to_string();
    assert!(e.contains("sqlite:DIRECTORY"), "{e}");
}

#[test]
fn a_bus_that_can_not_be_is_refused_with_key_value_and_fix() {
    let e = load(&[("TENURE_BUS_URL", "localhost:4222")], &[]).unwrap_err().to_string();
    assert!(e.contains("bus.url") && e.contains("nats://HOST:PORT"), "{e}");
    let e = load(&[], &["bus.url=nats://me:secret@h"]).unwrap_err().to_string();
    assert!(e.contains("bus.credentials_file"), "{e}");
    let e = load(&[], &["bus.prefix=a."]).unwrap_err().to_string();
    assert!(e.contains("is no prefix"), "{e}");
    let e = load(&[], &["bus.jetstream=yes"]).unwrap_err().to_string();
    assert!(e.contains("neither true nor false"), "{e}");
    assert!(load(&[], &["bus.url=nats://h:4222, nats://g:4222", "bus.prefix=acme.prod"]).is_ok());
}

#[test]
fn a_bus_is_nats_or_redis_and_redis_keeps_no_events() {
    assert_eq!(load(&[], &[]).unwrap().bus(), None);
    let nats = load(&[], &["bus.url=nats://h"]).unwrap();
    assert_eq!((nats.bus(), nats.engine().mute), (Some(BusKind::Nats), false));
    let redis = load(&[], &["bus.url=redis://u:p@h:6379/1,rediss://g"]).unwrap();
    assert_eq!((redis.bus(), redis.engine().mute), (Some(BusKind::Redis), true));
    let e = load(&[], &["bus.url=redis://h,nats://g"]).unwrap_err().to_string();
    assert!(e.contains("bus.url") && e.contains("redis://HOST:PORT"), "{e}");
    let e = load(&[], &["bus.url=redis://h", "bus.jetstream=true"]).unwrap_err().to_string();
    assert!(e.contains("bus.jetstream") && e.contains("nats://HOST:PORT"), "{e}");
}

#[test]
fn passwords_in_addresses_are_not_shown() {
    for (value, shown) in [
        ("redis://u:p@h:1,redis://:q@g/3", "redis://u:***@h:1,redis://:***@g/3"),
        ("postgres://me:pw@h/db", "postgres://me:***@h/db"),
        ("postgres://me@h/db", "postgres://me@h/db"),
        ("sqlite:.tenure", "sqlite:.tenure"),
        ("127.0.0.1:6379", "127.0.0.1:6379"),
    ] {
        let key = if value.contains("6379") || value.contains("redis") {
            "redis.addresses"
        } else {
            "store.url"
        };
        let settings = load(&[], &[&format!("{key}={value}")]).unwrap();
        assert_eq!(settings.text(key), shown);
        assert_eq!(settings.address(key).expose(), value);
        let secret = value != shown;
        assert!(!secret || !format!("{settings:?}").contains(value));
    }
    let e = load(&[], &["bus.url=redis://u:s3cret@h:0"]).unwrap_err().to_string();
    assert!(!e.contains("s3cret"), "{e}");
}

#[test]
fn a_misspelt_key_is_refused_with_what_was_meant() {
    let e = load(&[], &["worker.lease_second=3"]).unwrap_err().to_string();
    assert_eq!(
        e,
        "command line: there is no setting \"worker.lease_second\"; did you mean worker.lease_seconds?"
    );
}

#[test]
fn values_that_do_not_fit_together_are_refused() {
    let e = load(&[], &["worker.renewal_seconds=10"]).unwrap_err().to_string();
    assert!(e.contains("more than half"), "{e}");
    let e = load(&[], &["server.tick_seconds=10"]).unwrap_err().to_string();
    assert!(e.contains("one and a half ticks"), "{e}");
    let e = load(&[], &["server.pulse_gap_seconds=11"]).unwrap_err().to_string();
    assert!(e.contains("cost leases unseen"), "{e}");
}

#[test]
fn the_defaults_are_the_named_limits_of_the_kernel() {
    let engine = load(&[], &[]).unwrap().engine();
    let limits = EngineConfig::default();
    assert_eq!(
        (engine.lease, engine.renewal, engine.tick),
        (limits.lease, limits.renewal, limits.tick)
    );
    assert_eq!((engine.pulse_gap, engine.retention), (limits.pulse_gap, limits.retention));
}

#[test]
fn the_defaults_of_jobs_are_those_of_the_library() {
    let (ours, theirs) = (load(&[], &[]).unwrap().jobs(), JobOptions::default());
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
}

#[test]
fn the_defaults_of_agents_are_those_of_the_library() {
    assert_eq!(load(&[], &[]).unwrap().agents(), Defaults::default());
}

#[test]
fn the_defaults_of_tasks_are_those_of_the_library() {
    // How long tasks are kept is the server's to say.
    let kept_for = Some(Duration::from_secs(30 * 86_400));
    let library = tenure_pods::desk::Defaults { kept_for, ..Default::default() };
    assert_eq!(load(&[], &[]).unwrap().pods(), library);
    let s = load(&[("TENURE_PODS_RETRY_OOM", "4")], &["pods.cleanup=always"]).unwrap().pods();
    assert_eq!((s.retry.oom, s.cleanup.when), (4, CleanupWhen::Always));
    let e = load(&[], &["pods.backoff_seconds=400"]).unwrap_err().to_string();
    assert!(e.contains("pods.backoff_max_seconds"), "{e}");
    let given = ["kubernetes.namespace=jobs", "pods.namespaces=acme=ml+ml-dev, beta=*"];
    let who = load(&[], &given).unwrap().pod_bounds().namespaces;
    assert_eq!(who.problem("acme", Some("ml-dev")), None);
    assert!(who.problem("acme", Some("jobs")).is_some());
    assert_eq!(who.problem("other", Some("jobs")), None);
    let e = load(&[], &["pods.namespaces=acme"]).unwrap_err().to_string();
    assert!(e.contains("acme=ml+ml-dev"), "{e}");
    let e = load(&[], &["pods.grants=acme=everything"]).unwrap_err().to_string();
    assert!(e.contains("service-accounts"), "{e}");
    let e = load(&[], &["pods.budget_in_flight=0"]).unwrap_err().to_string();
    assert!(e.contains("1 to 200"), "{e}");
    let listens = |flags: &[&str]| load(&[], flags).unwrap().listens();
    assert!(
        !listens(&[]) && listens(&["redis.addresses=h:6379"]) && listens(&["pods.listen=true"])
    );
    assert!(!listens(&["redis.addresses=h:6379", "pods.listen=false"]));
    assert!(!listens(&["redis.addresses=none"]), "no host is called none");
    let e = load(&[], &["pods.cleanup=maybe"]).unwrap_err().to_string();
    assert!(e.contains("on_success"), "{e}");
}

#[test]
fn a_rule_of_zero_seconds_is_off_and_the_one_that_may_not_be_is_refused() {
    let off = ["pmo.dispatched_retry_seconds=0", "pmo.dispatched_timeout_seconds=-1"];
    let rules = load(&[], &off).unwrap().agents().rules;
    assert_eq!((rules.dispatched_retry_ms, rules.dispatched_timeout_ms), (0, 0));
    for value in ["0", "-5"] {
        let e = load(&[], &[&format!("pmo.active_reap_seconds={value}")]).unwrap_err();
        assert!(e.to_string().contains("out of range"), "{e}");
    }
}

#[test]
fn the_due_loop_looks_as_often_as_anybody_wants_it_to() {
    let s = load(&[], &["pmo.watchdog_interval_seconds=0.5"]).unwrap();
    assert_eq!(s.engine().tick, Duration::from_millis(500));
    assert_eq!(s.agents().rules.tick_ms, 500);
    assert_eq!(s.agents().rules.resume_lease_ms, 10_000);
    let s = load(&[], &["worker.watchdog_interval_seconds=1"]).unwrap();
    assert_eq!(s.agents().rules.resume_lease_ms, 5_000, "never less");
    assert_eq!(s.engine().tick, Duration::from_secs(1));
}

#[test]
fn every_default_is_valid() {
    for key in KEYS {
        assert_eq!(problem_of(key.form, key.default), None, "{}", key.name);
    }
}

#[test]
fn the_settings_of_pods_are_the_defaults_of_their_policy() {
    assert_eq!(load(&[], &[]).unwrap().pod_policy(), Policy::default());
}

#[test]
fn rows_for_the_reason_table_come_from_the_file_and_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tenure.toml");
    let write = |rows: &str| std::fs::write(&file, rows).unwrap();
    write(
        "[[pods.reasons]]\nwhere = \"waiting\"\nreason = \"ErrImagePull\"\nmessage = [\"denied\"]\ncause = \"image_invalid\"\n",
    );
    let settings = Settings::load(Some(&file), [], &[]).unwrap();
    assert_eq!(settings.pod_policy().reasons[0].0.reason, "ErrImagePull");
    write("[[pods.reasons]]\nwhere = \"waiting\"\nreason = \"ErrImagePull\"\ncause = \"imge\"\n");
    let refused = Settings::load(Some(&file), [], &[]).unwrap_err().to_string();
    assert!(refused.contains("pods.reasons") && refused.contains("imge"), "{refused}");
}

#[test]
fn programs_are_for_nobody_and_secrets_for_the_tenant_default_unless_said_otherwise() {
    let settings = load(&[], &[]).unwrap();
    let programs = tenure_tools::Tenants::read(settings.text("tools.command_tenants")).unwrap();
    let secrets = tenure_tools::Grants::read(settings.text("tools.secrets")).unwrap();
    for (tenant, may) in [("default", true), ("acme", false)] {
        assert!(!programs.contain(tenant), "nobody runs programs");
        assert_eq!(secrets.allow(tenant, "TENURE_SECRET_X"), may);
    }
    for bad in ["tools.command_tenants=", "tools.secrets=acme", "tools.command_tenants=a/b"] {
        let refused = load(&[], &[bad]).unwrap_err().to_string();
        assert!(refused.contains("tools."), "{refused}");
    }
}
