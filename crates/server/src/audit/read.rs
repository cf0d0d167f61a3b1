//! The audit trail, read: newest first, by pages, filtered. An outcome is shown with its act.

use super::{
    AuditSegment, DAY_MICROS, KIND, TABLE,
    machine::{Event, event_of},
    state,
};
use crate::{
    App, Caller, Problem, extract::Params, jobs::owned::listed, keys::Scope, paging,
    problem::ProblemDocument,
};
use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::{collections::HashMap, sync::Arc};
use tenure_engine::events;
use tenure_kernel::{
    error::StoreError,
    head::Head,
    ids::EntityId,
    store::{HeadFilter, Store},
    time::Timestamp,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

/// Events read from the store at once.
const EVENTS_PAGE: usize = 500;
/// Records that one request looks at; a page may then be short and not be the last.
const LOOKED_AT_MAX: usize = 20_000;
/// Segments read from the store at once.
const SEGMENTS_PAGE: usize = 32;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(audit))
}

/// One act.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// The id of the record.
    pub id: String,
    /// When it was recorded: before the act began. Microseconds since 1970.
    #[schema(value_type = i64)]
    pub at: Timestamp,
    /// The same as text, in UTC.
    pub time: String,
    /// What was done, such as `keys.create`.
    pub act: String,
    /// Who did it.
    pub by: String,
    /// The id of the key that was shown.
    #[schema(value_type = Option<String>)]
    pub key: Option<EntityId>,
    /// Whose entities it concerned; null for the whole server.
    pub tenant: Option<String>,
    /// What it was done to.
    pub target: Option<String>,
    /// The address that the request came from.
    pub from: Option<String>,
    /// More, depending on the act.
    pub details: Value,
    /// `done`, `refused`, or `not_recorded` where the server ended before it could say; null where the record itself is all.
    pub outcome: Option<String>,
    /// Why it was refused.
    pub note: Option<String>,
}

/// Which acts.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// Only of this tenant.
    pub tenant: Option<String>,
    /// Only acts whose name begins so.
    pub act: Option<String>,
    /// Only of those whose name or key contains this.
    pub by: Option<String>,
    /// Only on this target.
    pub target: Option<String>,
    /// Only from this moment on.
    pub since: Option<Timestamp>,
    /// Only before this moment.
    pub until: Option<Timestamp>,
}

impl AuditFilter {
    fn admits(&self, entry: &AuditEntry) -> bool {
        let is = |wanted: &Option<String>, found: Option<&str>| {
            wanted.as_deref().is_none_or(|wanted| found == Some(wanted))
        };
        let by = |wanted: &String| {
            entry.by.contains(wanted.as_str())
                || entry.key.is_some_and(|key| key.to_string() == *wanted)
        };
        is(&self.tenant, entry.tenant.as_deref())
            && is(&self.target, entry.target.as_deref())
            && self.act.as_ref().is_none_or(|act| entry.act.starts_with(act.as_str()))
            && self.by.as_ref().is_none_or(by)
            && self.since.is_none_or(|since| entry.at >= since)
            && self.until.is_none_or(|until| entry.at < until)
    }
}

/// A page of the trail, the newest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The acts.
    pub acts: Vec<AuditEntry>,
    /// `before` of the next page; null after the last.
    pub next: Option<String>,
}

/// A place in the trail: before this act of this segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    segment: EntityId,
    act: usize,
}

impl Place {
    fn read(text: &str) -> Option<Place> {
        let (segment, act) = text.split_once('.')?;
        Some(Place { segment: segment.parse().ok()?, act: act.parse().ok()? })
    }

    fn text(self) -> String {
        format!("{}.{}", self.segment, self.act)
    }
}

/// Reads a page. `before` is `next` of the page before; anything else that is given there is refused.
pub async fn page(
    store: &Arc<dyn Store>,
    filter: &AuditFilter,
    before: Option<&str>,
    limit: usize,
) -> Result<AuditPage, Problem> {
    let fix = "use next of the page before, exactly as it was given";
    let bad = |text: &str| paging::bad("before", format!("before = {text:?} cannot be read"), fix);
    let place = before.map(|text| Place::read(text).ok_or_else(|| bad(text))).transpose()?;
    let (mut found, mut looked) = (Vec::new(), 0);
    let mut segments = Segments { store, before: place.map(|p| p.segment), ready: Vec::new() };
    let mut here = match place {
        Some(place) => {
            let head = store.head(place.segment).await?.filter(|head| head.kind() == KIND);
            head.map(|head| (head, place.act))
        }
        None => segments.next().await?.map(|head| (head, usize::MAX)),
    };
    while let Some((head, below)) = here {
        let day = state(&head)?.day.saturating_mul(DAY_MICROS);
        let day = Timestamp::from_micros(day);
        // Segments are in the order of their days, and a record is never earlier than its segment.
        if filter
            .since
            .is_some_and(|since| head.changed_at < since && head.mail_count == head.mail_read)
        {
            return Ok(AuditPage { acts: found, next: None });
        }
        if filter.until.is_none_or(|until| day < until) {
            let acts = acts_of(store, &head).await?;
            looked += acts.len();
            for (i, entry) in acts.into_iter().enumerate().rev().filter(|(i, _)| *i < below) {
                if !filter.admits(&entry) {
                    continue;
                }
                if found.len() == limit {
                    let next = Place { segment: head.id, act: i + 1 };
                    return Ok(AuditPage { acts: found, next: Some(next.text()) });
                }
                found.push(entry);
            }
        }
        here = segments.next().await?.map(|head| (head, usize::MAX));
        if looked >= LOOKED_AT_MAX
            && let Some((head, _)) = &here
        {
            let next = Place { segment: head.id, act: usize::MAX };
            return Ok(AuditPage { acts: found, next: Some(next.text()) });
        }
    }
    Ok(AuditPage { acts: found, next: None })
}

