//! Whether the segments of the trail follow each other. Each stream is a chain of its own, which `verify` checks; a segment that
//! is removed or replaced as a whole shows only in what the next one says about it.

use super::{Event, KIND, Previous};
use tenure_kernel::{
    error::StoreError,
    ids::EntityId,
    store::{HeadFilter, Store},
};

/// Segments read from the store at once.
const PAGE: usize = 200;

/// The place between two segments.
#[derive(Clone, Debug)]
struct Joint {
    /// The later one.
    segment: EntityId,
    /// What it says about the one before it.
    says: Option<Previous>,
    /// The one that is there before it.
    before: Option<EntityId>,
    /// The chain value of that one at the version that is named.
    chain: Option<String>,
}

impl Joint {
    fn problem(&self) -> Option<String> {
        let Joint { segment, says, before, chain } = self;
        let why = match (says, before) {
            (None, None) => return None,
            (None, Some(before)) => {
                format!("says that it is the first, and {before} is before it")
            }
            (Some(says), None) => format!("follows {}, which is not there", says.segment),
            (Some(says), Some(before)) if says.segment != *before => {
                format!("follows {}, and {before} is before it", says.segment)
            }
            (Some(says), Some(_)) if chain.as_ref() != Some(&says.chain) => format!(
                "says that {} had the chain value {} at version {}, and it has {}",
                says.segment,
                says.chain,
                says.version,
                chain.as_deref().unwrap_or("none")
            ),
            (Some(_), Some(_)) => return None,
        };
        Some(format!("the segment {segment} of the audit trail {why}"))
    }
}

/// Everything that is wrong between segments, in words. The end of the trail is named by nobody: that its last segments were
/// removed cannot be seen.
pub async fn broken_links(store: &dyn Store) -> Result<Vec<String>, StoreError> {
    let (mut found, mut before) = (Vec::new(), None);
    loop {
        let filter = HeadFilter { kind: Some(KIND.into()), after: before, ..HeadFilter::default() };
        let heads = store.heads(filter, PAGE).await?;
        for head in &heads {
            let says = opened(store, head.id).await?;
            let chain = match &says {
                Some(says) => chain_at(store, says.segment, says.version).await?,
                None => None,
            };
            found.extend(Joint { segment: head.id, says, before, chain }.problem());
            before = Some(head.id);
        }
        if heads.len() < PAGE {
            return Ok(found);
        }
    }
}

/// What the first event of a segment says about the one before it. An event that cannot be read is found by the check of the stream.
async fn opened(store: &dyn Store, segment: EntityId) -> Result<Option<Previous>, StoreError> {
    let records = store.stream(segment, 1, 1).await?;
    let events = records.first().and_then(|record| record.events().ok()).unwrap_or_default();
    let body = events.first().and_then(|event| event.body.inline());
    let event = body.and_then(|body| tenure_kernel::stored::from_slice::<Event>(body).ok());
    Ok(match event {
        Some(Event::AuditSegmentOpened { previous, .. }) => previous,
        _ => None,
    })
}

async fn chain_at(
    store: &dyn Store,
    segment: EntityId,
    version: u64,
) -> Result<Option<String>, StoreError> {
    let records = store.stream(segment, version, 1).await?;
    let at = records.iter().find(|record| record.last() == version);
    Ok(at.map(|record| record.hash.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_that_is_removed_added_or_replaced_is_found() {
        let id = |n| EntityId::fixed(9, n);
        let says =
            |n, chain: &str| Some(Previous { segment: id(n), version: 7, chain: chain.to_owned() });
        let joint = |says, before: Option<u16>, chain: Option<&str>| {
            let (before, chain) = (before.map(id), chain.map(str::to_owned));
            Joint { segment: id(5), says, before, chain }.problem()
        };
        assert_eq!(joint(None, None, None), None, "the first of a store");
        assert_eq!(joint(says(4, "a"), Some(4), Some("a")), None);
        for (broken, why) in [
            (joint(says(4, "a"), None, None), "which is not there"),
            (joint(says(4, "a"), Some(3), None), "is before it"),
            (joint(None, Some(4), None), "says that it is the first"),
            (joint(says(4, "a"), Some(4), Some("b")), "and it has b"),
            (joint(says(4, "a"), Some(4), None), "and it has none"),
        ] {
            let broken = broken.expect(why);
            assert!(broken.contains(why), "{broken}");
        }
    }
}
