//! Rules for single strings; each failure names the field. Successful checks do not allocate.

use crate::call::Failure;

/// Longest string unless a field says otherwise (CSI 1.13, "Size Limits").
pub(super) const STRING_BYTES_MAX: usize = 128;

/// 1 to `bytes_max` bytes.
pub(super) fn required(field: &str, text: &str, bytes_max: usize) -> Result<(), Failure> {
    if text.is_empty() {
        return Err(Failure::invalid(field, "is required, but empty"));
    }
    at_most(field, text, bytes_max)
}

/// 0 to `bytes_max` bytes.
pub(super) fn at_most(field: &str, text: &str, bytes_max: usize) -> Result<(), Failure> {
    if text.len() <= bytes_max {
        return Ok(());
    }
    let why = format_args!("has {} bytes; at most {bytes_max} are allowed", text.len());
    Err(Failure::invalid(field, why))
}

/// No control characters: identifiers appear in logs, file names and mount tables.
pub(super) fn without_controls(field: &str, text: &str) -> Result<(), Failure> {
    forbid(field, text, char::is_control)
}

/// The rule for identifiers, of at most that length.
pub(super) fn identifying_at_most(field: &str, id: &str, bytes_max: usize) -> Result<(), Failure> {
    required(field, id, bytes_max)?;
    without_controls(field, id)
}

/// The rule for names (CSI 1.13, `CreateVolumeRequest.name`): control characters are forbidden,
/// except for tab, line feed and carriage return.
pub(super) fn name_characters(field: &str, text: &str) -> Result<(), Failure> {
    forbid(field, text, |c| {
        c.is_control() && !matches!(c, '\t' | '\n' | '\r')
    })
}

fn forbid(field: &str, text: &str, forbidden: fn(char) -> bool) -> Result<(), Failure> {
    match text.char_indices().find(|(_, c)| forbidden(*c)) {
        None => Ok(()),
        Some((position, c)) => {
            let number = u32::from(c);
            let why = format_args!("has the control character U+{number:04X} at byte {position}");
            Err(Failure::invalid(field, why))
        }
    }
}
