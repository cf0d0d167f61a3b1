//! What a caller gets when something is wrong: `application/problem+json` (RFC 9457), always. It says what
//! happened (`code`, `title`, `detail`), which input it was (`field`) and what to do (`fix`). `type` is the
//! path of a page about the code.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt;
use tenure_kernel::error::{Code, StoreError};
use tenure_remote::wire::{FAULT_MEMBER, StoreFault};
use utoipa::ToSchema;

/// A stable name for what went wrong in a request. The kernel's own codes keep their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiCode {
    /// It is wanted now or never, and the agent has something to do.
    AgentBusy,
    /// The agent takes no turns any more.
    AgentRemoved,
    /// Several open calls have this id of a tool call.
    AmbiguousCall,
    /// A field has a value that can not be used.
    BadField,
    /// The body is not JSON, or not of the right form.
    BadJson,
    /// A webhook is not signed as it has to be.
    BadSignature,
    /// An operator has blocked the flow, the tool or the tenant.
    Blocked,
    /// What became of this step is on record.
    EffectKnown,
    /// It names a turn_epoch that the turn has not reached.
    EpochFromTheFuture,
    /// The caller may not do this.
    Forbidden,
    /// The job has ended and takes nothing in.
    JobFinished,
    /// It has a name already, and comes with a later version.
    LaterVersion,
    /// The path exists, with other methods.
    MethodNotAllowed,
    /// No such path.
    NoRoute,
    /// A blocked job that knows nothing of the key.
    NobodyWaits,
    /// The wait is answered by a job, a turn or a join.
    NotByMessage,
    /// The job does not stand where this could be done.
    NotNow,
    /// The idempotency key was used with other input.
    OtherInput,
    /// The body is too large.
    PayloadTooLarge,
    /// The plan can not be run.
    PlanInvalid,
    /// Too many turns wait for the agent.
    QueueFull,
    /// The input does not fit the schema of the flow.
    SchemaViolation,
    /// The session of a worker is over.
    SessionEnded,
    /// It was called under an earlier turn_epoch.
    StaleEpoch,
    /// The task has ended.
    TaskOver,
    /// The wait ended before the signal was read.
    TooLate,
    /// Too many results came before their calls.
    TooManyEarly,
    /// Too many connections of the tenant are open.
    TooManyConnections,
    /// Too many keys of the address were not valid.
    TooManyFailures,
    /// Too many acts of the key were refused.
    TooManyRefusals,
    /// Too many live pages of the tenant are open.
    TooManyStreams,
    /// The turn has ended.
    TurnOver,
    /// No key, or one that is not valid.
    Unauthenticated,
    /// No such call is waited for.
    UnknownCall,
    /// No worker has ever registered this flow.
    UnknownFlow,
    /// No worker has ever registered this tool.
    UnknownTool,
    /// The body has another content type.
    UnsupportedMediaType,
    /// One of the kernel's.
    Kernel(Code),
}

impl ApiCode {
    /// Those that are not the kernel's, in alphabetical order.
    pub const ALL: [ApiCode; 37] = [
        ApiCode::AgentBusy,
        ApiCode::AgentRemoved,
        ApiCode::AmbiguousCall,
        ApiCode::BadField,
        ApiCode::BadJson,
        ApiCode::BadSignature,
        ApiCode::Blocked,
        ApiCode::EffectKnown,
        ApiCode::EpochFromTheFuture,
        ApiCode::Forbidden,
        ApiCode::JobFinished,
        ApiCode::LaterVersion,
        ApiCode::MethodNotAllowed,
        ApiCode::NoRoute,
        ApiCode::NobodyWaits,
        ApiCode::NotByMessage,
        ApiCode::NotNow,
        ApiCode::OtherInput,
        ApiCode::PayloadTooLarge,
        ApiCode::PlanInvalid,
        ApiCode::QueueFull,
        ApiCode::SchemaViolation,
        ApiCode::SessionEnded,
        ApiCode::StaleEpoch,
        ApiCode::TaskOver,
        ApiCode::TooLate,
        ApiCode::TooManyConnections,
        ApiCode::TooManyEarly,
        ApiCode::TooManyFailures,
        ApiCode::TooManyRefusals,
        ApiCode::TooManyStreams,
        ApiCode::TurnOver,
        ApiCode::Unauthenticated,
        ApiCode::UnknownCall,
        ApiCode::UnknownFlow,
        ApiCode::UnknownTool,
        ApiCode::UnsupportedMediaType,
    ];