/// Segments, the newest first.
struct Segments<'a> {
    store: &'a Arc<dyn Store>,
    before: Option<EntityId>,
    ready: Vec<Head>,
}

impl Segments<'_> {
    async fn next(&mut self) -> Result<Option<Head>, StoreError> {
        if self.ready.is_empty() {
            let filter = HeadFilter {
                kind: Some(KIND.into()),
                before: self.before,
                newest_first: true,
                ..HeadFilter::default()
            };
            self.ready = self.store.heads(filter, SEGMENTS_PAGE).await?;
            self.ready.reverse();
        }
        let next = self.ready.pop();
        self.before = next.as_ref().map(|head| head.id).or(self.before);
        Ok(next)
    }
}

/// The acts of a segment in their order, with their outcomes. Mail that no commit has covered yet counts: it is durable.
async fn acts_of(store: &Arc<dyn Store>, head: &Head) -> Result<Vec<AuditEntry>, StoreError> {
    let mut gathered = Gathered::default();
    if head.kind() != TABLE.kind {
        return Ok(gathered.acts);
    }
    let mut from = 1;
    loop {
        let page = events::page::<AuditSegment>(store, head.id, from, EVENTS_PAGE).await?;
        let Some(last) = page.last() else { break };
        from = last.version + 1;
        page.into_iter()
            .filter_map(|event| serde_json::from_value(event.body).ok())
            .for_each(|event| gathered.take(event));
    }
    // Counted from the head, which was read before the stream: what was covered in between is in both, and counts once.
    let mut after = head.mail_read;
    while after < head.mail_count {
        let unread = store.mail(head.id, after, EVENTS_PAGE).await?;
        let Some(last) = unread.last() else { break };
        after = last.seq;
        unread.iter().for_each(|mail| gathered.take(event_of(mail)));
    }
    Ok(gathered.acts)
}

/// Acts with their outcomes.
#[derive(Default)]
struct Gathered {
    acts: Vec<AuditEntry>,
    places: HashMap<String, usize>,
}

impl Gathered {
    fn take(&mut self, event: Event) {
        match event {
            Event::ActRecorded { id, .. } if self.places.contains_key(&id) => {}
            Event::ActRecorded { id, at, record } => {
                self.places.insert(id.clone(), self.acts.len());
                self.acts.push(AuditEntry {
                    id,
                    at,
                    time: at.to_string(),
                    act: record.act,
                    by: record.by,
                    key: record.key,
                    tenant: record.tenant,
                    target: record.target,
                    from: record.from,
                    details: record.details,
                    outcome: record.expects_outcome.then(|| "not_recorded".to_owned()),
                    note: None,
                });
            }
            Event::OutcomeRecorded { record, .. } => {
                let place = self.places.get(&record.of);
                if let Some(act) = place.and_then(|place| self.acts.get_mut(*place)) {
                    act.outcome = Some(if record.done { "done" } else { "refused" }.to_owned());
                    act.note = record.note;
                }
            }
            Event::AuditSegmentOpened { .. } | Event::AuditMailIgnored { .. } => {}
        }
    }
}

/// Which acts, and how many.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(crate) struct Query {
    /// Only of this tenant, for callers whose key has none.
    pub(crate) tenant: Option<String>,
    /// Only acts whose name begins so, such as `keys.`.
    pub(crate) act: Option<String>,
    /// Only of those whose name contains this, or who showed the key of this id.
    pub(crate) by: Option<String>,
    /// Only on this target.
    pub(crate) target: Option<String>,
    /// Only from this time on, in RFC 3339.
    pub(crate) since: Option<String>,
    /// Only before this time, in RFC 3339.
    pub(crate) until: Option<String>,
    /// Goes on behind this one: `next` of the page before.
    pub(crate) before: Option<String>,
    /// How many, 1 to 200; 50 without it.
    pub(crate) limit: Option<usize>,
}

/// Reads a page for a caller, who needs the scope `admin`. A caller with a tenant sees that tenant's acts.
pub(crate) async fn read(app: &App, caller: &Caller, query: Query) -> Result<AuditPage, Problem> {
    caller.need(Scope::Admin)?;
    let text = |text: Option<String>| text.filter(|text| !text.is_empty());
    let moment =
        |field, text: Option<String>| text.map(|text| crate::jobs::moment(field, text)).transpose();
    let filter = AuditFilter {
        tenant: listed(caller, text(query.tenant))?,
        act: text(query.act),
        by: text(query.by),
        target: text(query.target),
        since: moment("since", text(query.since))?,
        until: moment("until", text(query.until))?,
    };
    let limit = paging::limit(query.limit)?;
    page(app.pipeline().store(), &filter, text(query.before).as_deref(), limit).await
}

/// Administrative acts, the newest first: who did what, when, and whether it was carried out. Needs the scope `admin`.
#[utoipa::path(
    get, path = "/v1/audit", tag = "keys", params(Query),
    responses(
        (status = 200, body = AuditPage),
        (status = 400, body = ProblemDocument),
        (status = 403, description = "The key has not the scope admin.", body = ProblemDocument)
    )
)]
async fn audit(
    State(app): State<App>,
    caller: Caller,
    Params(query): Params<Query>,
) -> Result<Json<AuditPage>, Problem> {
    read(&app, &caller, query).await.map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_it_was_written_and_nothing_else_is() {
        let place = Place { segment: EntityId::fixed(1, 2), act: usize::MAX };
        assert_eq!(Place::read(&place.text()), Some(place));
        for bad in ["", ".", "x.1", &place.segment.to_string(), &format!("{}.-1", place.segment)] {
            assert_eq!(Place::read(bad), None, "{bad}");
        }
    }
}
