//! The syntax of `cloud.conf`, as defined by gcfg (gopkg.in/gcfg.v1), the library that
//! cinder-csi-plugin uses. `tests/wire/formats` compares the two parsers.

use std::iter::Peekable;
use std::str::Chars;

/// A key of a section.
#[derive(Debug)]
pub(super) struct Entry {
    /// The name of the section, in lower case. The case of sections and keys is ignored.
    pub(super) section: String,
    /// The second name of the section, with its case unchanged; empty if the section has no second
    /// name.
    pub(super) sub: String,
    pub(super) key: String,
    /// The value. `None` for a key without `=`, which means that a Boolean key is true.
    pub(super) value: Option<String>,
    /// The line of the key in the file, from 1.
    pub(super) line: usize,
}

/// Returns all keys in the order of the file.
///
/// # Errors
/// Returns a message with the line and the reason, but without text of the file.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut reader = Reader::new(text);
    let mut entries = Vec::new();
    let mut header: Option<(String, String)> = None;
    while let Some(char) = reader.skip_blank() {
        let line = reader.line;
        let read = match (char, &header) {
            ('\n' | ';' | '#', _) => Ok(()),
            ('[', _) => reader.header().map(|read| header = Some(read)),
            ('\u{feff}', None) => Err("begins with a byte order mark; save the file without it"),
            (_, None) => Err("is before the first [SECTION]; begin the file with [Global]"),
            (_, Some((section, sub))) => reader.key().map(|(key, value)| {
                let (section, sub) = (section.clone(), sub.clone());
                entries.push(Entry {
                    section,
                    sub,
                    key,
                    value,
                    line,
                });
            }),
        };
        let read = read.and_then(|()| reader.end_of_line());
        read.map_err(|why| format!("line {line}: {why}"))?;
    }
    match reader.nul {
        None => Ok(entries),
        Some(line) => Err(format!("line {line}: has a NUL byte")),
    }
}

const UNNAMED: &str = "neither [SECTION], [SECTION \"SECOND NAME\"] nor KEY = VALUE; names have \
                       ASCII letters, digits and '-', and begin with a letter";
const UNQUOTED: &str = "has a \\ outside of quotes; write \"VALUE\", and each \\ in it twice";
const UNKNOWN: &str = "has an unknown escape; in quotes, only \\\\, \\\", \\n and \\t are known";
const OPEN: &str = "a quote without an end";

