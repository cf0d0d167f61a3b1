//! Starting the binary, waiting for conditions with a bound, and the private services of `./check`.

use std::{
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// The binary under test.
pub fn tenure() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenure"));
    command.stdin(Stdio::null());
    // Settings of whoever runs the tests must not reach the binary.
    for (name, _) in
        std::env::vars().filter(|(n, _)| n.starts_with("TENURE_") && !n.starts_with("TENURE_TEST_"))
    {
        command.env_remove(name);
    }
    command
}

/// Runs it to its end.
pub fn run(args: &[&str], dir: &Path) -> Output {
    tenure().args(args).current_dir(dir).output().expect("the binary starts")
}

/// What it said on standard output.
pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What it said on standard error.
pub fn complained(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A child that does not outlive the test.
pub struct Guarded(pub Child);

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An address of the private services, or a clear word about how to get one.
pub fn service(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!("{name} is not set: run the tests with ./check, or ./check with -- cargo test")
    })
}

/// Waits for a condition, no longer than the bound.
#[expect(clippy::disallowed_methods, reason = "a test waits for other processes on the real clock")]
pub fn wait_until(what: &str, bound: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < bound, "waited {bound:?} for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
