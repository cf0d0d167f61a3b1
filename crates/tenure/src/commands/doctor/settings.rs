//! Configuration that weakens a guarantee: of the database, of the places where things are kept, and each setting.
//! Where a value only makes things slower, it is not here.

use super::{
    diagnose::{Diagnosis, Times, long},
    findings::Findings,
    plural,
};
use std::{collections::BTreeSet, net::SocketAddr, time::Duration};

const DAY: Duration = Duration::from_secs(86_400);
const PAGE: &str = "configuration-and-what-it-guarantees";

fn weak(says: impl Into<String>) -> Diagnosis {
    Diagnosis::warning("settings", says).page(PAGE)
}

/// What the database says about itself.
pub(super) fn database(f: &Findings) -> Vec<Diagnosis> {
    let (mut all, is) = (Vec::new(), |name: &str| f.health.database_setting(name).unwrap_or(""));
    let wrong = |says: &str| Diagnosis::wrong("database", says).page(PAGE);
    let off = [
        (
            "fsync",
            "fsync is off: acknowledged commits are lost, and the database may be damaged, when its machine stops",
        ),
        (
            "full_page_writes",
            "full_page_writes is off: a page that is half written when the machine stops is damaged for good",
        ),
    ];
    for (name, says) in off.iter().filter(|(name, _)| is(name) == "off") {
        all.push(
            wrong(says).remedy(format!("ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")),
        );
    }
    let on = [
        (
            "zero_damaged_pages",
            "zero_damaged_pages is on: damage is answered with empty pages, and history goes silently",
        ),
        (
            "ignore_checksum_failure",
            "ignore_checksum_failure is on: damaged pages are read as if nothing were",
        ),
    ];
    for (name, says) in on.iter().filter(|(name, _)| is(name) == "on") {
        all.push(
            wrong(says).remedy(format!("ALTER SYSTEM SET {name} = off; SELECT pg_reload_conf();")),
        );
    }
    if is("in_recovery") == "true" {
        let d = wrong(
            "this is a standby: servers that write here are refused, and what it shows is behind",
        );
        all.push(d.remedy("point store.url at the primary"));
    }
    let standbys: u64 = is("standbys").parse().unwrap_or(0);
    if standbys > 0 && is("synchronous_standby_names").is_empty() {
        let says = format!(
            "{} copies asynchronously: after a failover to it, commits that were acknowledged may be missing, and what they did outside is done again",
            plural(standbys, "standby")
        );
        let d = Diagnosis::warning("database", says).page(PAGE);
        all.push(d.remedy(
            "set synchronous_standby_names, if you fail over to it by yourself or by a tool",
        ));
    }
    if !matches!(is("journal_mode"), "" | "wal") {
        let says = format!(
            "the journal mode is {}, not wal: somebody else has opened this file",
            is("journal_mode")
        );
        all.push(
            wrong(&says)
                .remedy("stop what else opens tenure.db; a server sets the mode at its start"),
        );
    }
    if all.is_empty() {
        let version =
            f.health.database_setting("server_version").or(f.health.database_setting("version"));
        let kind = if f.health.database_setting("server_version").is_some() {
            "Postgres"
        } else {
            "SQLite"
        };
        let sync = match is("synchronous_commit") {
            "off" | "local" => {
                "; synchronous_commit is weaker by default, and Tenure's connections set it on"
            }
            _ => "",
        };
        all.push(Diagnosis::ok(
            "database",
            format!("{kind} {}: what is acknowledged is on disk{sync}", version.unwrap_or("")),
        ));
    }
    all
}

