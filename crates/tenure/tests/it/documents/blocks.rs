//! The blocks of code in the pages of the project.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Pages for people who use the project, beside everything under `docs`.
const PAGES: [&str; 4] =
    ["README.md", "CONTRIBUTING.md", "bench/README.md", "sdk/python/README.md"];
const UNTESTED: &str = "<!-- untested:";

/// The root of the checkout.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every page, by its path from the root.
pub fn pages(root: &Path) -> Vec<String> {
    let docs = files(&root.join("docs"), "md");
    let docs = docs.iter().map(|path| path.strip_prefix(root).unwrap().to_str().unwrap());
    let mut found: Vec<String> = PAGES.into_iter().chain(docs).map(str::to_owned).collect();
    found.sort();
    found
}

/// All files below a directory whose names end so.
pub fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let (mut found, mut directories) = (Vec::new(), vec![directory.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.extension().is_some_and(|e| e == extension) {
                found.push(path);
            }
        }
    }
    found
}

/// A block of code.
pub struct Block {
    /// The page, by its path from the root.
    pub page: String,
    /// The line of its fence, from 1.
    pub line: usize,
    /// The language that the fence names.
    pub language: String,
    /// What stands in it.
    pub text: String,
    /// Why nothing tests it, if the page says so.
    pub untested: Option<String>,
}

impl Block {
    /// Page and language.
    pub fn place(&self) -> (&str, &str) {
        (&self.page, &self.language)
    }

    /// The commands of a block for a shell: all lines of `sh`; of `console` those behind a `$`, with the lines that continue them.
    pub fn commands(&self) -> String {
        if self.language != "console" {
            return self.text.clone();
        }
        let (mut commands, mut goes_on) = (String::new(), false);
        for line in self.text.lines() {
            let command = line.strip_prefix("$ ");
            if goes_on || command.is_some() {
                let line = command.unwrap_or(line);
                commands.push_str(line);
                commands.push('\n');
                goes_on = line.ends_with('\\');
            }
        }
        commands
    }

    /// What a `console` block shows as the output of its commands.
    pub fn output(&self) -> String {
        let commands = self.commands();
        let typed: Vec<&str> = commands.lines().collect();
        let is_output = |line: &&str| !typed.contains(&line.strip_prefix("$ ").unwrap_or(line));
        self.text.lines().filter(is_output).map(|line| format!("{line}\n")).collect()
    }
}

/// The blocks of a page.
pub fn blocks(root: &Path, page: &str) -> Vec<Block> {
    of(page, &fs::read_to_string(root.join(page)).unwrap())
}

/// The blocks of a text.
pub fn of(page: &str, text: &str) -> Vec<Block> {
    let (mut found, mut open, mut before) = (Vec::new(), None::<Block>, "");
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, open.take()) {
            (Some(_), Some(block)) => found.push(block),
            (Some(language), None) => {
                let untested = before.trim().strip_prefix(UNTESTED);
                open = Some(Block {
                    page: page.to_owned(),
                    line: index + 1,
                    language: language.trim().to_owned(),
                    text: String::new(),
                    untested: untested
                        .map(|reason| reason.trim_end_matches("-->").trim().to_owned()),
                });
            }
            (None, Some(mut block)) => {
                block.text.push_str(line);
                block.text.push('\n');
                open = Some(block);
            }
            (None, None) => {}
        }
        before = line;
    }
    assert!(open.is_none(), "{page}: a block has no end");
    found
}

/// Code within sentences, outside of blocks.
pub fn inline(text: &str) -> impl Iterator<Item = String> {
    let (mut prose, mut in_block) = (String::new(), false);
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_block = !in_block;
        } else if !in_block {
            prose.push_str(line);
            prose.push('\n');
        }
    }
    let parts: Vec<String> = prose.split('`').map(|part| part.replace('\n', " ")).collect();
    parts.into_iter().enumerate().filter(|(i, _)| i % 2 == 1).map(|(_, part)| part)
}
