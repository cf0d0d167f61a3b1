//! Tables and counts for people.

/// A table with a heading: columns as wide as their widest cell, the last one as it is.
pub fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(rows).collect();
    let wide = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(wide).collect();
    let mut out = String::new();
    for row in &rows {
        let line: String = row
            .iter()
            .zip(&widths)
            .map(|(cell, wide)| format!("{}  ", padded(cell, *wide)))
            .collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A cell in one line.
fn padded(cell: &str, wide: usize) -> String {
    let flat = cell.replace(['\n', '\r', '\t'], " ");
    format!("{flat:wide$}")
}

/// `1 thing`, `2 things`, `2 entities`.
pub fn plural(n: impl TryInto<u64>, what: &str) -> String {
    let n = n.try_into().unwrap_or(u64::MAX);
    match (n, what.strip_suffix("ty")) {
        (1, _) => format!("1 {what}"),
        (n, Some(stem)) => format!("{n} {stem}ties"),
        (n, None) => format!("{n} {what}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_under_their_heading() {
        let rows = [["añb", "1", "x"], ["a", "200", "y\nz"]].map(|r| r.map(str::to_owned).to_vec());
        let text = table(&["NAME", "N", "WHY"], rows.into_iter());
        assert_eq!(text, "NAME  N    WHY\nañb   1    x\na     200  y z\n");
    }

    #[test]
    fn one_is_no_plural() {
        assert_eq!(plural(0_u64, "job"), "0 jobs");
        assert_eq!(plural(1_usize, "job"), "1 job");
        assert_eq!(plural(2_u32, "open entity"), "2 open entities");
    }
}
