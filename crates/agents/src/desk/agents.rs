//! Agents: set, pause, resume, remove, list. Setting the same again writes nothing.

use super::{Desk, DeskError, label, within};
use crate::{
    agent::{Agent, AgentState, Spec, agent_id},
    is_token, limits,
    words::Change,
};
use tenure_engine::amend::amend;
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    machine::{Cx, Decision, Input, Machine},
    store::HeadFilter,
    stream::Body,
};

/// Everything about an agent that can be known to be wrong before anything is written.
pub fn check(spec: &Spec, tool_subjects: &[String]) -> Result<(), DeskError> {
    let token = |field: &'static str, text: &str| match is_token(text) {
        true => Ok(()),
        false => Err(DeskError::Bad {
            field,
            why: format!("{field} = {text:?} is not one word of letters, digits, _ and -"),
            fix: "it is a part of a subject on the bus: give 1 to 64 such characters",
        }),
    };
    token("name", &spec.name)?;
    token("target", &spec.target)?;
    label("channel", spec.channel.as_deref(), limits::LABEL_BYTES_MAX)?;
    label("output_box", spec.output_box.as_deref(), limits::LABEL_BYTES_MAX)?;
    if !(spec.profile.is_object() || spec.profile.is_null()) {
        return Err(DeskError::Bad {
            field: "profile",
            why: "the profile is not an object".to_owned(),
            fix: "give an object: model, instructions, tools; see docs/agents.md",
        });
    }
    let max = limits::PROFILE_BYTES_MAX;
    within("the profile", "profile", "PROFILE_BYTES_MAX", &spec.profile, max)?;
    let profile =
        crate::drive::profile::check(&spec.profile).map_err(|problems| DeskError::Bad {
            field: "profile",
            why: problems.join("; "),
            fix: "docs/agents-in-any-language.md says what a profile can say",
        })?;
    let is_for_tools = |s: &&str| tool_subjects.iter().any(|begin| s.starts_with(begin.as_str()));
    match profile.subjects().find(|s| !is_for_tools(s)) {
        None => Ok(()),
        Some(subject) => Err(DeskError::Bad {
            field: "profile",
            why: format!(
                "subject {subject:?} is not for tools: those begin with {tool_subjects:?}"
            ),
            fix: "use one of these, or let the operator add to agents.tool_subjects",
        }),
    }
}

impl Desk {
    /// Sets an agent, for the first time or anew. Whether something changed.
    pub async fn set_agent(
        &self,
        tenant: &str,
        spec: Spec,
        by: Option<String>,
    ) -> Result<bool, DeskError> {
        check(&spec, &self.defaults.tool_subjects)?;
        let id = agent_id(tenant, &spec.name);
        self.amend_agent(tenant, id, |state, cx| {
            let here = state.is_some_and(|s| s.is(&spec)) && !is_removed(cx);
            if here {
                return Ok(Decision::default());
            }
            let change = Change::Set { spec: Box::new(spec.clone()), by: by.clone() };
            decided(state, &change, cx)
        })
        .await
    }

    /// Nothing is dispatched until it is resumed.
    pub async fn pause_agent(
        &self,
        tenant: &str,
        name: &str,
        by: Option<String>,
    ) -> Result<bool, DeskError> {
        self.change_agent(tenant, name, |s| !s.paused, Change::Pause { by }).await
    }

    /// It goes on.
    pub async fn resume_agent(
        &self,
        tenant: &str,
        name: &str,
        by: Option<String>,
    ) -> Result<bool, DeskError> {
        self.change_agent(tenant, name, |s| s.paused, Change::Resume { by }).await
    }

    /// It takes no more turns; those that wait are refused, the active one may end.
    pub async fn remove_agent(
        &self,
        tenant: &str,
        name: &str,
        by: Option<String>,
    ) -> Result<bool, DeskError> {
        self.change_agent(tenant, name, |_| true, Change::Remove { by }).await
    }

    async fn change_agent(
        &self,
        tenant: &str,
        name: &str,
        changes: impl Fn(&AgentState) -> bool,
        change: Change,
    ) -> Result<bool, DeskError> {
        self.amend_agent(tenant, agent_id(tenant, name), |state, cx| match state {
            None => Err(DeskError::NoAgent(name.to_owned())),
            Some(_) if is_removed(cx) => Err(DeskError::AgentRemoved(name.to_owned())),
            Some(state) if !changes(state) => Ok(Decision::default()),
            Some(_) => decided(state, &change, cx),
        })
        .await
    }

    async fn amend_agent(
        &self,
        tenant: &str,
        id: EntityId,
        decide: impl Fn(
            Option<&AgentState>,
            &Cx,
        ) -> Result<Decision<<Agent as Machine>::Event>, DeskError>,
    ) -> Result<bool, DeskError> {
        Ok(amend::<Agent, DeskError>(&self.pipeline, id, tenant, decide).await?.changed)
    }
}

/// Those of a tenant, or of all, for a look by pages; without those that were removed, unless somebody wants to see them.
pub fn listing(tenant: Option<String>, removed: bool, after: Option<EntityId>) -> HeadFilter {
    let here = Agent::TABLE.statuses.iter().map(|s| s.name).filter(|s| removed || *s != "removed");
    HeadFilter {
        kind: Some(Agent::TABLE.kind.into()),
        tenant,
        statuses: here.map(str::to_owned).collect(),
        after,
        ..HeadFilter::default()
    }
}

fn is_removed(cx: &Cx) -> bool {
    cx.status.is_some_and(|s| s.name() == "removed")
}

fn decided(
    state: Option<&AgentState>,
    change: &Change,
    cx: &Cx,
) -> Result<Decision<<Agent as Machine>::Event>, DeskError> {
    Agent::decide(state, &Input::Create(&Body::json(change)), cx)
        .map_err(|e| DeskError::Store(StoreError::Refused(e.to_string())))
}
