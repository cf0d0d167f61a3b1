//! What values look like, and what is said about one that does not.

use super::outside;
use tenure_pods::{admission::TemplatePolicy, namespaces::Namespaces, verdict::Override};

/// What a key holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Form {
    /// Seconds, may have a fraction; the smallest and largest allowed.
    Seconds(f64, f64),
    /// Seconds of a rule, up to this many; zero and less switch it off.
    Rule(f64),
    /// A whole number; the smallest and largest allowed.
    Number(u64, u64),
    /// One of these words.
    Word(&'static [&'static str]),
    /// Where the store is.
    StoreUrl,
    /// An address to listen at.
    Address,
    /// `true` or `false`.
    Switch,
    /// Where a bus is; may be empty.
    BusUrl,
    /// What stands before the subjects of a bus; may be empty.
    BusPrefix,
    /// A template of the subjects of events.
    EventSubject,
    /// Rows for the reason table of pods, as TOML.
    Reasons,
    /// Where Redis is.
    RedisAddresses,
    /// The name of a namespace; may be empty.
    Namespace,
    /// Tenants and their namespaces.
    Namespaces,
    /// Tenants and what the templates of their pods may have.
    PodGrants,
    /// Some tenants, all, or none.
    Tenants,
    /// Tenants and the secrets that they may name.
    Secrets,
    /// Where tools of tenants may connect to.
    Egress,
    /// A proxy for tools of tenants; may be empty.
    EgressProxy,
    /// What tenants may have; may be empty.
    Quotas,
    /// Tenants and the variables with the secrets of their webhooks; may be empty.
    WebhookSecrets,
    /// The name of a node; may be empty.
    NodeName,
    /// An address of a server; may be empty.
    ServerUrl,
    /// May be empty.
    Anything,
    /// A filter for log lines.
    Text,
}

impl Form {
    /// Whether values may hold a password.
    pub(super) fn is_address(self) -> bool {
        matches!(
            self,
            Form::StoreUrl
                | Form::BusUrl
                | Form::RedisAddresses
                | Form::EgressProxy
                | Form::ServerUrl
        )
    }
}

/// Rows for the reason table. From a file they come as `[[pods.reasons]]`, from elsewhere as an inline array.
pub(super) fn reasons(text: &str) -> Result<Vec<Override>, String> {
    #[derive(serde::Deserialize)]
    struct Rows {
        reasons: Vec<Override>,
    }
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let read: Result<Rows, toml::de::Error> = toml::from_str(&format!("reasons = {text}"));
    read.map(|rows| rows.reasons).map_err(|e| {
        let what = e.message();
        format!("is no list of rows such as [{{where=\"waiting\", reason=\"ErrImagePull\", cause=\"image_invalid\"}}]: {what}")
    })
}

/// What is wrong with this value, as the rest of a sentence that begins with it.
pub(super) fn problem_of(form: Form, value: &str) -> Option<String> {
    match form {
        Form::Seconds(min, max) => match value.parse::<f64>() {
            Ok(v) if (min..=max).contains(&v) => None,
            Ok(_) => Some(format!("is out of range: give {min} to {max} seconds")),
            Err(_) => Some("is not a number of seconds, such as 15 or 0.5".to_owned()),
        },
        Form::Rule(max) => match value.parse::<f64>() {
            Ok(v) if v.is_finite() && v <= max => None,
            Ok(_) => Some(format!("is out of range: give at most {max} seconds, 0 for never")),
            Err(_) => Some("is not a number of seconds, such as 15 or 0.5; 0 for never".to_owned()),
        },
        Form::Number(min, max) => match value.parse::<u64>() {
            Ok(v) if (min..=max).contains(&v) => None,
            _ => Some(format!("is not a whole number from {min} to {max}")),
        },
        Form::Word(words) => {
            (!words.contains(&value)).then(|| format!("is not one of: {}", words.join(", ")))
        }
        Form::StoreUrl => {
            let good = value.strip_prefix("sqlite:").is_some_and(|dir| !dir.is_empty())
                || value.starts_with("postgres://")
                || value.starts_with("postgresql://");
            match good {
                false => Some(
                    "is not a store: use sqlite:DIRECTORY or postgres://USER@HOST/DATABASE"
                        .to_owned(),
                ),
                true if value.starts_with("sqlite:") => None,
                true => {
                    let checked = tenure_postgres::check(value);
                    checked.err().map(|e| format!("cannot be used: {e}"))
                }
            }
        }
        Form::Address => value.parse::<std::net::SocketAddr>().is_err().then(|| {
            "is not an address with a port, such as 127.0.0.1:7777 or [::1]:7777".to_owned()
        }),
        Form::Switch => match value {
            "true" | "false" => None,
            _ => Some("is neither true nor false".to_owned()),
        },
        Form::BusUrl if value.is_empty() => None,
        Form::BusUrl if tenure_bell::redis::is_redis(value) => {
            tenure_bell::redis::check_url(value).err()
        }
        Form::BusUrl => tenure_bell::nats::check_url(value).err(),
        Form::RedisAddresses => tenure_bell::redis::check_addresses(value).err(),
        Form::Namespace => outside::problem_of_name(value, 63, "the name of a namespace"),
        Form::Namespaces => Namespaces::read("", value).err(),
        Form::PodGrants => TemplatePolicy::read(value).err(),
        Form::Tenants => tenure_tools::Tenants::read(value).err(),
        Form::Secrets => tenure_tools::Grants::read(value).err(),
        Form::Egress => tenure_tools::Egress::read(value).err(),
        Form::EgressProxy => tenure_tools::Egress::read_proxy(value).err(),
        Form::Quotas => tenure_kernel::quota::Quotas::read(value).err(),
        Form::WebhookSecrets => tenure_server::webhooks::WebhookSecrets::names(value).err(),
        Form::NodeName => outside::problem_of_name(value, 253, "the name of a node"),
        Form::BusPrefix => tenure_bell::nats::check_prefix(value).err(),
        Form::EventSubject => tenure_bell::nats::Template::parse(value).err(),
        Form::Anything | Form::ServerUrl => None,
        Form::Reasons => reasons(value).err(),
        Form::Text => value.is_empty().then(|| "is empty".to_owned()),
    }
}
