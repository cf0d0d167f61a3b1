//! Structured logs on standard error; standard output belongs to answers.

use crate::config::Settings;
use tracing_subscriber::{EnvFilter, fmt};

/// Starts logging as the settings say. A filter that can not be read is an error worth reading.
pub fn start(settings: &Settings) -> Result<(), String> {
    let text = settings.text("log.filter");
    let filter = EnvFilter::try_new(text)
        .map_err(|e| format!("log.filter = {text:?} can not be read: {e}"))?;
    let base = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // An error means that logging was started before, which tests do.
    let _ = match settings.text("log.format") {
        "json" => base.json().try_init(),
        _ => base.with_target(false).try_init(),
    };
    Ok(())
}
