//! The mailbox: a resting entity that hears mail for ever. It keeps a count and a running digest of
//! what it heard, in order, so that a lost, repeated or reordered mail shows in one comparison. Its
//! stream grows without end, so it lives on sealed segments.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tenure_kernel::{
    machine::{Cx, Decision, Input, Machine, Undecided},
    mail::Mail,
    stream::Hash,
    table::{BIRTH, Claimable, Class, Move, SAME, StatusRow, Table},
};

/// The kind of mail that closes it.
pub const CLOSE: &str = "close";
const HOUR: Duration = Duration::from_secs(3_600);

/// What it keeps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// How much it has heard.
    pub count: u64,
    /// [`digest`] of everything, in order.
    pub digest: String,
}

/// What happens to it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// It listens.
    MailboxOpened,
    /// Some mail was heard; the totals after it.
    MailHeard {
        /// How much in all.
        count: u64,
        /// The digest of all.
        digest: String,
    },
    /// It was asked to close.
    MailboxClosed,
}

/// The digest after one more mail.
pub fn digest(before: &str, mail: &Mail) -> String {
    let text = format!("{before}|{}|{}|{}", mail.id.0, mail.kind, mail.body.digest());
    Hash::of(text.as_bytes()).to_string()
}

/// The machine.
pub struct Mailbox;

impl Machine for Mailbox {
    type State = State;
    type Event = Event;
    const TABLE: &'static Table = &TABLE;

    fn name(event: &Event) -> &'static str {
        match event {
            Event::MailboxOpened => "mailbox_opened",
            Event::MailHeard { .. } => "mail_heard",
            Event::MailboxClosed => "mailbox_closed",
        }
    }

    fn apply(state: &mut State, event: &Event) {
        if let Event::MailHeard { count, digest } = event {
            (state.count, state.digest) = (*count, digest.clone());
        }
    }

    fn decide(
        state: Option<&State>,
        input: &Input<'_>,
        _cx: &Cx,
    ) -> Result<Decision<Event>, Undecided> {
        let state = state.cloned().unwrap_or_default();
        Ok(match input {
            Input::Create(_) => Decision::event(Event::MailboxOpened),
            Input::CancelUnborn => Decision::event(Event::MailboxOpened).and(Event::MailboxClosed),
            Input::Mail(mail) => {
                let heard = mail.iter().fold(state.digest, |before, m| digest(&before, m));
                let count = state.count + mail.len() as u64;
                let decision = Decision::event(Event::MailHeard { count, digest: heard });
                // A timer of a resting entity: it makes it due, and owes nobody anything.
                let decision =
                    decision.timer(tenure_kernel::timers::TimerChange::set("quiet", HOUR));
                if mail.iter().any(|m| m.kind == CLOSE) {
                    decision.and(Event::MailboxClosed)
                } else {
                    decision
                }
            }
            Input::Timer(_) => {
                let State { count, digest } = state;
                Decision::event(Event::MailHeard { count, digest })
                    .timer(tenure_kernel::timers::TimerChange::clear("quiet"))
            }
            Input::MustEnd | Input::TenureEnded(_) => Decision::default(),
        })
    }
}

/// Its table.
pub static TABLE: Table = Table {
    kind: "mailbox",
    doc: "Hears mail for ever and keeps a digest of it.",
    statuses: &[
        StatusRow {
            name: "listening",
            class: Class::Resting,
            claimable: Claimable::No,
            doc: "Hears whatever comes.",
        },
        StatusRow {
            name: "closed",
            class: Class::Final,
            claimable: Claimable::No,
            doc: "Was asked to close.",
        },
    ],
    moves: &[
        Move { from: BIRTH, event: "mailbox_opened", to: "listening" },
        Move { from: &["listening"], event: "mail_heard", to: SAME },
        Move { from: &["listening"], event: "mailbox_closed", to: "closed" },
    ],
    forced: "closed",
};

#[cfg(test)]
mod tests {
    use super::{super::pocket::Pocket, *};
    use proptest::prelude::*;
    use tenure_kernel::{housekeeping, machine::decode_state, stream::Body};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn everything_is_heard_once_and_in_order(bursts in prop::collection::vec(1usize..40, 1..12)) {
            let mut pocket = Pocket::default();
            let id = pocket.create("mailbox", &Body::Inline(Vec::new()));
            let mut n = 0;
            for burst in bursts {
                for _ in 0..burst {
                    n += 1;
                    pocket.mail(id, &format!("m{n}"), "signal", Body::Inline(vec![1]));
                    // Every mail is sent again, and some older one too.
                    pocket.mail(id, &format!("m{}", 1 + n / 2), "signal", Body::Inline(vec![1]));
                }
                pocket.serve(id);
                if n % 3 == 0 {
                    pocket.seal(id);
                }
            }
            let head = &pocket.store.heads[&id];
            let state: State = decode_state::<Mailbox>(&head.state).unwrap();
            let expected = pocket.store.mail[&id].iter().fold(String::new(), |d, m| digest(&d, m));
            prop_assert_eq!((state.count, state.digest), (n, expected));
            prop_assert_eq!(head.mail_read, n);
            pocket.check();
        }
    }

    #[test]
    fn it_seals_segments_and_goes_on() {
        let mut pocket = Pocket::default();
        let id = pocket.create("mailbox", &Body::Inline(Vec::new()));
        for n in 0..20 {
            pocket.mail(id, &format!("m{n}"), "signal", Body::Inline(vec![n]));
            pocket.serve(id);
            if housekeeping::wants_seal(&pocket.store.heads[&id], 8) {
                pocket.seal(id);
                let sealed = pocket.store.heads[&id].sealed;
                pocket.store.streams.get_mut(&id).unwrap().retain(|r| r.first >= sealed);
            }
        }
        let head = &pocket.store.heads[&id];
        assert!(head.sealed > 8 && pocket.store.streams[&id][0].first == head.sealed);
        let tables = &pocket.store.judge.tables;
        tenure_kernel::verify::verify(head, &pocket.store.streams[&id], tables).unwrap();
    }

    #[test]
    fn a_close_is_final_and_covers_the_mail_before_it() {
        let mut pocket = Pocket::default();
        let id = pocket.create("mailbox", &Body::Inline(Vec::new()));
        pocket.mail(id, "a", "signal", Body::Inline(vec![]));
        pocket.mail(id, "b", CLOSE, Body::Inline(vec![]));
        pocket.serve(id);
        let head = &pocket.store.heads[&id];
        assert_eq!((head.status.name(), head.mail_read), ("closed", 2));
        pocket.check();
    }
}