/// Reads a file character by character.
struct Reader<'a> {
    rest: Peekable<Chars<'a>>,
    /// The line of the next character, from 1.
    line: usize,
    /// The first line with a NUL byte.
    nul: Option<usize>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        Self {
            rest: text.chars().peekable(),
            line: 1,
            nul: None,
        }
    }

    fn next(&mut self) -> Option<char> {
        let char = self.rest.next()?;
        match char {
            '\n' => self.line += 1,
            '\0' => self.nul = self.nul.or(Some(self.line)),
            _ => {}
        }
        Some(char)
    }

    fn next_if(&mut self, is_it: impl FnOnce(char) -> bool) -> Option<char> {
        let next = self.rest.peek().copied().filter(|char| is_it(*char));
        next.and_then(|_| self.next())
    }

    /// Skips white space within the line. Returns the next character without reading it.
    fn skip_blank(&mut self) -> Option<char> {
        while self.next_if(is_blank).is_some() {}
        self.rest.peek().copied()
    }

    /// Reads a comment, if there is one, and the end of the line.
    fn end_of_line(&mut self) -> Result<(), &'static str> {
        match self.skip_blank() {
            None | Some('\n') => {}
            Some(';' | '#') => while self.next_if(|char| char != '\n').is_some() {},
            Some(_) => return Err(UNNAMED),
        }
        self.next();
        Ok(())
    }

    /// Reads a name, and returns it in lower case.
    fn name(&mut self) -> Result<String, &'static str> {
        let mut name = String::new();
        let is_first = |char: char| char.is_ascii_alphabetic();
        let is_later = |char: char| char.is_ascii_alphanumeric() || char == '-';
        name.push(self.next_if(is_first).ok_or(UNNAMED)?);
        while let Some(char) = self.next_if(is_later) {
            name.push(char);
        }
        name.make_ascii_lowercase();
        Ok(name)
    }

    /// Reads both names of a section, including the brackets.
    fn header(&mut self) -> Result<(String, String), &'static str> {
        self.next();
        self.skip_blank();
        let name = self.name()?;
        let mut sub = String::new();
        if self.skip_blank() == Some('"') {
            self.next();
            loop {
                match self.next().ok_or(OPEN)? {
                    '\n' => return Err(OPEN),
                    '"' => break,
                    '\\' => sub.push(
                        self.escaped()
                            .filter(|char| !char.is_control())
                            .ok_or(UNKNOWN)?,
                    ),
                    char => sub.push(char),
                }
            }
            if sub.is_empty() {
                return Err("has an empty second name; write [SECTION]");
            }
            self.skip_blank();
        }
        self.next_if(|char| char == ']').ok_or(UNNAMED)?;
        Ok((name, sub))
    }

    fn key(&mut self) -> Result<(String, Option<String>), &'static str> {
        let name = self.name()?;
        self.skip_blank();
        let value = self.next_if(|char| char == '=').map(|_| self.value());
        Ok((name, value.transpose()?))
    }

    /// Reads a value. Returns the value without quotes, escapes and carriage returns, and without
    /// white space around unquoted text.
    fn value(&mut self) -> Result<String, &'static str> {
        self.skip_blank();
        let (mut value, mut kept, mut is_quoted) = (String::new(), 0, false);
        let is_end = |char| matches!(char, '\n' | ';' | '#');
        while let Some(char) = self.next_if(|char| is_quoted || !is_end(char)) {
            match char {
                '"' => is_quoted = !is_quoted,
                '\n' => return Err(OPEN),
                '\r' => {}
                '\\' if is_quoted => value.push(self.escaped().ok_or(UNKNOWN)?),
                '\\' => {
                    self.next_if(|char| char == '\r');
                    match self.next() {
                        // The value continues on the next line.
                        Some('\n') => {}
                        Some('"') => value.push('"'),
                        _ => return Err(UNQUOTED),
                    }
                }
                char => value.push(char),
            }
            if is_quoted || !is_blank(char) {
                kept = value.len();
            }
        }
        value.truncate(kept);
        match is_quoted {
            true => Err(OPEN),
            false => Ok(value),
        }
    }

    /// Reads the character after a backslash in quotes, and returns its meaning.
    fn escaped(&mut self) -> Option<char> {
        match self.next()? {
            'n' => Some('\n'),
            't' => Some('\t'),
            char @ ('"' | '\\') => Some(char),
            _ => None,
        }
    }
}

fn is_blank(char: char) -> bool {
    matches!(char, ' ' | '\t' | '\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_named_by_its_line_and_not_quoted() {
        for (text, why) in [
            ("canary = x", "line 1: is before the first"),
            ("\u{feff}[a]\n", "line 1: begins with a byte order mark"),
            ("[a]\n\n[canary", "line 3: neither [SECTION]"),
            ("[a]\n# \\\ncanary x", "line 3: neither"),
            ("[a]\nb = c \\\nd\ncanary_x = e", "line 4: neither"),
            ("[a]\nb = \"canary", "line 2: a quote without an end"),
            ("[a]\nb = canary\\x", "line 2: has a \\ outside of quotes"),
            ("[a]\nb = \"canary\\x\"", "line 2: has an unknown escape"),
            ("[a]\nb = \"c\"\n; canary\0", "line 3: has a NUL byte"),
            ("[a \"\"]", "line 1: has an empty second name"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.starts_with(why), "{text:?}: {refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
