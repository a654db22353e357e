//! Rust source with everything but code blanked, so that the other rules can search for words and
//! braces. Lines and columns stay the same. Uses only the lexical grammar.

/// Returns the text with every character of a comment, or of a string or character literal,
/// replaced with a blank.
pub(crate) fn code_of(content: &str) -> String {
    let chars: Vec<char> = content.chars().collect();
    let mut code = String::with_capacity(content.len());
    let mut at = 0;
    while at < chars.len() {
        let end = end_of_non_code(&chars, at).unwrap_or(at).min(chars.len());
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(
                chars[at..end]
                    .iter()
                    .map(|c| if *c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    code
}

/// Returns the lines with the unit tests at the end blanked: an unindented `#[cfg(test)]` above a
/// `mod` with a body, and everything after it.
pub(crate) fn without_unit_tests(code: &str) -> String {
    let lines: Vec<&str> = code.lines().collect();
    let tests = (0..lines.len())
        .find(|&at| opens_unit_tests(&lines[at..]))
        .unwrap_or(lines.len());
    let blank = std::iter::repeat_n("", lines.len() - tests);
    let mut product = lines[..tests]
        .iter()
        .copied()
        .chain(blank)
        .collect::<Vec<_>>()
        .join("\n");
    product.push('\n');
    product
}

fn opens_unit_tests(lines: &[&str]) -> bool {
    let mut below = lines.iter().map(|line| line.trim_end());
    below.next() == Some("#[cfg(test)]")
        && below
            .find(|line| !line.is_empty() && !line.starts_with("#["))
            .is_some_and(|line| line.starts_with("mod ") && line.ends_with('{'))
}

/// Returns the end of the comment or literal that begins at `at`; `None` if none begins there.
fn end_of_non_code(chars: &[char], at: usize) -> Option<usize> {
    let next = chars.get(at + 1).copied();
    match chars[at] {
        '/' if next == Some('/') => Some(find(chars, at, |c| c == '\n')),
        '/' if next == Some('*') => Some(end_of_block_comment(chars, at)),
        '"' => Some(end_of_quoted(chars, at + 1, '"')),
        '\'' if next == Some('\\') => Some(end_of_quoted(chars, at + 1, '\'')),
        '\'' if chars.get(at + 2) == Some(&'\'') => Some(at + 3),
        'r' | 'b' | 'c' if at == 0 || !is_word(chars[at - 1]) => end_of_raw_string(chars, at),
        _ => None,
    }
}

fn end_of_block_comment(chars: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut at = start;
    while at + 1 < chars.len() {
        match (chars[at], chars[at + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                at += 1;
                continue;
            }
        }
        at += 2;
        if depth == 0 {
            return at;
        }
    }
    chars.len()
}

fn end_of_quoted(chars: &[char], first: usize, quote: char) -> usize {
    let mut at = first;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

fn end_of_raw_string(chars: &[char], start: usize) -> Option<usize> {
    let r = if chars[start] == 'r' {
        start
    } else {
        start + 1
    };
    if chars.get(r) != Some(&'r') {
        return None;
    }
    let quote = find(chars, r + 1, |c| c != '#');
    if chars.get(quote) != Some(&'"') {
        return None;
    }
    let hashes = quote - r - 1;
    let mut at = quote + 1;
    loop {
        at = find(chars, at, |c| c == '"') + 1;
        if at > chars.len() || chars[at..].iter().take_while(|c| **c == '#').count() >= hashes {
            return Some(at + hashes);
        }
    }
}

fn find(chars: &[char], from: usize, wanted: impl Fn(char) -> bool) -> usize {
    (from..chars.len())
        .find(|&at| wanted(chars[at]))
        .unwrap_or(chars.len())
}

/// Whether this character can be part of an identifier.
pub(crate) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns every byte index where `path` occurs as a whole word, or as whole words joined by `::`.
pub(crate) fn places_of<'a>(code: &'a str, path: &'a str) -> impl Iterator<Item = usize> + 'a {
    code.match_indices(path)
        .map(|(at, _)| at)
        .filter(move |&at| {
            let before = code[..at].chars().next_back();
            let after = code[at + path.len()..].chars().next();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
}

/// Returns the line, from 1, of the byte at this index.
pub(crate) fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_is_left() {
        for (content, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c */ d */ e", "a                   e"),
            (r#"f("x\"}", y)"#, "f(      , y)"),
            ("f(r#\"a\"b\"#, y)", "f(        , y)"),
            ("f(b\"{\", br\"{\")", "f(b   ,      )"),
            ("m('{', '\\'', 'b')", "m(   ,     ,    )"),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
            ("r#type + bar", "r#type + bar"),
            ("\"open", "     "),
        ] {
            assert_eq!(code_of(content), code, "{content}");
        }
    }

    #[test]
    fn unit_tests_are_what_stands_below_their_attribute() {
        let tests = "fn f() {}\n#[cfg(test)]\n#[expect(x)]\nmod tests {\n}\n";
        assert_eq!(without_unit_tests(tests), "fn f() {}\n\n\n\n\n");
        for kept in [
            "#[cfg(test)]\nmod fake;\nfn f() {}\n",
            "#[cfg(test)]\nfn f() {\n}\n",
        ] {
            assert_eq!(without_unit_tests(kept), kept);
        }
    }

    #[test]
    fn a_word_is_found_only_whole() {
        let found: Vec<usize> =
            places_of("unsafe unsafe_code my_unsafe {unsafe}", "unsafe").collect();
        assert_eq!(found, [0, 30]);
        assert_eq!(line_of("a\nb\nc", 2), 2);
    }
}