    /// As text.
    pub const fn as_str(self) -> &'static str {
        match self {
            ApiCode::AgentBusy => "agent_busy",
            ApiCode::AgentRemoved => "agent_removed",
            ApiCode::AmbiguousCall => "ambiguous_call",
            ApiCode::BadField => "bad_field",
            ApiCode::BadJson => "bad_json",
            ApiCode::BadSignature => "bad_signature",
            ApiCode::Blocked => "blocked",
            ApiCode::EffectKnown => "effect_known",
            ApiCode::EpochFromTheFuture => "epoch_from_the_future",
            ApiCode::Forbidden => "forbidden",
            ApiCode::JobFinished => "job_finished",
            ApiCode::LaterVersion => "later_version",
            ApiCode::MethodNotAllowed => "method_not_allowed",
            ApiCode::NoRoute => "no_route",
            ApiCode::NobodyWaits => "nobody_waits",
            ApiCode::NotByMessage => "not_by_message",
            ApiCode::NotNow => "not_now",
            ApiCode::OtherInput => "other_input",
            ApiCode::PayloadTooLarge => "payload_too_large",
            ApiCode::PlanInvalid => "plan_invalid",
            ApiCode::QueueFull => "queue_full",
            ApiCode::SchemaViolation => "schema_violation",
            ApiCode::SessionEnded => "session_ended",
            ApiCode::StaleEpoch => "stale_epoch",
            ApiCode::TaskOver => "task_over",
            ApiCode::TooLate => "too_late",
            ApiCode::TooManyConnections => "too_many_connections",
            ApiCode::TooManyEarly => "too_many_early",
            ApiCode::TooManyFailures => "too_many_failures",
            ApiCode::TooManyRefusals => "too_many_refusals",
            ApiCode::TooManyStreams => "too_many_streams",
            ApiCode::TurnOver => "turn_over",
            ApiCode::Unauthenticated => "unauthenticated",
            ApiCode::UnknownCall => "unknown_call",
            ApiCode::UnknownFlow => "unknown_flow",
            ApiCode::UnknownTool => "unknown_tool",
            ApiCode::UnsupportedMediaType => "unsupported_media_type",
            ApiCode::Kernel(code) => code.as_str(),
        }
    }

    /// What it is called for people, the same every time.
    pub const fn title(self) -> &'static str {
        match self {
            ApiCode::AgentBusy => "The agent is busy",
            ApiCode::AgentRemoved => "The agent was removed",
            ApiCode::AmbiguousCall => "Several calls have this id",
            ApiCode::BadField => "A value can not be used",
            ApiCode::BadJson => "The body can not be read",
            ApiCode::BadSignature => "The webhook is not signed",
            ApiCode::Blocked => "An operator has blocked this",
            ApiCode::EffectKnown => "The effect is known",
            ApiCode::EpochFromTheFuture => "A counter that has not been",
            ApiCode::Forbidden => "Not allowed",
            ApiCode::JobFinished => "The job is over",
            ApiCode::LaterVersion => "Not in this version",
            ApiCode::MethodNotAllowed => "Wrong method",
            ApiCode::NoRoute => "No such path",
            ApiCode::NobodyWaits => "Nobody waits for this key",
            ApiCode::NotByMessage => "Somebody else answers",
            ApiCode::NotNow => "Not in this state",
            ApiCode::OtherInput => "The key belongs to another job",
            ApiCode::PayloadTooLarge => "The body is too large",
            ApiCode::PlanInvalid => "The plan can not be run",
            ApiCode::QueueFull => "The line is full",
            ApiCode::SchemaViolation => "The input does not fit the flow",
            ApiCode::SessionEnded => "The session is over",
            ApiCode::StaleEpoch => "The turn has gone on",
            ApiCode::TaskOver => "The task is over",
            ApiCode::TooLate => "The wait ended before the signal was read",
            ApiCode::TooManyConnections => "Too many connections of the tenant",
            ApiCode::TooManyEarly => "Too many early results",
            ApiCode::TooManyFailures => "Too many failed sign-ins",
            ApiCode::TooManyRefusals => "Too many refused acts",
            ApiCode::TooManyStreams => "Too many live pages",
            ApiCode::TurnOver => "The turn is over",
            ApiCode::Unauthenticated => "A key is needed",
            ApiCode::UnknownCall => "Nothing of the kind is waited for",
            ApiCode::UnknownFlow => "No such flow",
            ApiCode::UnknownTool => "No such tool",
            ApiCode::UnsupportedMediaType => "Wrong content type",
            ApiCode::Kernel(code) => match code {
                Code::BadConfig => "A setting can not be used",
                Code::Corrupt => "Stored data can not be right",
                Code::DataDirectoryInUse => "The data directory is in use",
                Code::DiskFull => "The disk is full",
                Code::FeedLost => "The feed can not be continued",
                Code::Indeterminate => "Written or not, nobody can say",
                Code::LimitPassed => "A limit was passed",
                Code::NewerSchema => "The database is newer than the program",
                Code::NotFound => "Not there",
                Code::QuotaBytes => "The tenant stores as much as it may",
                Code::QuotaOpen => "The tenant has as much open as it may",
                Code::QuotaRate => "The tenant submits too fast",
                Code::ReadOnly => "The database takes no writes",
                Code::Refused => "Refused",
                Code::StaleAttempt => "Another tenure has begun",
                Code::StoreUnavailable => "The store can not be reached",
                Code::VersionConflict => "Another commit came first",
                #[allow(
                    unreachable_patterns,
                    reason = "the kernel's list grows; its names say enough"
                )]
                _ => code.as_str(),
            },
        }
    }
}

impl From<Code> for ApiCode {
    fn from(code: Code) -> Self {
        ApiCode::Kernel(code)
    }
}

