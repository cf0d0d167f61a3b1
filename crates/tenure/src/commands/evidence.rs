//! `tenure export`, `tenure verify FILE` and `tenure evidence key`: a job as one file, its check without a store,
//! and the key that signs it.

use super::{
    Failure, files,
    job::{client::Api, whole_id},
    judge,
    table::plural,
};
use crate::{
    cli::{self, EvidenceAction},
    config::Settings,
    terminal,
};
use reqwest::Method;
use std::{
    fs,
    io::Write as _,
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};
use tenure_edge::TokioRuntime;
use tenure_jobs::export::{
    self, BadKey, FILE_BYTES_MAX, PROBLEMS_MAX, PublicKey, SigningKey, Trust,
};
use tenure_kernel::runtime::Runtime as _;

/// What `evidence.key_file` names, if it names one.
pub fn signing_key(settings: &Settings) -> Result<Option<SigningKey>, Failure> {
    let path = settings.text("evidence.key_file");
    if path.is_empty() {
        return Ok(None);
    }
    let bad = |why: String| {
        Failure::System(format!("evidence.key_file = {path:?} can not be used: {why}"))
    };
    let about = fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if about.mode() & 0o007 != 0 {
        let mode = about.mode() & 0o777;
        return Err(bad(format!("its mode {mode:o} lets everybody read or change it: chmod 600")));
    }
    let text =
        files::text(fs::File::open(path).map_err(|e| bad(e.to_string()))?, files::INPUT_BYTES_MAX)
            .map_err(bad)?;
    SigningKey::from_pem(&text).map(Some).map_err(|e| bad(e.to_string()))
}

/// Makes a key.
pub fn run(action: &EvidenceAction, json: bool) -> Result<String, Failure> {
    let EvidenceAction::Key { out } = action;
    let rt = TokioRuntime::current();
    let mut seed = [0; 32];
    for part in seed.chunks_mut(8) {
        part.copy_from_slice(&rt.random().to_be_bytes()[..part.len()]);
    }
    let key = SigningKey::from_seed(&seed);
    let bad = |e: BadKey| Failure::System(e.to_string());
    let public = key.public();
    let beside = PathBuf::from(format!("{}.pub.pem", out.display()));
    write_new(out, key.to_pem().map_err(bad)?.as_bytes(), 0o600)?;
    write_new(&beside, public.to_pem().map_err(bad)?.as_bytes(), 0o644)?;
    if json {
        let said = serde_json::json!({ "file": out, "public_file": beside, "public_key": public.hex(), "key_id": public.id() });
        return Ok(format!("{said}\n"));
    }
    Ok(format!(
        "{}public key {}\nkey id     {}\nThe private key is in {}: only you can read it. Set evidence.key_file to it, and give {} to \
         whoever checks exports.\n",
        public.to_pem().map_err(bad)?,
        public.hex(),
        public.id(),
        out.display(),
        beside.display()
    ))
}

/// Never over something that is there: it may be the only copy of a key, or evidence itself.
fn write_new(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Failure> {
    let bad =
        |e: std::io::Error| Failure::System(format!("{} can not be written: {e}", path.display()));
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(bad)?;
    file.write_all(bytes).map_err(bad)?;
    file.sync_all().map_err(bad)
}

/// Fetches an export.
pub async fn export(options: &cli::Export, json: bool) -> Result<String, Failure> {
    let api = Api::new(&options.server, json)?;
    let id = whole_id(&api, &options.job.id).await?;
    let mut query = vec![("children", options.with_children.to_string())];
    query.extend(options.server.by.clone().map(|by| ("by", by)));
    let request = api.request(Method::GET, &["jobs", &id, "export"]).query(&query);
    let answer = api.send(request).await?;
    let most = usize::try_from(FILE_BYTES_MAX).unwrap_or(usize::MAX);
    let bytes = api.whole(answer, most).await?;
    let Some(out) = &options.out else {
        terminal::print_raw(&bytes)?;
        return Ok(String::new());
    };
    write_new(out, &bytes, 0o600)?;
    let signed = export::is_signed(&bytes);
    Ok(match json {
        true => {
            let (file, bytes) = (out, bytes.len());
            let said =
                serde_json::json!({ "job": id, "file": file, "bytes": bytes, "signed": signed });
            format!("{said}\n")
        }
        false => exported(bytes.len(), out, signed),
    })
}

/// How to check a file, as it is: one without a signature is checked only by who accepts that.
fn exported(bytes: usize, out: &Path, signed: bool) -> String {
    let file = out.display();
    match signed {
        true => format!("{bytes} bytes in {file}. `tenure verify {file}` checks it, anywhere.\n"),
        false => format!(
            "{bytes} bytes in {file}, not signed: anybody could have written it. `tenure verify {file} --allow-unsigned` checks \
             the rest; with evidence.key_file set, the server signs exports.\n"
        ),
    }
}

/// Checks an export.
pub fn verify(file: &Path, options: &cli::Verify, json: bool) -> Result<String, Failure> {
    let unreadable =
        |e: std::io::Error| Failure::System(format!("{} can not be read: {e}", file.display()));
    let opened = fs::File::open(file).map_err(unreadable)?;
    let bytes = files::at_most(opened, FILE_BYTES_MAX).map_err(unreadable)?;
    let bytes = bytes.ok_or_else(|| {
        let path = file.display();
        Failure::System(format!(
            "{path} has more than {FILE_BYTES_MAX} bytes (FILE_BYTES_MAX), and no export has"
        ))
    })?;
    let key = options.key.as_deref().map(public_key).transpose()?;
    let trust = Trust { key, allow_unsigned: options.allow_unsigned };
    let report = export::verify(&bytes, &judge().tables, &trust);
    let said = match json {
        true => format!("{}\n", serde_json::json!(report)),
        false => report.to_string(),
    };
    if report.ok {
        return Ok(said);
    }
    terminal::print(&said);
    let problems = match report.problems.len() {
        n if n > PROBLEMS_MAX => format!("more than {PROBLEMS_MAX} problems"),
        n => plural(n, "problem"),
    };
    Err(Failure::Found(format!("{} is not to be trusted: {problems}", file.display())))
}

fn public_key(given: &str) -> Result<PublicKey, Failure> {
    let path = Path::new(given);
    let text = match path.exists() {
        true => files::read(path)?,
        false => given.to_owned(),
    };
    PublicKey::from_text(&text).map_err(|e| Failure::System(format!("--key {given}: {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_about_an_export_is_what_verify_accepts() {
        let file = Path::new("job.jsonl");
        assert!(exported(5, file, true).contains("`tenure verify job.jsonl` checks it"));
        let unsigned = exported(5, file, false);
        assert!(unsigned.contains("`tenure verify job.jsonl --allow-unsigned`"), "{unsigned}");
        assert!(export::is_signed(b"{\"line\":\"export\"}\n{\"line\":\"end\",\"signature\":{}}\n"));
        assert!(!export::is_signed(b"{\"line\":\"export\"}\n{\"line\":\"end\"}\n"));
        assert!(!export::is_signed(b""));
    }
}