/// Directories that the settings name.
pub(super) fn places(f: &Findings) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    for place in &f.places {
        let (key, path) = (place.key, place.path.display());
        let system = place.file_system.as_deref().unwrap_or("");
        if !place.exists {
            let d =
                Diagnosis::wrong("disk", format!("{key}: there is no directory {path}")).page(PAGE);
            all.push(d.remedy(
                "create it, or correct the setting; a worker that is started makes it too",
            ));
            continue;
        }
        if matches!(system, "tmpfs" | "ramfs") {
            let d = Diagnosis::wrong(
                "disk",
                format!(
                    "{key}: {path} is memory ({system}): a restart of the machine takes all of it"
                ),
            )
            .page(PAGE);
            all.push(d.remedy("put it on a disk"));
        } else if place.temporary {
            let d = Diagnosis::warning(
                "disk",
                format!("{key}: {path} is a temporary directory, which others may clear"),
            )
            .page(PAGE);
            all.push(d.remedy("put it where nothing is removed, such as /var/lib/tenure"));
        }
        let shared = matches!(
            system,
            "nfs" | "nfs4" | "cifs" | "smb3" | "smbfs" | "9p" | "fuse.sshfs" | "virtiofs"
        );
        if key == "store.url" && shared {
            let d = Diagnosis::wrong("disk", format!("{key}: {path} is on a network file system ({system}), whose locks and syncs SQLite can not rely on")).page(PAGE);
            all.push(
                d.remedy("use a local disk, or Postgres where several machines share the store"),
            );
        }
        if let Some((free, whole)) = place.room
            && (free < 256 << 20 || free < whole / 50)
        {
            let d =
                Diagnosis::warning("disk", format!("{key}: {} MiB are free at {path}", free >> 20))
                    .page("the-disk-is-full");
            all.push(d.remedy(
                "free some space; when it is full, writes are refused and nothing is lost",
            ));
        }
    }
    let machines: BTreeSet<_> = f.sessions.iter().filter_map(|s| s.machine.as_deref()).collect();
    if let Some(place) = f.places.iter().find(|p| p.key == "effects.directory")
        && machines.len() > 1
    {
        let says = format!(
            "effects.directory = {} and sessions on {} machines: a result that a worker left there is found by others only if all share the directory",
            place.path.display(),
            machines.len()
        );
        all.push(
            Diagnosis::warning("disk", says)
                .remedy("put it on storage that all workers mount, or leave it empty")
                .page(PAGE),
        );
    }
    if all.is_empty() && !f.places.is_empty() {
        let said: Vec<String> = f
            .places
            .iter()
            .map(|p| {
                let free =
                    p.room.map_or(String::new(), |(free, _)| format!(", {} MiB free", free >> 20));
                format!(
                    "{} on {}{free}",
                    p.key,
                    p.file_system.as_deref().unwrap_or("a file system")
                )
            })
            .collect();
        all.push(Diagnosis::ok("disk", said.join("; ")));
    }
    all
}

/// Each setting whose value takes something away from a promise.
pub(super) fn settings(f: &Findings, times: &Times) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    all.extend(leases(times));
    all.extend(jobs(f));
    all.extend(steps(f));
    all.extend(serving(f));
    if all.is_empty() {
        all.push(Diagnosis::ok("settings", "no setting weakens a guarantee"));
    }
    all
}

fn leases(times: &Times) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    let (lease, renewal) = (times.lease, times.renewal);
    if renewal * 3 > lease {
        let says = format!(
            "worker.renewal_seconds = {} is more than a third of worker.lease_seconds = {}: one lost renewal, and a late one after it, cost a worker everything it holds",
            renewal.as_secs_f64(),
            lease.as_secs_f64()
        );
        all.push(weak(says).remedy("renew at least three times per lease"));
    }
    if lease < Duration::from_secs(3) {
        let says = format!(
            "worker.lease_seconds = {}: a pause of the machine that is as long takes work from workers that live",
            lease.as_secs_f64()
        );
        all.push(weak(says).remedy("15 is the default; less than 3 is for drills"));
    }
    if lease > Duration::from_secs(120) {
        let says = format!(
            "worker.lease_seconds = {}: for so long nobody goes on with the work of a worker that died on another machine",
            long(lease)
        );
        all.push(weak(says).remedy("15 is the default"));
    }
    if times.tick > Duration::from_secs(30) {
        let says = format!(
            "server.tick_seconds = {}: with bells silent, everything that is due is late by up to this",
            times.tick.as_secs_f64()
        );
        all.push(weak(says).remedy("5 is the default"));
    }
    all
}

fn jobs(f: &Findings) -> Vec<Diagnosis> {
    let (s, mut all) = (&f.settings, Vec::new());
    let takeovers = s.number("job.takeovers_max");
    if takeovers == 0 {
        let d = weak(
            "job.takeovers_max = 0: a job is given up with the first worker that is lost while it holds it",
        );
        all.push(
            d.remedy("5 is the default; with 0 the promise that no job is lost to a crash is gone"),
        );
    }
    if takeovers > 100 {
        let d = weak(format!(
            "job.takeovers_max = {takeovers}: a job that kills its worker may kill {takeovers} of them"
        ));
        all.push(d.remedy("5 is the default"));
    }
    let (bound, step) = (s.seconds("job.must_end_by_seconds"), s.seconds("executor.step_timeout"));
    if bound > DAY * 90 {
        let d = weak(format!(
            "job.must_end_by_seconds is {}: a job that nobody can finish hangs for as long",
            long(bound)
        ));
        all.push(d.remedy("7 days is the default; a submission that needs more can say so"));
    }
    if step >= bound {
        let d = weak(format!(
            "executor.step_timeout is {}, and job.must_end_by_seconds {}: a call that hangs ends its job before it is timed out and tried again",
            long(step),
            long(bound)
        ));
        all.push(d.remedy("make the step's time a fraction of the job's"));
    }
    let retention = s.number("server.retention_days");
    if Duration::from_secs(retention * 86_400) < DAY * 3 {
        let d = weak(format!(
            "server.retention_days = {retention}: an idempotency key is forgotten with its job, and a client that submits again after that has the work done twice"
        ));
        all.push(d.remedy(
            "keep final entities for longer than any client tries again; 30 is the default",
        ));
    }
    all
}

