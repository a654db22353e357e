//! The records of a pax header: `LENGTH KEY=VALUE` and a line feed. LENGTH is the length of the
//! whole record, in bytes.

use super::Time;
use std::io::Write as _;

pub(super) const PATH: &str = "path";
pub(super) const TARGET: &str = "linkpath";
pub(super) const SIZE: &str = "size";
pub(super) const USER: &str = "uid";
pub(super) const GROUP: &str = "gid";
pub(super) const MODIFIED: &str = "mtime";
pub(super) const ACCESSED: &str = "atime";
/// The prefix of the keys of extended attributes.
pub(super) const ATTRIBUTE: &str = "SCHILY.xattr.";
/// The prefix of the keys that describe sparse files.
pub(super) const SPARSE: &str = "GNU.sparse.";
pub(super) const SPARSE_MAJOR: &str = "GNU.sparse.major";
pub(super) const SPARSE_MINOR: &str = "GNU.sparse.minor";
pub(super) const SPARSE_NAME: &str = "GNU.sparse.name";
pub(super) const SPARSE_SIZE: &str = "GNU.sparse.realsize";
/// The key of Belay's own record for files with several names.
pub(super) const LINKS: &str = "BELAY.links";
/// The key of the record that precedes a name that is not UTF-8. The value of the record is
/// `BINARY`.
const CHARSET: &str = "hdrcharset";

const NANOSECONDS: u32 = 1_000_000_000;

/// A buffer for the records to write.
#[derive(Default)]
pub(super) struct Records(Vec<u8>);

impl Records {
    pub(super) fn add(&mut self, key: &[u8], value: &[u8]) {
        let rest = key.len() + value.len() + 3;
        let mut length = rest;
        while rest + digits(length) != length {
            length = rest + digits(length);
        }
        // Writing to a vector cannot fail.
        write!(self.0, "{length} ").ok();
        for part in [key, b"=", value, b"\n"] {
            self.0.extend_from_slice(part);
        }
    }

    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.add(key.as_bytes(), value.to_string().as_bytes());
    }

    pub(super) fn time(&mut self, key: &str, time: Time) {
        self.add(key.as_bytes(), shown(time).as_bytes());
    }

    /// Adds a name, which may contain any bytes.
    pub(super) fn name(&mut self, key: &str, name: &[u8]) {
        if std::str::from_utf8(name).is_err() {
            self.add(CHARSET.as_bytes(), b"BINARY");
        }
        self.add(key.as_bytes(), name);
    }

    /// Adds an extended attribute. In the attribute's name, `=` and `%` are encoded, since `=`
    /// separates the key from the value.
    pub(super) fn attribute(&mut self, name: &[u8], value: &[u8]) {
        let mut key = ATTRIBUTE.as_bytes().to_vec();
        for byte in name {
            match byte {
                b'%' => key.extend_from_slice(b"%25"),
                b'=' => key.extend_from_slice(b"%3D"),
                other => key.push(*other),
            }
        }
        self.add(&key, value);
    }

    pub(super) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Decodes the name of an extended attribute from the key of its record.
pub(super) fn attribute_name(mut key: &[u8]) -> Vec<u8> {
    let mut name = Vec::new();
    while let Some((first, rest)) = key.split_first() {
        let (byte, rest) = match rest {
            [b'2', b'5', rest @ ..] if *first == b'%' => (b'%', rest),
            [b'3', b'D', rest @ ..] if *first == b'%' => (b'=', rest),
            rest => (*first, rest),
        };
        name.push(byte);
        key = rest;
    }
    name
}

/// Returns the keys and values in records, or `None` if the records are damaged.
pub(super) fn read(mut bytes: &[u8]) -> Option<Vec<(&[u8], &[u8])>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let space = bytes.iter().position(|byte| *byte == b' ')?;
        let length: usize = std::str::from_utf8(&bytes[..space]).ok()?.parse().ok()?;
        if length <= space + 1 || length > bytes.len() {
            return None;
        }
        let (record, rest) = bytes.split_at(length);
        let (last, record) = record[space + 1..].split_last()?;
        let equals = record.iter().position(|byte| *byte == b'=')?;
        if *last != b'\n' || equals == 0 {
            return None;
        }
        found.push((&record[..equals], &record[equals + 1..]));
        bytes = rest;
    }
    Some(found)
}

/// Reads a decimal number of seconds, which may have a fraction.
pub(super) fn time(text: &str) -> Option<Time> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits = fraction.bytes().take(9);
    if !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let mut nanoseconds = digits.fold(0, |value: u32, digit| value * 10 + u32::from(digit - b'0'));
    for _ in fraction.len()..9 {
        nanoseconds *= 10;
    }
    // Round down: for example, -1.5 is half a second after -2.
    Some(match whole.starts_with('-') && nanoseconds > 0 {
        true => Time {
            seconds: seconds.checked_sub(1)?,
            nanoseconds: NANOSECONDS - nanoseconds,
        },
        false => Time {
            seconds,
            nanoseconds,
        },
    })
}

fn shown(time: Time) -> String {
    let Time {
        seconds,
        nanoseconds,
    } = time;
    match (seconds, nanoseconds) {
        (seconds, 0) => seconds.to_string(),
        (..0, _) => {
            let (whole, rest) = (-(seconds + 1), NANOSECONDS - nanoseconds);
            format!("-{whole}.{rest:09}")
        }
        _ => format!("{seconds}.{nanoseconds:09}"),
    }
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}
