//! Reads whole files and standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::Failure;

/// More than any secret, saved answer or request has; a device or an endless pipe ends here.
const BYTES_MAX: u64 = 4 << 20;

/// The text of a file; `-` is standard input.
///
/// # Errors
/// The file cannot be read, is larger than 4 MiB, or is not UTF-8.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    read_up_to(file, BYTES_MAX)
}

/// As [`read`], with a limit in bytes, a whole number of MiB.
///
/// # Errors
/// The file cannot be read, is larger, or is not UTF-8.
pub(crate) fn read_up_to(file: &Path, bytes_max: u64) -> Result<String, Failure> {
    let fail = |error: io::Error| Failure::Usage(format!("{}: {error}", file.display()));
    let text = if file == Path::new("-") {
        limited(io::stdin().lock(), bytes_max)
    } else {
        File::open(file).and_then(|file| limited(file, bytes_max))
    };
    text.map_err(fail)
}

fn limited(from: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let read = from.take(bytes_max + 1).read_to_string(&mut text)?;
    if read as u64 > bytes_max {
        let message = format!("larger than {} MiB", bytes_max >> 20);
        return Err(io::Error::other(message));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endless_file_is_refused() {
        let error = limited(io::repeat(b'a'), BYTES_MAX).unwrap_err();
        assert_eq!(error.to_string(), "larger than 4 MiB");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = read(Path::new("/nonexistent/a")).unwrap_err().to_string();
        assert!(error.starts_with("/nonexistent/a: No such file"), "{error}");
    }
}
