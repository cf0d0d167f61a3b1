//! What an API server answers when it does not answer.

use std::{fmt, time::Duration};

/// The longest that a server's `Retry-After` is believed.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(300);

/// Why a request to the API server came to nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// The version or the page is too old: everything has to be listed again.
    Expired(String),
    /// It has too much to do (429, or 5xx with `Retry-After`).
    Throttled {
        /// How long it wants to be left alone, if it said so.
        after: Option<Duration>,
        /// Its words.
        why: String,
    },
    /// This account may not do that, or is nobody.
    Denied {
        /// 401 or 403.
        code: u16,
        /// What was tried: `list`, `watch`, `get`.
        verb: &'static str,
        /// On what: `pods`.
        resource: String,
        /// Its words.
        why: String,
    },
    /// It is not whom we were told to trust: its certificate is of another authority, or of another name.
    Untrusted(String),
    /// Nobody is there, or it is not well: refused connections, lost ones, 5xx, no answer in time.
    Away(String),
    /// Anything else: what it says makes no sense to us.
    Strange(String),
}

impl Trouble {
    /// What an answer with an error code means.
    pub fn of_answer(
        code: u16,
        after: Option<Duration>,
        why: String,
        verb: &'static str,
        resource: &str,
    ) -> Trouble {
        let after = after.map(|a| a.min(RETRY_AFTER_MAX));
        match code {
            410 => Trouble::Expired(why),
            401 | 403 => Trouble::Denied { code, verb, resource: resource.to_owned(), why },
            429 => Trouble::Throttled { after, why },
            500..=599 if after.is_some() => Trouble::Throttled { after, why },
            500..=599 => Trouble::Away(format!("HTTP {code}: {why}")),
            _ => Trouble::Strange(format!("{verb} {resource}: HTTP {code}: {why}")),
        }
    }

    /// What it means that no answer came, by the client's words.
    pub fn of_silence(why: String) -> Trouble {
        // rustls' own words; the type of the error is hidden behind three others.
        match why.contains("invalid peer certificate") {
            true => Trouble::Untrusted(why),
            false => Trouble::Away(why),
        }
    }

    /// A word for it, for metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Trouble::Expired(_) => "expired",
            Trouble::Throttled { .. } => "throttled",
            Trouble::Denied { .. } => "denied",
            Trouble::Untrusted(_) => "untrusted",
            Trouble::Away(_) => "away",
            Trouble::Strange(_) => "strange",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Expired(why) => write!(f, "too old (410): {why}"),
            Trouble::Throttled { after: Some(after), why } => {
                write!(f, "the API server asks for a pause of {} s: {why}", after.as_secs())
            }
            Trouble::Throttled { after: None, why } => {
                write!(f, "the API server asks for a pause: {why}")
            }
            Trouble::Denied { code: 401, verb, resource, why } => write!(
                f,
                "the API server does not know who we are (401), so `{verb}` on `{resource}` is refused; \
                check the token or the kubeconfig: {why}"
            ),
            Trouble::Denied { verb, resource, why, .. } => write!(
                f,
                "the API server refuses `{verb}` on `{resource}` (403): give this account's role the verb \
                \"{verb}\" on the resource \"{resource}\": {why}"
            ),
            Trouble::Untrusted(why) => write!(
                f,
                "the API server's certificate is not trusted; check the certificate authority (ca.crt of the service account, \
                or certificate-authority of the kubeconfig) and the server's name: {why}"
            ),
            Trouble::Away(why) => write!(f, "the API server is away: {why}"),
            Trouble::Strange(why) => write!(f, "the API server answers strangely: {why}"),
        }
    }
}

impl std::error::Error for Trouble {}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: u16, after: Option<u64>) -> Trouble {
        Trouble::of_answer(code, after.map(Duration::from_secs), "w".into(), "watch", "pods")
    }

    #[test]
    fn an_answer_says_what_to_do_next() {
        assert_eq!(of(410, None), Trouble::Expired("w".into()));
        let pause = |s| Trouble::Throttled { after: Some(Duration::from_secs(s)), why: "w".into() };
        assert_eq!((of(429, Some(7)), of(503, Some(1))), (pause(7), pause(1)));
        assert_eq!(of(429, Some(1_000_000)), pause(300), "no server stops us for days");
        assert_eq!(of(429, None).name(), "throttled");
        assert_eq!((of(500, None).name(), of(504, None).name()), ("away", "away"));
        assert_eq!((of(404, None).name(), of(422, None).name()), ("strange", "strange"));
    }

    #[test]
    fn a_certificate_of_somebody_else_is_said_to_be_that() {
        let said = Trouble::of_silence("error: invalid peer certificate: UnknownIssuer".into());
        assert_eq!(said.name(), "untrusted");
        assert!(said.to_string().contains("ca.crt"), "{said}");
        assert_eq!(Trouble::of_silence("connection refused".into()).name(), "away");
    }

    #[test]
    fn who_may_not_is_told_the_verb_and_the_resource() {
        let said = of(403, None).to_string();
        assert!(said.contains("`watch` on `pods`") && said.contains("\"watch\""), "{said}");
        assert!(of(401, None).to_string().contains("401"));
    }
}
