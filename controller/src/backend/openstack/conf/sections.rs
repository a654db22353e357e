//! The syntax of `cloud.conf`: that of git-config(1), read as gcfg does.

/// A key of a section.
#[derive(Debug)]
pub(super) struct Entry {
    /// In lower case, as the key: they have no case.
    pub(super) section: String,
    /// The second name of the section, as written; empty if it has none.
    pub(super) sub: String,
    pub(super) key: String,
    pub(super) value: String,
}

/// All keys, in their order.
///
/// # Errors
/// Which line is wrong, and why.
pub(super) fn parse(text: &str) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    let (mut section, mut sub) = (String::new(), String::new());
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let bad = |why: &str| format!("line {}: {why}", number + 1);
        let line = line.trim();
        if line.is_empty() || line.starts_with([';', '#']) {
            continue;
        }
        if let Some(line) = line.strip_prefix('[') {
            let why = "not [NAME] or [NAME \"SECOND NAME\"]";
            (section, sub) = header(line).ok_or_else(|| bad(why))?;
            continue;
        }
        let (key, value) = line.split_once('=').unwrap_or((line, "true"));
        let mut value = value.trim().to_owned();
        while value.ends_with('\\') && !value.ends_with("\\\\") {
            value.pop();
            let next = lines.next().map_or("", |(_, line)| line);
            value.push_str(next.trim_end());
        }
        let value = unquoted(&value).ok_or_else(|| bad("a quote without an end, or a bad \\"))?;
        entries.push(Entry {
            section: section.clone(),
            sub: sub.clone(),
            key: key.trim().to_ascii_lowercase(),
            value,
        });
    }
    Ok(entries)
}

/// Both names of a section, by its line without the first bracket; none if it is not whole.
fn header(line: &str) -> Option<(String, String)> {
    let end = line.find([']', '"'])?;
    let (name, rest) = line.split_at(end);
    let name = name.trim().to_ascii_lowercase();
    let Some(quoted) = rest.strip_prefix('"') else {
        return Some((name, String::new()));
    };
    let mut sub = String::new();
    let mut chars = quoted.chars();
    loop {
        match chars.next()? {
            '"' => break,
            '\\' => sub.push(chars.next()?),
            char => sub.push(char),
        }
    }
    chars
        .as_str()
        .trim_start()
        .starts_with(']')
        .then_some((name, sub))
}

/// A value without its quotes, escapes and comment; none if it is not whole.
fn unquoted(value: &str) -> Option<String> {
    let (mut plain, mut kept, mut is_quoted) = (String::new(), 0, false);
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match char {
            '"' => is_quoted = !is_quoted,
            '\\' => plain.push(match chars.next()? {
                'n' => '\n',
                't' => '\t',
                'b' => '\u{8}',
                escaped @ ('"' | '\\') => escaped,
                _ => return None,
            }),
            ';' | '#' if !is_quoted => break,
            char => plain.push(char),
        }
        // Spaces at the end of what is not quoted are not kept.
        if is_quoted || !char.is_whitespace() {
            kept = plain.len();
        }
    }
    plain.truncate(kept);
    (!is_quoted).then_some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_ends_at_a_comment_and_has_the_escapes_of_gcfg() {
        for (value, expected) in [
            (r#"a b ; c"#, Some("a b")),
            (r#"a # c"#, Some("a")),
            (r#""a # c" "#, Some("a # c")),
            (r#""a " b "#, Some("a  b")),
            (r#""a" "" "#, Some("a ")),
            (r#"\\ \" \n\t\b"#, Some("\\ \" \n\t\u{8}")),
            (r#""a"#, None),
            (r#"a\x"#, None),
            (r#"a\"#, None),
            ("", Some("")),
        ] {
            assert_eq!(unquoted(value).as_deref(), expected, "{value}");
        }
    }

    #[test]
    fn a_line_that_ends_in_a_backslash_continues_unless_that_is_escaped() {
        for (text, expected) in [
            ("a = b\\\n c\\\nd\ne = f", &[("a", "b cd"), ("e", "f")][..]),
            ("a = b\\\\\ne = f", &[("a", "b\\"), ("e", "f")][..]),
            ("a = b\\", &[("a", "b")][..]),
            (
                "[other]\na = b\n[ MEANT \"x\" ]\n[Meant]\nc",
                &[("c", "true")][..],
            ),
        ] {
            let text = match text.starts_with('[') {
                true => text.to_owned(),
                false => format!("[meant]\n{text}"),
            };
            let found = parse(&text).unwrap();
            let meant = found
                .iter()
                .filter(|it| it.section == "meant" && it.sub.is_empty());
            let found: Vec<_> = meant.map(|it| (&*it.key, &*it.value)).collect();
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn a_section_has_a_name_without_case_and_perhaps_a_second_one_as_it_is_written() {
        for (line, expected) in [
            ("[Global]", Some(("global", ""))),
            ("[ GLOBAL ] # a comment", Some(("global", ""))),
            (r#"[Global "Region-One"]"#, Some(("global", "Region-One"))),
            (r#"[ global  "a]b" ]"#, Some(("global", "a]b"))),
            (r#"[Global "a\"b\\"]"#, Some(("global", r#"a"b\"#))),
            (r#"[Global ""]"#, Some(("global", ""))),
            // Of another program.
            ("[Global x]", Some(("global x", ""))),
            (r#"[Global "a"b]"#, None),
            (r#"[Global "a]"#, None),
            ("[Global", None),
        ] {
            let found = header(line.strip_prefix('[').unwrap());
            let found = found.as_ref().map(|(name, sub)| (&**name, &**sub));
            assert_eq!(found, expected, "{line}");
        }
        let bad = parse("a = b\n[Global \"x]\n").unwrap_err();
        assert!(bad.starts_with("line 2: "), "{bad}");
    }
}
