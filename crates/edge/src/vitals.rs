//! How this process is, from `/proc`.

use crate::SystemClock;
use std::{fs, time::Duration};
use tenure_kernel::{health::Vitals, runtime::Clock as _};

/// How this process is.
pub fn vitals() -> Vitals {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    Vitals {
        clock: Some(SystemClock.now()),
        resident_bytes: resident(&status),
        cpu: cpu(&stat),
        open_files: fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as u64),
    }
}

/// The unit of times in `/proc/PID/stat` is a hundredth of a second on every Linux that we run on.
const TICKS_PER_SECOND: u64 = 100;

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024)
}

fn cpu(stat: &str) -> Option<Duration> {
    // The name before the last parenthesis may hold anything.
    let after = stat.rsplit_once(')')?.1;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(Duration::from_millis((user + system) * 1_000 / TICKS_PER_SECOND))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194560 0 0 0 0 150 50 0 0 20 0 1 0 12345 1 2";
        assert_eq!(cpu(stat), Some(Duration::from_secs(2)));
        assert_eq!(resident("VmPeak:\t9 kB\nVmRSS:\t    12 kB\n"), Some(12 * 1_024));
        assert_eq!((cpu(""), resident("")), (None, None));
    }

    #[test]
    fn this_process_uses_memory() {
        assert!(vitals().resident_bytes.is_some_and(|bytes| bytes > 100_000));
    }
}
