//! What is remembered of a pod, made short. Pure.
//!
//! It is JSON, and three quarters of it are the same few words and moments in every pod. JSON has no bytes below 0x20 in it, and UTF-8 has
//! none of some others; each of these stands for a word here. So seven hundred bytes become less than two hundred, without a
//! table that would have to be kept, and what nobody foresaw is as long as it was, and as true.

/// The words. Each begins with a quote or a brace, and a longer one stands before one that it begins with. What is kept lives no longer
/// than the process, so they may be changed.
const WORDS: &[&[u8]] = &[
    br#"{"metadata":{"name":""#,
    br#"","namespace":""#,
    br#"","creationTimestamp":""#,
    br#""},"spec":{"nodeName":""#,
    br#"","restartPolicy":"Never","#,
    br#"","restartPolicy":""#,
    br#""terminationGracePeriodSeconds":30,"containers":[{"name":""#,
    br#""containers":[{"name":""#,
    br#""}]},"status":{"phase":"Running"#,
    br#""}]},"status":{"phase":""#,
    br#"","startTime":""#,
    br#"","conditions":["#,
    br#"{"type":"PodReadyToStartContainers","status":"True","lastTransitionTime":""#,
    br#"{"type":"PodReadyToStartContainers","status":"False","lastTransitionTime":""#,
    br#"{"type":"Initialized","status":"True","lastTransitionTime":""#,
    br#"{"type":"Ready","status":"True","lastTransitionTime":""#,
    br#"{"type":"Ready","status":"False","#,
    br#"{"type":"ContainersReady","status":"True","lastTransitionTime":""#,
    br#"{"type":"ContainersReady","status":"False","#,
    br#"{"type":"PodScheduled","status":"True","lastTransitionTime":""#,
    br#"{"type":""#,
    br#""reason":"ContainersNotReady","message":"containers with unready status: ["#,
    br#"","lastTransitionTime":""#,
    br#""status":""#,
    br#""}],"containerStatuses":[{"name":""#,
    br#""}],"initContainerStatuses":[{"name":""#,
    br#"","ready":true,"started":true,"state":{"running":{"startedAt":""#,
    br#"","ready":true"#,
    br#"","started":"#,
    br#""restartCount":"#,
    br#""state":{"running":{"startedAt":""#,
    br#""state":{"terminated":{"exitCode":"#,
    br#""state":{"waiting":{"#,
    br#""lastState":{"terminated":{"exitCode":"#,
    br#""finishedAt":""#,
    br#"","startedAt":""#,
    br#""reason":""#,
    br#""message":""#,
    br#""annotations":{""#,
    br#"","deletionTimestamp":""#,
    br#""deletionGracePeriodSeconds":"#,
    br#""initContainers":[{"name":""#,
];

/// Stands before a moment, whose fourteen digits follow in six bytes.
const MOMENT: u8 = 0;
const DIGITS: &[u8] = b"0000-00-00T00:00:00Z";

/// The byte that stands for a word.
const fn code(word: usize) -> u8 {
    // Bytes that are in no UTF-8 follow on those that are in no JSON.
    const NO_UTF8: [u8; 13] =
        [0xc0, 0xc1, 0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff];
    match word {
        0..31 => word as u8 + 1,
        _ => NO_UTF8[word - 31],
    }
}

/// The word for which a byte stands, by the byte; [`NO_WORD`] for others.
const WORD_OF: [u8; 256] = {
    let mut table = [NO_WORD; 256];
    let mut word = 0;
    while word < WORDS.len() {
        table[code(word) as usize] = word as u8;
        word += 1;
    }
    table
};
const NO_WORD: u8 = u8::MAX;

/// The fourteen digits of a moment, if one begins here.
fn moment(text: &[u8]) -> Option<u64> {
    let mut number = 0;
    for (like, byte) in DIGITS.iter().zip(text.get(..DIGITS.len())?) {
        match (like, byte) {
            (b'0', b'0'..=b'9') => number = number * 10 + u64::from(byte - b'0'),
            (like, byte) if like == byte => {}
            _ => return None,
        }
    }
    Some(number)
}

