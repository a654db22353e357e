//! The repository as a list of texts, without files that a build has created. Checks nothing.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use crate::mask;

/// One text file of the repository.
pub(crate) struct Text {
    /// The path from the top of the repository, with `/`.
    pub(crate) path: String,
    /// The whole content.
    pub(crate) content: String,
}

impl Text {
    pub(crate) fn new(path: &str, content: &str) -> Self {
        Self {
            path: path.to_owned(),
            content: content.to_owned(),
        }
    }

    /// Returns the text after the last dot of the file name, or the whole name if it contains no
    /// dot.
    pub(crate) fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or(&self.path);
        name.rsplit('.').next().unwrap_or(name)
    }
}

/// A Rust file in three views with the same lines.
pub(crate) struct RustFile {
    /// The path from the top of the repository, with `/`.
    pub(crate) path: String,
    /// The content of the file.
    pub(crate) content: String,
    /// The content with comments and literals blanked.
    pub(crate) code: String,
    /// The code without the block of unit tests at the end.
    pub(crate) product: String,
}

impl RustFile {
    pub(crate) fn new(path: &str, content: &str) -> Self {
        let code = mask::code_of(content);
        let product = mask::without_unit_tests(&code);
        Self {
            path: path.to_owned(),
            content: content.to_owned(),
            code,
            product,
        }
    }
}

static TEXTS: LazyLock<Vec<Text>> = LazyLock::new(read);
static RUST_FILES: LazyLock<Vec<RustFile>> = LazyLock::new(|| {
    let rust = texts().iter().filter(|text| text.extension() == "rs");
    rust.map(|text| RustFile::new(&text.path, &text.content))
        .collect()
});

/// Returns every text file of the repository, sorted by path, without files that git, cargo or the
/// set-up created.
pub(crate) fn texts() -> &'static [Text] {
    &TEXTS
}

/// Returns every Rust file of the repository, sorted by path.
pub(crate) fn rust_files() -> &'static [RustFile] {
    &RUST_FILES
}

fn read() -> Vec<Text> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut texts = Vec::new();
    walk(&top, "", &mut texts);
    assert!(
        texts.len() > 20,
        "found only {} files: is this the repository?",
        texts.len()
    );
    texts.sort_by(|a, b| a.path.cmp(&b.path));
    texts
}

fn walk(directory: &Path, prefix: &str, texts: &mut Vec<Text>) {
    let entries = fs::read_dir(directory);
    assert!(
        entries.is_ok(),
        "cannot read the directory {}",
        directory.display()
    );
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if is_made_by_tools(&path) {
            continue;
        }
        let kind = entry.file_type();
        if kind.as_ref().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), &format!("{path}/"), texts);
        } else if kind.is_ok_and(|kind| kind.is_file()) {
            // A file that is not UTF-8 is not a text.
            if let Ok(content) = fs::read_to_string(entry.path()) {
                texts.push(Text { path, content });
            }
        }
    }
}

/// Whether a tool created the file. In a linked worktree, `.git` is a file that names a directory
/// of this machine.
fn is_made_by_tools(path: &str) -> bool {
    matches!(path, ".git" | "target")
}
