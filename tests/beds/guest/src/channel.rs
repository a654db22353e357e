//! The command channel of a guest: sends scripts to process 1 of the guest, and returns the output
//! and exit codes of the scripts. The protocol consists of lines on a socket.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

/// The error of a command to a guest that has ended, by itself or by a power cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone;

/// The result of a script.
#[derive(Clone, Debug)]
pub struct Output {
    /// The exit code of the script.
    pub code: i32,
    /// The whole output of the script, without white space at the ends.
    pub text: String,
}

#[derive(Debug)]
pub(crate) struct Channel {
    lines: BufReader<UnixStream>,
    calls: u64,
}

impl Channel {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Channel {
            lines: BufReader::new(stream),
            calls: 0,
        }
    }

    /// Waits until process 1 is ready, and returns the release of the guest's kernel.
    pub(crate) fn ready(&mut self, within: Duration) -> Result<String, Gone> {
        let end = Instant::now() + within;
        loop {
            let line = self.line(end, "the boot")?;
            if let Some(release) = line.strip_prefix("ready ") {
                return Ok(release.to_owned());
            }
        }
    }

    /// Runs a script with bash.
    ///
    /// # Panics
    /// Panics if the script takes longer than `within`.
    pub(crate) fn run(&mut self, script: &str, within: Duration) -> Result<Output, Gone> {
        let end = Instant::now() + within;
        self.calls += 1;
        let word = format!("belay-{}-ended", self.calls);
        let line = format!("{word} {}\n", base64(script.as_bytes()));
        let sent = self.lines.get_mut().write_all(line.as_bytes());
        sent.map_err(|_| Gone)?;
        let mut text = String::new();
        loop {
            let line = self.line(end, script)?;
            let code = line
                .strip_prefix(&word)
                .and_then(|code| code.trim().parse().ok());
            if let Some(code) = code {
                let text = text.trim().to_owned();
                return Ok(Output { code, text });
            }
            text.push_str(&line);
            text.push('\n');
        }
    }

    fn line(&mut self, end: Instant, waiting_for: &str) -> Result<String, Gone> {
        let mut line = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            assert!(
                !left.is_zero(),
                "the guest took too long for: {waiting_for}"
            );
            let stream = self.lines.get_ref();
            stream.set_read_timeout(Some(left)).expect("a time limit");
            match self.lines.read_until(b'\n', &mut line) {
                Ok(0) => return Err(Gone),
                Ok(_) if line.ends_with(b"\n") => {
                    let text = String::from_utf8_lossy(&line);
                    return Ok(text.trim_end().to_owned());
                }
                Ok(_) => {}
                Err(error) if is_timeout(&error) => {}
                Err(_) => return Err(Gone),
            }
        }
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for group in bytes.chunks(3) {
        let three = [0, 1, 2].map(|at| group.get(at).copied().unwrap_or(0));
        let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
        for digit in 0..4 {
            let at = usize::try_from(bits >> (18 - 6 * digit) & 63).expect("six bits");
            let is_there = digit <= group.len();
            text.push(if is_there {
                char::from(DIGITS[at])
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_encoded_as_base64_is() {
        for (plain, encoded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("~~~?", "fn5+Pw=="),
        ] {
            assert_eq!(base64(plain.as_bytes()), encoded, "{plain}");
        }
    }
}