/// Makes JSON short.
pub(super) fn shorten(json: &[u8]) -> Box<[u8]> {
    let mut out = Vec::with_capacity(json.len());
    let mut at = 0;
    while let Some(rest) = json.get(at..).filter(|r| !r.is_empty()) {
        if rest[0].is_ascii_digit()
            && let Some(number) = moment(rest)
        {
            out.push(MOMENT);
            out.extend_from_slice(&number.to_be_bytes()[2..]);
            at += DIGITS.len();
        } else if (rest[0] == b'"' || rest[0] == b'{')
            && let Some(word) = WORDS.iter().position(|w| rest.starts_with(w))
        {
            out.push(code(word));
            at += WORDS[word].len();
        } else {
            out.push(rest[0]);
            at += 1;
        }
    }
    // Copied, not shrunk: an allocator leaves a block that shrinks where it is, as large as it was.
    out.as_slice().into()
}

/// The JSON again.
pub(super) fn lengthen(short: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(short.len() * 5);
    let mut rest = short;
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if let (MOMENT, Some((digits, behind))) = (*first, rest.split_at_checked(6)) {
            rest = behind;
            let mut number = digits.iter().fold(0, |n, b| n << 8 | u64::from(*b));
            let from = out.len();
            out.extend_from_slice(DIGITS);
            for place in (from..out.len()).rev().filter(|p| DIGITS[p - from] == b'0') {
                out[place] = b'0' + (number % 10) as u8;
                number /= 10;
            }
        } else if let Some(word) = WORDS.get(usize::from(WORD_OF[usize::from(*first)])) {
            out.extend_from_slice(word);
        } else {
            out.push(*first);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_pod_that_runs_is_a_quarter_of_its_json() {
        let condition = |kind: &str| {
            format!(
                r#"{{"type":"{kind}","status":"True","lastTransitionTime":"2026-01-01T00:00:02Z"}}"#
            )
        };
        let kinds = [
            "PodReadyToStartContainers",
            "Initialized",
            "Ready",
            "ContainersReady",
            "PodScheduled",
        ];
        let conditions = kinds.map(condition).join(",");
        let json = format!(
            r#"{{"metadata":{{"name":"ff-1234-train-3","namespace":"default","creationTimestamp":"2026-01-01T00:00:00Z"}},"spec":{{"nodeName":"node-1","restartPolicy":"Never","terminationGracePeriodSeconds":30,"containers":[{{"name":"main"}}]}},"status":{{"phase":"Running","startTime":"2026-01-01T00:00:01Z","conditions":[{conditions}],"containerStatuses":[{{"name":"main","ready":true,"started":true,"state":{{"running":{{"startedAt":"2026-01-01T00:00:02Z"}}}}}}]}}}}"#
        );
        let short = shorten(json.as_bytes());
        assert_eq!(String::from_utf8(lengthen(&short)).unwrap(), json);
        assert!(short.len() * 4 < json.len(), "{} of {}", short.len(), json.len());
    }

    #[test]
    fn every_word_has_a_byte_of_its_own_and_can_be_met() {
        let codes: BTreeSet<u8> = (0..WORDS.len()).map(code).collect();
        assert_eq!(codes.len(), WORDS.len());
        assert!(codes.iter().all(|c| *c != MOMENT && (*c < 0x20 || *c >= 0xc0)));
        for (i, word) in WORDS.iter().enumerate() {
            assert_eq!(shorten(word).len(), 1, "{}", String::from_utf8_lossy(word));
            assert_eq!(lengthen(&[code(i)]), *word);
        }
    }

    proptest! {
        #[test]
        fn any_text_in_json_comes_back(texts in proptest::collection::vec(".*", 0..6), words in proptest::collection::vec(0..WORDS.len(), 0..6), time in any::<u32>()) {
            let time = format!("{:04}-12-0{}T23:59:5{}Z", time % 10_000, time % 10, time % 7);
            let mut json = serde_json::to_vec(&(texts, time)).unwrap();
            for word in words {
                json.extend_from_slice(WORDS[word]);
            }
            prop_assert_eq!(lengthen(&shorten(&json)), json);
        }

        /// Whatever it is that came from elsewhere, nothing breaks.
        #[test]
        fn anything_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            lengthen(&bytes);
        }
    }
}
