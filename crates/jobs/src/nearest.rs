//! Which known name was probably meant.

/// Longer names are not compared, neither given nor known: the work is the product of both lengths, and whoever gives
/// the name chooses it.
pub const LETTERS_MAX: usize = 128;

/// The name that needs the fewest changes, if that is fewer than every third letter and one more.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let comparable = |name: &str| name.chars().nth(LETTERS_MAX).is_none();
    if !comparable(name) {
        return None;
    }
    let letters = name.chars().count();
    let known = known.into_iter().filter(|k| comparable(k));
    let ranked = known.filter_map(|k| Some((distance(name, k, letters / 3 + 1)?, k))).min();
    ranked.map(|(_, k)| k.to_owned())
}

/// Letters to insert, remove or replace, if these are no more than `most`.
fn distance(a: &str, b: &str, most: usize) -> Option<usize> {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
        // It never becomes less than the least of a row.
        if row.iter().all(|d| *d > most) {
            return None;
        }
    }
    Some(row[b.len()]).filter(|d| *d <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_name_that_was_meant() {
        let known = ["drill.script", "drill.noops", "ask", "http"];
        let near = |name: &str| nearest(name, known);
        assert_eq!(near("drill.scirpt").as_deref(), Some("drill.script"));
        assert_eq!(near("htp").as_deref(), Some("http"));
        assert_eq!(near("something.else"), None);
        assert_eq!((distance("", "abc", 3), distance("kitten", "sitting", 3)), (Some(3), Some(3)));
        assert_eq!((distance("", "abc", 2), distance("kitten", "sitting", 2)), (None, None));
    }

    #[test]
    fn names_are_compared_up_to_a_length_and_not_past_it() {
        let (longest, longer) = ("é".repeat(LETTERS_MAX), "é".repeat(LETTERS_MAX + 1));
        assert_eq!(nearest(&longest, [longest.as_str()]).as_deref(), Some(longest.as_str()));
        assert_eq!(nearest(&longer, [longer.as_str(), "short"]), None);
        assert_eq!(nearest(&longest, [longer.as_str()]), None, "the known one is too long");
    }
}