fn steps(f: &Findings) -> Vec<Diagnosis> {
    let (s, mut all) = (&f.settings, Vec::new());
    let step = s.seconds("executor.step_timeout");
    if step > DAY {
        let d = weak(format!(
            "executor.step_timeout is {}: a worker that renews and does nothing is noticed only then",
            long(step)
        ));
        all.push(d.remedy("300 is the default; a tool that needs more can say so itself"));
    }
    let retries = s.number("executor.retry_max");
    if retries == 0 {
        let d = weak(
            "executor.retry_max = 0: the first failure of a tool, however short, fails its step",
        );
        all.push(d.remedy("3 is the default"));
    }
    if retries > 0 && s.seconds("executor.backoff").is_zero() {
        let d = weak(
            "executor.backoff = 0: a tool that fails is called again at once, and a service that is down is called by all jobs together",
        );
        all.push(d.remedy("1 is the default; it doubles, with jitter"));
    }
    if s.seconds("executor.stop_grace").is_zero() {
        let d = weak(
            "executor.stop_grace = 0: a tool that is asked to stop is cut off in the middle, and its effect is unknown more often",
        );
        all.push(d.remedy("2 is the default"));
    }
    if s.seconds("worker.drain_seconds").is_zero() {
        let d = weak(
            "worker.drain_seconds = 0: each deployment cuts running tools off, and leaves their effects unknown",
        );
        all.push(d.remedy("30 is the default; as long as most calls take"));
    }
    all
}

fn serving(f: &Findings) -> Vec<Diagnosis> {
    let (s, mut all) = (&f.settings, Vec::new());
    let outside =
        s.text("server.listen").parse::<SocketAddr>().is_ok_and(|at| !at.ip().is_loopback());
    if outside && f.keys == 0 {
        let d = Diagnosis::wrong(
            "settings",
            format!(
                "server.listen = {} can be reached from outside, and there is no API key: the server does not start",
                s.text("server.listen")
            ),
        );
        all.push(d.remedy("`tenure key create NAME`, or listen on 127.0.0.1").page(PAGE));
    }
    if outside && s.text("server.tls_certificate_file").is_empty() {
        let certificate = "name a certificate in server.tls_certificate_file and server.tls_key_file; docs/security.md makes one";
        let listen = s.text("server.listen");
        all.push(match s.text("server.plain_http") {
            "anywhere" => weak(format!(
                "server.plain_http = anywhere and server.listen = {listen}: keys and payloads can be read on their way"
            ))
            .remedy(certificate),
            _ => Diagnosis::wrong(
                "settings",
                format!(
                    "server.listen = {listen} can be reached from outside, and there is no certificate: the server does not start"
                ),
            )
            .remedy(certificate)
            .page(PAGE),
        });
    }
    if s.seconds("server.patience_seconds") < Duration::from_secs(1) {
        let d = weak(format!(
            "server.patience_seconds = {}: a restart of the database is an error to every client, not a pause",
            s.text("server.patience_seconds")
        ));
        all.push(
            d.remedy("10 is the default; asking again is always safe, so let the server do it"),
        );
    }
    if let Some(weakness) = tenure_postgres::weakness(s.address("store.url").expose()) {
        let d = weak(format!("store.url = {}: {weakness}", s.text("store.url")));
        all.push(d.remedy("add sslmode=verify-full and sslrootcert=FILE to the address"));
    }
    let faults = s.number("server.faults_before_attention");
    if faults > 50 {
        let d = weak(format!(
            "server.faults_before_attention = {faults}: a decision that can not succeed is hidden for as many tries"
        ));
        all.push(d.remedy("5 is the default"));
    }
    if matches!(s.text("log.filter"), "off" | "none") {
        let d = weak("log.filter = off: what goes wrong is said nowhere");
        all.push(d.remedy("info is the default; warn at least"));
    }
    all
}
