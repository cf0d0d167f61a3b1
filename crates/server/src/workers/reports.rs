//! Which entity a JSON document names as the one that is told how its own entity ended: read strictly, without building the
//! document.
//!
//! A machine reads the same bytes into its own types, and those accept more than one spelling: a struct may be written as an
//! array, and of two members of one name one is taken or both are refused. What is not spelled as the machine's own
//! encoder does it is therefore refused here.

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::fmt;
use tenure_kernel::ids::EntityId;

/// The document names it in another way than a machine does.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Misspelled;

/// The entity that a document names at a JSON pointer of plain member names; `None` where it names nobody.
pub(super) fn named(pointer: &str, document: &[u8]) -> Result<Option<EntityId>, Misspelled> {
    if document.is_empty() {
        return Ok(None);
    }
    let mut json = serde_json::Deserializer::from_slice(document);
    let path: Vec<&str> = pointer.split('/').skip(1).collect();
    let found = At(&path).deserialize(&mut json).map_err(|_| Misspelled)?;
    json.end().map_err(|_| Misspelled)?;
    Ok(found)
}

/// What is left of the path.
struct At<'p>(&'p [&'p str]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<EntityId>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<EntityId>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "the id of an entity" } else { "an object" })
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        match self.0.is_empty() {
            true => text.parse().map(Some).map_err(E::custom),
            false => Err(E::custom("an object is expected")),
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let Some((first, rest)) = self.0.split_first() else {
            return Err(A::Error::custom("the id of an entity is expected"));
        };
        let mut found = None;
        while let Some(name) = members.next_key::<String>()? {
            if name != *first {
                members.next_value::<IgnoredAny>()?;
            } else if found.replace(members.next_value_seed(At(rest))?).is_some() {
                return Err(A::Error::custom("a member is there twice"));
            }
        }
        Ok(found.flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entity_is_found_as_a_machine_writes_it_and_every_other_spelling_is_refused() {
        let id = EntityId::fixed(7, 7);
        let read = |text: String| named("/parent/job", text.as_bytes());
        assert_eq!(
            read(format!(r#"{{"a":[{{"parent":1}}],"parent":{{"n":1,"job":"{id}"}}}}"#)),
            Ok(Some(id))
        );
        assert_eq!(read(format!(r#"{{"par\u0065nt":{{"job":"{id}"}}}}"#)), Ok(Some(id)));
        for nobody in ["", "{}", "null", r#"{"parent":null}"#, r#"{"parent":{"job":null}}"#] {
            assert_eq!(read(nobody.to_owned()), Ok(None), "{nobody}");
        }
        for other in [
            format!(r#"{{"parent":["{id}",0,0]}}"#),
            format!(r#"[0,{{"parent":{{"job":"{id}"}}}}]"#),
            format!(r#"{{"parent":null,"parent":{{"job":"{id}"}}}}"#),
            format!(r#"{{"parent":{{"job":null,"job":"{id}"}}}}"#),
            format!(r#"{{"parent":{{"job":["{id}"]}}}}"#),
            format!(r#"{{"parent":"{id}"}}"#),
            r#"{"parent":{"job":"nobody"}}"#.to_owned(),
            r#"{"parent":{"job":7}}"#.to_owned(),
            r#"{} {}"#.to_owned(),
            "{".to_owned(),
        ] {
            assert_eq!(read(other.clone()), Err(Misspelled), "{other}");
        }
        assert_eq!(named("/job", format!(r#"{{"job":"{id}"}}"#).as_bytes()), Ok(Some(id)));
        let deep = format!("{{\"a\":{}{},\"job\":\"{id}\"}}", "[".repeat(200), "]".repeat(200));
        assert_eq!(
            named("/job", deep.as_bytes()),
            Ok(Some(id)),
            "stored JSON may be 256 levels deep"
        );
    }
}
