//! The names of tenants.
//!
//! A name has 1 to 128 ASCII letters, digits and `.`, `_`, `-`, `:`, `@`, and begins with a letter or a digit. It is case
//! sensitive. `none` is no name, because settings use the word for "nobody". Separators of settings (`,` `=` `+` space), of paths (`/`)
//! and the wildcard `*` can therefore stand beside a name without a second meaning.
//!
//! Version 0.1 accepted other names. What is stored under them can be read, cancelled and retired; nothing new is created under them.

use crate::limits::NAME_BYTES_MAX;

/// The tenant of those who name none.
pub const DEFAULT: &str = "default";

/// What a name must look like, as the rest of a sentence about one that does not.
pub const FORM: &str =
    "1 to 128 letters, digits and . _ - : @, beginning with a letter or a digit; none is reserved";

/// Whether something may be created under this name.
pub fn is_name(name: &str) -> bool {
    let begins = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:@".contains(c);
    begins && name.len() <= NAME_BYTES_MAX && name.chars().all(fits) && name != "none"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        let longest = "a".repeat(NAME_BYTES_MAX);
        for good in
            ["default", "acme", "Acme-2", "a.b_c", "org:team", "ada@acme.example", "7", &longest]
        {
            assert!(is_name(good), "{good}");
        }
        let longer = "a".repeat(NAME_BYTES_MAX + 1);
        for bad in [
            "",
            "*",
            "*/each",
            "acme/x",
            "a b",
            " a",
            "a,b",
            "a=b",
            "a+b",
            ".",
            "..",
            "-a",
            "_a",
            "none",
            "ä",
            "a\n",
            "a\u{1b}[2J",
            &longer,
        ] {
            assert!(!is_name(bad), "{bad:?}");
        }
    }
}
