//! Settings and surroundings that weaken what `docs/security.md` promises.

use super::{diagnose::Diagnosis, findings::Findings, plural};
use crate::config::Settings;
use ipnet::IpNet;
use reqwest::Url;
use std::net::IpAddr;
use tenure_tools::Tenants;

const PAGE: &str = "configuration-and-what-it-guarantees";

fn weak(says: impl Into<String>) -> Diagnosis {
    Diagnosis::warning("security", says).page(PAGE)
}

/// All of them.
pub(super) fn security(f: &Findings) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    all.extend(callers(f));
    all.extend(programs(f));
    all.extend(grants(&f.settings));
    all.extend(egress(&f.settings));
    all.extend(clear_text(&f.settings));
    all.extend(files(f));
    if all.is_empty() {
        all.push(Diagnosis::ok("security", "no setting weakens what docs/security.md promises"));
    }
    all
}

/// Who calls, and how much.
fn callers(f: &Findings) -> Vec<Diagnosis> {
    let (s, mut all) = (&f.settings, Vec::new());
    let open = !s.is_on("server.require_keys")
        && s.text("tools.command_tenants") == "none"
        && s.text("server.listen")
            .parse::<std::net::SocketAddr>()
            .is_ok_and(|at| at.ip().is_loopback());
    let remedy = "set server.require_keys = true; behind a proxy always, because one that adds no header cannot be recognised";
    if open && f.accounts > 1 {
        let says = format!(
            "server.require_keys = false, and this machine has {} that people sign in to: each of them has the tenant default without a key",
            plural(f.accounts, "account")
        );
        all.push(weak(says).remedy(remedy));
    } else if open && f.key_tenants.iter().any(|tenant| tenant != "default") {
        let says = "server.require_keys = false, and tenants have keys: callers on this machine, and those of a proxy on it, need none for the tenant default";
        all.push(weak(says).remedy(remedy));
    }
    if f.key_tenants.len() > 1 && s.text("server.quotas").trim().is_empty() {
        let says = format!(
            "server.quotas is empty, and {} have keys: one of them can fill the store and the queues of all",
            plural(f.key_tenants.len(), "tenant")
        );
        all.push(
            weak(says).remedy("set server.quotas, such as *=open:10000+bytes:10GiB+per_second:100"),
        );
    }
    all
}

/// Programs on this machine.
fn programs(f: &Findings) -> Vec<Diagnosis> {
    let (s, mut all) = (&f.settings, Vec::new());
    let tenants = s.text("tools.command_tenants");
    if tenants == "none" {
        return all;
    }
    let whose = match Tenants::read(tenants) {
        Ok(Tenants::All) => "every tenant".to_owned(),
        _ => tenants.to_owned(),
    };
    let says = format!(
        "tools.command_tenants = {tenants}: everybody who submits jobs of {whose} runs programs as the user of the worker"
    );
    all.push(weak(says).remedy(
        "name only tenants whose submitters may do so, and run workers under a user of their own",
    ));
    if !f.confines_files {
        let says = "the kernel of this machine has no Landlock: programs of the tool command read and write every file that the worker's user can, and read the environment of its other processes";
        all.push(weak(says).remedy("use a kernel with Landlock (5.13 or later, with landlock among its security modules), or a user or container for the worker alone"));
    }
    if s.text("tools.command_writable").trim() == "*" {
        let says = "tools.command_writable = *: programs of the tool command write wherever the worker's user can";
        all.push(weak(says).remedy("name the directories that they need"));
    }
    all
}

/// What belongs to the operator.
fn grants(s: &Settings) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    let secrets = s.text("tools.secrets");
    let entries = secrets.split(',').filter_map(|part| part.trim().split_once('='));
    let wide = |(tenant, names): &(&str, &str)| {
        let every = names.split('+').any(|name| name.trim() == "*");
        tenant.trim() == "*" || (every && tenant.trim() != "default")
    };
    if let Some((tenant, names)) = entries.clone().find(wide) {
        let says = format!(
            "tools.secrets gives {} to {}: jobs and agents of that tenant may send each of them anywhere",
            names.trim(),
            tenant.trim()
        );
        all.push(
            weak(says).remedy("name the secrets that a tenant needs, such as acme=TENURE_SECRET_A"),
        );
    }
    if s.text("llm.tenants").trim() == "*" {
        let says = "llm.tenants = *: every tenant uses the operator's model, and its key is charged for it";
        all.push(weak(says).remedy("name the tenants"));
    }
    all
}

/// Where tools connect to.
fn egress(s: &Settings) -> Vec<Diagnosis> {
    let entries = s.text("egress.allow").split(',').filter_map(|part| part.trim().split_once('='));
    let mut all = Vec::new();
    for (tenant, allowed) in entries {
        for entry in allowed.split('+').map(str::trim) {
            if let Some(why) = too_wide(entry) {
                let says = format!(
                    "egress.allow lets tools of {} connect to {entry}: {why}",
                    tenant.trim()
                );
                all.push(weak(says).remedy(
                    "name the hosts and ports that the tenant needs, such as billing.internal:443",
                ));
            }
        }
    }
    all
}

fn too_wide(entry: &str) -> Option<&'static str> {
    const METADATA: [u8; 4] = [169, 254, 169, 254];
    let net = entry.parse::<IpNet>().ok().or_else(|| Some(entry.parse::<IpAddr>().ok()?.into()))?;
    let reaches = |ip: IpAddr| net.contains(&ip);
    let wide = match net {
        IpNet::V4(net) => net.prefix_len() < 12,
        IpNet::V6(net) => net.prefix_len() < 48,
    };
    if reaches(METADATA.into()) {
        Some("that is where a cloud keeps the credentials of this machine")
    } else if reaches(IpAddr::from([127, 0, 0, 1]))
        || reaches(IpAddr::from([0, 0, 0, 0, 0, 0, 0, 1]))
    {
        Some("that is this machine, with everything that listens on it alone")
    } else if wide {
        Some("that is more than one network")
    } else {
        None
    }
}

/// What goes over a network as it is. The database and the server's own address are looked at with the other settings.
fn clear_text(s: &Settings) -> Vec<Diagnosis> {
    let mut all = Vec::new();
    for (key, clear) in [("llm.base_url", &["http"][..]), ("bus.url", &["nats", "redis"][..])] {
        let value = s.text(key);
        let scheme = value.split("://").next().unwrap_or_default();
        if clear.contains(&scheme) && is_far(value) {
            let says = format!(
                "{key} begins with {scheme}://: what is sent there, keys and passwords too, goes in clear text"
            );
            all.push(weak(says).remedy("use the address with TLS"));
        }
    }
    all
}

/// Whether an address is of another machine. One that cannot be read is refused elsewhere.
fn is_far(address: &str) -> bool {
    let Ok(url) = Url::parse(address) else { return false };
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let near = host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    !(near || host.is_empty() || host == "localhost" || host.starts_with('/'))
}

/// Who reads what is stored.
fn files(f: &Findings) -> Vec<Diagnosis> {
    let readable = |mode: u32| mode & 0o077 != 0;
    let open = f.places.iter().filter_map(|p| Some((p, p.mode.filter(|mode| readable(*mode))?)));
    open.map(|(place, mode)| {
        let path = place.path.display();
        let says = format!(
            "{}: {path} has the mode {mode:o}: other users of this machine can look into it",
            place.key
        );
        weak(says).remedy(format!("chmod 700 {path}"))
    })
    .collect()
}
