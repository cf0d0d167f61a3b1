//! Which known name was probably meant.

/// The name that needs the fewest changes, if that is fewer than every third letter and one more.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let letters = name.chars().count();
    let ranked = known.into_iter().map(|k| (distance(name, k), k)).min();
    ranked.filter(|(d, _)| *d <= letters / 3 + 1).map(|(_, k)| k.to_owned())
}

/// Letters to insert, remove or replace.
fn distance(a: &str, b: &str) -> usize {
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
    }
    row[b.len()]
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
        assert_eq!((distance("", "abc"), distance("kitten", "sitting")), (3, 3));
    }
}
