//! A Bloom filter of the lower-cased trigrams of a leaf's names. A search for a literal decodes only the leaves that
//! may have it. Posting lists of trigrams would cost about 20 bytes for each file; this costs one to four.

/// The largest filter; the smallest has 8 bytes.
const BYTES_MAX: usize = 256;
/// Bits for each distinct trigram: a filter that has none of it says so in six of seven cases, for each trigram.
const BITS_EACH: usize = 4;

fn hash(trigram: [u8; 3]) -> u32 {
    let [a, b, c] = trigram.map(|byte| u32::from(byte.to_ascii_lowercase()));
    let mixed = (a | b << 8 | c << 16).wrapping_mul(0x9e37_79b1);
    mixed ^ mixed >> 15
}

fn places(trigram: [u8; 3], bytes: usize) -> [usize; 2] {
    let (hash, mask) = (hash(trigram) as usize, bytes * 8 - 1);
    [hash & mask, hash >> 16 & mask]
}

fn trigrams(name: &[u8]) -> impl Iterator<Item = [u8; 3]> {
    name.windows(3).map(|w| [w[0], w[1], w[2]])
}

/// The filter of these names.
pub fn build<'a>(names: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut filter = vec![0u8; BYTES_MAX];
    for name in names {
        for trigram in trigrams(name) {
            for place in places(trigram, BYTES_MAX) {
                filter[place / 8] |= 1 << (place % 8);
            }
        }
    }
    // Two bits for each trigram, fewer where they meet: half of the set bits, corrected, estimates how many there are.
    let set: u32 = filter.iter().map(|byte| byte.count_ones()).sum();
    let bits = (BYTES_MAX * 8) as f64;
    let distinct = -bits / 2.0 * (1.0 - f64::from(set).min(bits - 1.0) / bits).ln();
    let wanted = (distinct * BITS_EACH as f64 / 8.0) as usize;
    // A place in a filter of half the length is the place without its highest bit, so halves can be laid over each other.
    while filter.len() > 8 && filter.len() / 2 >= wanted {
        let half = filter.len() / 2;
        for i in 0..half {
            filter[i] |= filter[i + half];
        }
        filter.truncate(half);
    }
    filter
}

/// Whether a name in the leaf may contain `literal`, in any case. Always true for literals below three bytes.
pub fn may_contain(filter: &[u8], literal: &[u8]) -> bool {
    trigrams(literal).all(|trigram| {
        places(trigram, filter.len()).iter().all(|place| filter[place / 8] & 1 << (place % 8) > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_in_a_name_is_never_denied(
            names in prop::collection::vec(prop::collection::vec(0u8..=255, 0..24), 0..64),
        ) {
            let filter = build(names.iter().map(Vec::as_slice));
            prop_assert!(filter.len().is_power_of_two() && filter.len() >= 8);
            for name in &names {
                for from in 0..name.len() {
                    prop_assert!(may_contain(&filter, &name[from..]));
                    prop_assert!(may_contain(&filter, &name[from..].to_ascii_uppercase()));
                }
            }
        }
    }

    #[test]
    fn most_of_what_is_absent_is_denied() {
        let names: Vec<String> = (0..125).map(|i| format!("data_{i:04}.dat")).collect();
        let filter = build(names.iter().map(|n| n.as_bytes()));
        assert!(filter.len() <= 128, "{}", filter.len());
        let absent = (0..1_000).filter(|i| may_contain(&filter, format!("q{i:03}z").as_bytes()));
        assert!(absent.count() < 150);
    }
}
