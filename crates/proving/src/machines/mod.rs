//! Hostile machines: small kinds of work, each of which takes one promise of the kernel to its edge.
//!
//! | machine | takes to the edge |
//! |---|---|
//! | [`fanout`] | a thousand children, results in any order and twice, a head of 16 KiB |
//! | [`mailbox`] | mail for ever: order, nothing lost, sealed segments |
//! | [`family`] | cancel at any point, also before birth; no parent final before its children |
//! | [`errand`] | an outside effect in two steps, under takeovers |

use tenure_kernel::{ids::EntityId, machine::Machines, stream::Body};

pub mod errand;
pub mod family;
pub mod fanout;
pub mod mailbox;

#[cfg(test)]
mod pocket;

/// Every machine of this crate, and the kernel's own.
pub fn machines() -> Machines {
    Machines::kernel()
        .with::<errand::Errand>()
        .with::<family::Family>()
        .with::<fanout::Fanout>()
        .with::<fanout::Part>()
        .with::<mailbox::Mailbox>()
}

/// The body of a `child_ended` mail: who ended.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ChildEnded {
    /// The child.
    pub child: EntityId,
    /// Its number among its siblings.
    pub number: u32,
}

/// Reads a JSON body that lies in place. Mail comes from anybody, so what can not be read is no error.
pub(crate) fn read<T: serde::de::DeserializeOwned>(body: &Body) -> Option<T> {
    serde_json::from_slice(body.inline()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_sound_and_documented() {
        for table in machines().tables().iter() {
            assert_eq!(table.problems(), Vec::<String>::new(), "{}", table.kind);
            let page = table.to_markdown();
            assert_eq!(page, table.to_markdown(), "the page is stable");
            for row in table.statuses {
                assert!(page.contains(&format!("`{}`", row.name)) && !row.doc.is_empty());
            }
            for step in table.moves {
                assert!(page.contains(&format!("`{}`", step.event)));
            }
        }
    }
}