/// A request that was not fulfilled. Boxed inside: handlers return it in every `Result`.
#[derive(Clone, Debug)]
pub struct Problem(Box<Members>);

#[derive(Clone, Debug)]
struct Members {
    status: StatusCode,
    code: ApiCode,
    detail: String,
    field: Option<String>,
    fix: Option<String>,
    extra: Map<String, Value>,
    retry_after_s: Option<u64>,
}

/// The members that every problem can have. Others have names of their own: a `status` beside the HTTP status would replace it.
const STANDARD: [&str; 7] = ["type", "title", "status", "detail", "code", "field", "fix"];

/// The members of a problem, as they are sent. Others may follow.
#[derive(Debug, Serialize, ToSchema)]
pub struct ProblemDocument {
    /// The path of a page about the code.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it is called.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// What happened this time.
    pub detail: String,
    /// A stable name.
    pub code: String,
    /// Which input was wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// More members.
    #[serde(flatten)]
    #[schema(ignore)]
    pub extra: Map<String, Value>,
}

impl Problem {
    /// A problem with this status, code and story.
    pub fn new(status: StatusCode, code: impl Into<ApiCode>, detail: impl Into<String>) -> Self {
        Problem(Box::new(Members {
            status,
            code: code.into(),
            detail: detail.into(),
            field: None,
            fix: None,
            extra: Map::new(),
            retry_after_s: None,
        }))
    }

    /// 404: it is not there, or is not the caller's to see.
    pub fn not_found(what: impl fmt::Display) -> Self {
        Problem::new(StatusCode::NOT_FOUND, Code::NotFound, format!("there is no {what}"))
            .fix("check the id; what belongs to another tenant is not shown either")
    }

    /// 422: a value that was understood and can not be used.
    pub fn bad_field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, ApiCode::BadField, detail).field(field)
    }

    /// Which input was wrong.
    pub fn field(mut self, field: impl Into<String>) -> Self {
        self.0.field = Some(field.into());
        self
    }

    /// What to do.
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.0.fix = Some(fix.into());
        self
    }

    /// Another member.
    pub fn with(mut self, member: &str, value: impl Into<Value>) -> Self {
        debug_assert!(!STANDARD.contains(&member), "{member} is a member of every problem");
        self.0.extra.insert(member.to_owned(), value.into());
        self
    }

    /// When it is worth another try.
    pub fn retry_after_s(mut self, seconds: u64) -> Self {
        self.0.retry_after_s = Some(seconds);
        self
    }

    /// Its status.
    pub fn status(&self) -> StatusCode {
        self.0.status
    }

    /// Its code.
    pub fn code(&self) -> ApiCode {
        self.0.code
    }

    /// What happened.
    pub fn detail(&self) -> &str {
        &self.0.detail
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.code.as_str(), self.0.detail)
    }
}

impl std::error::Error for Problem {}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let m = *self.0;
        if m.status.is_server_error() {
            tracing::warn!(
                status = m.status.as_u16(),
                code = m.code.as_str(),
                detail = m.detail,
                "a request failed"
            );
        }
        let document = ProblemDocument {
            kind: format!("/errors/{}", m.code.as_str()),
            title: m.code.title().to_owned(),
            status: m.status.as_u16(),
            detail: m.detail,
            code: m.code.as_str().to_owned(),
            field: m.field,
            fix: m.fix,
            extra: m.extra,
        };
        let mut response = (m.status, Json(document)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = m.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if m.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(e: StoreError) -> Self {
        let (status, fix) = match &e {
            StoreError::Unavailable(_) => (503, "try again; the server does so for a while too"),
            StoreError::Indeterminate(_) => {
                (503, "ask again with the same ids: that is always safe")
            }
            StoreError::DiskFull(_) => (507, "free space at the server; it goes on by itself"),
            StoreError::ReadOnly(_) => (503, "point the server at a database that takes writes"),
            StoreError::Corrupt(_) => (500, "run `tenure verify` at the server"),
            StoreError::NewerSchema { .. } => (500, "use a newer server"),
            StoreError::InUse { .. } => (503, "stop the other process"),
            StoreError::Limit { .. } => (422, "send less at once"),
            StoreError::BadSchema(_) => (422, "change the schema as the text says"),
            StoreError::Refused(_) => (409, "change the request; repeating it does not help"),
            StoreError::Quota(_) => (
                429,
                "try again after Retry-After; GET /v1/quotas shows what is used, and the operator can raise it",
            ),
            StoreError::FeedLost(_) => (410, "read the current state and start anew"),
        };
        // The numbers above are all valid.
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut problem = Problem::new(status, e.code(), e.to_string()).fix(fix);
        if let StoreError::Quota(exceeded) = &e {
            let (used, limit) = (exceeded.used, exceeded.limit);
            problem = problem.field("tenant").with("used", used).with("limit", limit);
            problem = problem.retry_after_s(exceeded.retry_after_s);
        } else if e.is_transient() {
            problem = problem.retry_after_s(1);
        }
        match serde_json::to_value(StoreFault::of(&e)) {
            Ok(fault) => problem.with(FAULT_MEMBER, fault),
            Err(_) => problem,
        }
    }
}
