//! What is known of pods, as it is written down: after a restart what has gone meanwhile is missed, and nothing is said twice.
//!
//! **In pieces.** Ten thousand pods took a tenth of a second to be written (debug build), in which nothing would be seen and nobody told. So they are
//! written in the order of their uids, some at a time ([`Core::marks_after`]), and between two pieces pods come, change and go. What is said
//! meanwhile lies in the spool behind the moment at which the first piece was begun, and is read after the pieces that do not know of it. What is not said yet lies nowhere else: it is looked up when its pod's mark is made, and pods that
//! are gone by the end are written last ([`Core::marks_of_gone`]).

use super::{
    super::{saying::Saying, short::lengthen, spool::Mark},
    Core, LeanPod, Record, Said, Who, behind, shorten, who,
};
use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
};

impl Core {
    /// What was known before a restart. With `said` nothing is said again that was said then.
    pub fn load(&mut self, marks: Vec<Mark>, said: bool) {
        for mark in marks {
            let pod = LeanPod::recall(mark.facts.as_bytes()).0;
            let who = Who {
                task: mark.task.into(),
                workflow: mark.workflow.into(),
                tenant: mark.tenant.into(),
                attempt: mark.attempt,
            };
            let status = mark.last.as_ref().and_then(|l| l.status);
            let key = behind(&mark.uid, &mark.said).into();
            let before = Said { key, status, over: mark.over };
            let record = Box::new(Record {
                who,
                node: who::node(&pod).map(Box::from),
                facts: shorten(mark.facts.as_bytes()),
                last: mark.last.map(Box::new),
                said: Some(before).filter(|s| said && !s.key.is_empty()),
                check: None,
                list: 0,
                done: mark.over && said,
            });
            self.pods.insert(mark.uid.into(), record);
        }
    }

    /// What is known now, and what of it was said.
    pub fn marks(&self) -> impl Iterator<Item = Mark> {
        self.marks_before(&[])
    }

    /// The same as long as these are not written down elsewhere. What is still to be said is marked as not said, and
    /// pods of which that is all that is left are marked as if they were there: they are missed after a restart.
    pub fn marks_before<'a>(&'a self, open: &'a [Saying]) -> impl Iterator<Item = Mark> + 'a {
        let unsaid = self.unsaid_uids(open);
        let known = self.pods.iter().map(move |(uid, record)| self.mark(uid, record, &unsaid));
        known.chain(self.gone_but_unsaid(open))
    }

    /// The next so many behind this uid (in front of all of them: the empty one). Fewer than that: these were the last.
    pub fn marks_after(&self, uid: &str, most: usize) -> Vec<Mark> {
        let unsaid = self.unsaid_uids(&[]);
        let next = self.pods.range::<str, _>((Bound::Excluded(uid), Bound::Unbounded));
        next.take(most).map(|(uid, record)| self.mark(uid, record, &unsaid)).collect()
    }

    /// Pods that are gone and of which something is still to be said.
    pub fn marks_of_gone(&self) -> Vec<Mark> {
        self.gone_but_unsaid(&[])
    }

    fn mark(&self, uid: &str, record: &Record, unsaid: &HashSet<&str>) -> Mark {
        let open = unsaid.contains(uid) || self.later.has(uid);
        let told = self.told(record).filter(|_| !open);
        Mark {
            uid: uid.to_owned(),
            task: record.who.task.to_string(),
            workflow: record.who.workflow.to_string(),
            tenant: record.who.tenant.to_string(),
            attempt: record.who.attempt,
            said: told.map(|s| format!("{uid}{}", s.key)).unwrap_or_default(),
            over: told.is_some_and(|s| s.over),
            facts: String::from_utf8_lossy(&lengthen(&record.facts)).into_owned(),
            last: record.last.as_deref().cloned(),
        }
    }

    /// What is still to be said, but for what is only put off.
    fn unsaid<'a>(&'a self, open: &'a [Saying]) -> impl Iterator<Item = &'a Saying> {
        let unsaid = self.unsaid.iter().map(|(_, saying)| &**saying);
        unsaid.filter(|_| !self.active).chain(open)
    }

    fn unsaid_uids<'a>(&'a self, open: &'a [Saying]) -> HashSet<&'a str> {
        self.unsaid(open).map(|s| s.report.pod.uid.as_str()).collect()
    }

    fn gone_but_unsaid(&self, open: &[Saying]) -> Vec<Mark> {
        let unsaid = self.later.all().chain(self.unsaid(open));
        let gone = unsaid.filter(|s| !self.pods.contains_key(s.report.pod.uid.as_str()));
        // The last about a pod says the most.
        let gone: BTreeMap<&str, &Saying> = gone.map(|s| (s.report.pod.uid.as_str(), s)).collect();
        gone.into_values().map(Saying::unsaid_mark).collect()
    }

    /// What was said of it, by us: who only listens notes down what it would have said, and has said nothing.
    fn told<'a>(&self, record: &'a Record) -> Option<&'a Said> {
        record.said.as_ref().filter(|_| self.active || record.done)
    }
}
