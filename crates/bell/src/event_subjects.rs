//! Where agents' events go on a bus, by tenant. The permissions of a bus are about subjects, so tenants can be kept apart there only
//! where the tenant is a part of the subject. What is recorded has the plain form `evt.agent.AGENT.EVENT`; it becomes the
//! subject of a bus when it leaves.

use tenure_kernel::{tenant, wakeup};

/// The form of the events of tenant `default`, and of all that is recorded.
pub const PLAIN: &str = "evt.agent.{agent}.{event}";
/// The form of the events of every other tenant, unless the operator says otherwise.
pub const BY_TENANT: &str = "evt.tenant.{tenant}.agent.{agent}.{event}";

/// A subject with places for `{tenant}`, `{agent}` and `{event}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// Reads one; else why it is none.
    pub fn parse(text: &str) -> Result<Self, String> {
        let places = ["{tenant}", "{agent}", "{event}"];
        let good = |token: &str| places.contains(&token) || wakeup::is_target(token);
        let times = |place: &str| text.split('.').filter(|t| *t == place).count();
        if text.len() > 256 || !text.split('.').all(good) {
            return Err("is no template of a subject: tokens of a-z, A-Z, 0-9, _ and -, and {tenant}, {agent} and {event}, \
                        with dots between them"
                .to_owned());
        }
        if !text.starts_with("evt.") {
            return Err(
                "has to begin with evt.: streams and permissions know events by it".to_owned()
            );
        }
        if times("{agent}") != 1 || times("{event}") != 1 || times("{tenant}") > 1 {
            return Err(
                "has to have {agent} and {event} once, and {tenant} at most once".to_owned()
            );
        }
        Ok(Template(text.to_owned()))
    }

    fn fill(&self, of: &str, agent: &str, event: &str) -> String {
        let token = |token: &str| match token {
            "{tenant}" => as_token(of),
            "{agent}" => agent.to_owned(),
            "{event}" => event.to_owned(),
            other => other.to_owned(),
        };
        self.0.split('.').map(token).collect::<Vec<_>>().join(".")
    }
}

/// The templates of a bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSubjects {
    /// Of tenant `default`.
    pub default: Template,
    /// Of all others.
    pub others: Template,
}

impl Default for EventSubjects {
    fn default() -> Self {
        EventSubjects {
            default: Template(PLAIN.to_owned()),
            others: Template(BY_TENANT.to_owned()),
        }
    }
}

impl EventSubjects {
    /// The subject of a message of this tenant that is recorded under `subject`. What is no event of an agent stays as it is.
    pub(crate) fn of(&self, of: &str, subject: &str) -> String {
        let parts: Vec<&str> = subject.split('.').collect();
        let ["evt", "agent", agent, event] = parts[..] else { return subject.to_owned() };
        let is_default = of.is_empty() || of == tenant::DEFAULT;
        let template = if is_default { &self.default } else { &self.others };
        template.fill(of, agent, event)
    }
}

/// A tenant as one token: bytes that no token may have are written as `=` and two digits, so that two tenants are never one.
fn as_token(tenant: &str) -> String {
    let byte = |b: u8| match b.is_ascii_alphanumeric() || b == b'_' || b == b'-' {
        true => char::from(b).to_string(),
        false => format!("={b:02X}"),
    };
    tenant.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_carry_the_tenant_and_those_of_the_default_one_have_the_plain_form() {
        let subjects = EventSubjects::default();
        let of = |tenant: &str| subjects.of(tenant, "evt.agent.ada.task");
        assert_eq!(of("default"), "evt.agent.ada.task");
        assert_eq!(of(""), "evt.agent.ada.task");
        assert_eq!(of("acme"), "evt.tenant.acme.agent.ada.task");
        // One that is not a token is one on the bus, and no other tenant's.
        assert_eq!(of("a.b c"), "evt.tenant.a=2Eb=20c.agent.ada.task");
        assert_eq!(of("*"), "evt.tenant.=2A.agent.ada.task");
        for other in ["tools.look", "evt.agent.ada", "evt.agent.ada.task.more", "evt.pod.x.y"] {
            assert_eq!(subjects.of("acme", other), other);
        }
        let own = EventSubjects {
            default: Template::parse("evt.{tenant}.{event}.{agent}").unwrap(),
            others: Template::parse(PLAIN).unwrap(),
        };
        assert_eq!(own.of("default", "evt.agent.ada.step"), "evt.default.step.ada");
        assert_eq!(own.of("acme", "evt.agent.ada.step"), "evt.agent.ada.step");
    }

    #[test]
    fn a_template_that_cannot_work_is_refused() {
        for good in [PLAIN, BY_TENANT, "evt.{agent}.{event}", "evt.x.{tenant}.{agent}.{event}"] {
            assert!(Template::parse(good).is_ok(), "{good}");
        }
        for (bad, part) in [
            ("", "template"),
            ("evt.{agent}.{event}.>", "template"),
            ("evt.{agent}.{event}.a b", "template"),
            ("evt.{agent}.{what}", "template"),
            ("evt.a{agent}.{event}", "template"),
            ("cmd.{agent}.{event}", "evt."),
            ("evt.{tenant}.{agent}", "once"),
            ("evt.{agent}.{agent}.{event}", "once"),
            ("evt.{tenant}.{tenant}.{agent}.{event}", "once"),
        ] {
            let why = Template::parse(bad).unwrap_err();
            assert!(why.contains(part), "{bad}: {why}");
        }
    }
}
