//! Moments for people: in the time zone of this machine, or in UTC where `--utc` asks for it. Every moment carries its distance from
//! UTC, so none can be misread. JSON and logs have UTC.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use std::{path::Path, sync::OnceLock};
use tenure_kernel::time::Timestamp;

static ZONE: OnceLock<Tz> = OnceLock::new();

/// Chooses the zone of this process, once; UTC until then.
pub fn choose(utc: bool) {
    let zone = match utc {
        true => Tz::UTC,
        false => {
            let linked = std::fs::read_link("/etc/localtime").ok();
            let named = std::fs::read_to_string("/etc/timezone").ok();
            zone_of(std::env::var("TZ").ok().as_deref(), linked.as_deref(), named.as_deref())
        }
    };
    // An error means that it was chosen before, which tests do.
    let _ = ZONE.set(zone);
}

/// The zone that the variable names; else the one that the link leads to; else the one in the file. UTC where none of them is a name of
/// the time zone database.
fn zone_of(variable: Option<&str>, linked: Option<&Path>, named: Option<&str>) -> Tz {
    let known = |name: &str| name.trim().trim_start_matches(':').parse::<Tz>().ok();
    if let Some(variable) = variable {
        return known(variable).unwrap_or(Tz::UTC);
    }
    let linked = linked.and_then(Path::to_str).and_then(|path| path.split_once("zoneinfo/"));
    let linked = linked.and_then(|(_, name)| known(name));
    linked.or_else(|| named.and_then(known)).unwrap_or(Tz::UTC)
}

fn zone() -> Tz {
    ZONE.get().copied().unwrap_or(Tz::UTC)
}

/// Date and time with milliseconds.
pub fn moment(at: Timestamp) -> String {
    shown(at, zone(), "%Y-%m-%d %H:%M:%S%.3f")
}

/// Date and time to the second.
pub fn second(at: Timestamp) -> String {
    shown(at, zone(), "%Y-%m-%d %H:%M:%S")
}

fn shown(at: Timestamp, zone: Tz, format: &str) -> String {
    // A moment that no calendar has is printed as it is.
    match DateTime::from_timestamp_micros(at.as_micros()) {
        Some(moment) => worded(moment, zone, format),
        None => at.to_string(),
    }
}

fn worded(moment: DateTime<Utc>, zone: Tz, format: &str) -> String {
    let moment = moment.with_timezone(&zone);
    match zone {
        Tz::UTC => format!("{}Z", moment.format(format)),
        _ => format!("{}{}", moment.format(format), moment.format("%:z")),
    }
}

/// A sentence of a server with its moments in the zone of this machine. A server writes them as RFC 3339 in UTC.
pub fn local(sentence: &str) -> String {
    local_in(sentence, zone())
}

fn local_in(sentence: &str, zone: Tz) -> String {
    if zone == Tz::UTC {
        return sentence.to_owned();
    }
    let (mut out, mut rest) = (String::with_capacity(sentence.len()), sentence);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let end = from.find(|c: char| !(c.is_ascii_digit() || "-:.TZ".contains(c)));
        let (word, after) = from.split_at(end.unwrap_or(from.len()));
        // A full stop may end the sentence.
        let (word, dot) = word.strip_suffix('.').map_or((word, ""), |word| (word, "."));
        match DateTime::parse_from_rfc3339(word).ok().filter(|_| word.ends_with('Z')) {
            Some(moment) => out.push_str(&worded(moment.to_utc(), zone, "%Y-%m-%d %H:%M:%S")),
            None => out.push_str(word),
        }
        out.push_str(dot);
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-03-01T12:00:00.25Z.
    const NOON: Timestamp = Timestamp::from_micros(1_772_366_400_250_000);

    #[test]
    fn a_moment_says_how_far_from_utc_it_is() {
        let shown = |zone| super::shown(NOON, zone, "%Y-%m-%d %H:%M:%S%.3f");
        assert_eq!(shown(Tz::UTC), "2026-03-01 12:00:00.250Z");
        assert_eq!(shown(Tz::Europe__Berlin), "2026-03-01 13:00:00.250+01:00");
        assert_eq!(shown(Tz::America__St_Johns), "2026-03-01 08:30:00.250-03:30");
        assert!(super::shown(Timestamp::MAX, Tz::UTC, "%Y").contains('-'), "no panic");
    }

    #[test]
    fn a_sentence_keeps_everything_but_its_moments() {
        let said = "waits since 2026-03-01T12:00:00.250000Z (7 of 8), until 2026-07-01T00:00:00Z. Step 3.1 of 2026-03-01.";
        let there = "waits since 2026-03-01 13:00:00+01:00 (7 of 8), until 2026-07-01 02:00:00+02:00. Step 3.1 of 2026-03-01.";
        assert_eq!(local_in(said, Tz::Europe__Berlin), there);
        assert_eq!(local_in(said, Tz::UTC), said);
        for odd in ["", "1", "2026-03-01T99:00:00Z", "0190b5e0-1234-7abc", "é 5 é"] {
            assert_eq!(local_in(odd, Tz::Europe__Berlin), odd);
        }
    }

    #[test]
    fn the_zone_is_the_one_of_the_variable_then_of_the_machine() {
        let berlin = Path::new("/usr/share/zoneinfo/Europe/Berlin");
        let cases = [
            ((Some("America/New_York"), Some(berlin), None), Tz::America__New_York),
            ((Some(":Asia/Tokyo"), None, None), Tz::Asia__Tokyo),
            ((Some("UTC"), Some(berlin), None), Tz::UTC),
            ((Some(""), Some(berlin), None), Tz::UTC),
            ((Some("CET-1CEST"), Some(berlin), None), Tz::UTC),
            ((None, Some(berlin), Some("Asia/Tokyo\n")), Tz::Europe__Berlin),
            ((None, None, Some("Asia/Tokyo\n")), Tz::Asia__Tokyo),
            ((None, Some(Path::new("/etc/elsewhere")), None), Tz::UTC),
            ((None, None, None), Tz::UTC),
        ];
        for ((variable, linked, named), expected) in cases {
            assert_eq!(
                zone_of(variable, linked, named),
                expected,
                "{variable:?} {linked:?} {named:?}"
            );
        }
    }
}
