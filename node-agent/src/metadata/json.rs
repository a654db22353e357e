//! Some members of a JSON object (RFC 8259), and nothing else of it: the rest, which may contain
//! passwords, is skipped without a copy and is in no error.

/// Nested deeper than any cloud's metadata, and far less than the stack allows.
const DEPTH_MAX: usize = 32;

/// Why a text is not such an object, and where. Nothing of the text itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not valid JSON at byte {at}: {why}")]
pub(super) struct BadJson {
    at: usize,
    why: &'static str,
}

type Result<T> = std::result::Result<T, BadJson>;

/// The text of these members of an object, or the digits of a number; `None` for a member that is
/// absent or null. Of a repeated member, the last one counts, as for most readers.
///
/// # Errors
/// If this is not one complete object, or if one of these members is neither.
pub(super) fn members<const N: usize>(
    json: &[u8],
    names: [&str; N],
) -> Result<[Option<String>; N]> {
    let mut found = [const { None }; N];
    let mut scanner = Scanner { json, at: 0 };
    scanner.object(0, &mut |scanner| {
        let name = scanner.text()?;
        scanner.expect(b':')?;
        let Some(at) = names.iter().position(|wanted| *wanted == name) else {
            return scanner.skip(1);
        };
        found[at] = match scanner.peek() {
            Some(b'n') => scanner.skip(1).map(|()| None)?,
            Some(byte) if byte.is_ascii_digit() => Some(scanner.digits()?),
            _ => Some(scanner.text()?),
        };
        Ok(())
    })?;
    match scanner.peek() {
        None => Ok(found),
        Some(_) => Err(scanner.bad("more text after the object")),
    }
}

struct Scanner<'a> {
    json: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn bad(&self, why: &'static str) -> BadJson {
        BadJson { at: self.at, why }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.json.get(self.at) {
            self.at += 1;
        }
        self.json.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Result<()> {
        if self.peek() != Some(byte) {
            return Err(self.bad(match byte {
                b'{' => "expected an object",
                b'"' => "expected a text",
                b':' => "expected a colon",
                _ => "expected the end of a list or object",
            }));
        }
        self.at += 1;
        Ok(())
    }

    fn object(
        &mut self,
        depth: usize,
        member: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        self.expect(b'{')?;
        self.items(b'}', depth, member)
    }

    /// The items up to the `end` of a list or object, which has begun.
    fn items(
        &mut self,
        end: u8,
        depth: usize,
        item: &mut dyn FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if depth >= DEPTH_MAX {
            return Err(self.bad("nested too deep"));
        }
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self)?;
            if self.peek() != Some(b',') {
                return self.expect(end);
            }
            self.at += 1;
        }
    }

    /// Passes over one value.
    fn skip(&mut self, depth: usize) -> Result<()> {
        match self.peek() {
            Some(b'{') => self.object(depth, &mut |scanner| {
                scanner.string(|_| {})?;
                scanner.expect(b':')?;
                scanner.skip(depth + 1)
            }),
            Some(b'[') => {
                self.at += 1;
                self.items(b']', depth, &mut |scanner| scanner.skip(depth + 1))
            }
            Some(b'"') => self.string(|_| {}),
            _ => self.scalar(),
        }
    }

    /// A number, `true`, `false` or `null`.
    fn scalar(&mut self) -> Result<()> {
        let rest = self.json.get(self.at..).unwrap_or_default();
        let is_in = |byte: &&u8| byte.is_ascii_alphanumeric() || b"+-.".contains(byte);
        let length = rest.iter().take_while(is_in).count();
        let word = &rest[..length];
        let is_number = || {
            let begins = word
                .first()
                .is_some_and(|&byte| byte == b'-' || byte.is_ascii_digit());
            let text = std::str::from_utf8(word).unwrap_or_default();
            begins
                && text.ends_with(|last: char| last.is_ascii_digit())
                && text.parse::<f64>().is_ok()
        };
        if !matches!(word, b"true" | b"false" | b"null") && !is_number() {
            return Err(self.bad("expected a value"));
        }
        self.at += length;
        Ok(())
    }

    /// A number that is whole, as it is written.
    fn digits(&mut self) -> Result<String> {
        let begin = self.at;
        self.scalar()?;
        let digits = self.json.get(begin..self.at).unwrap_or_default();
        match digits.iter().all(u8::is_ascii_digit) {
            true => Ok(String::from_utf8_lossy(digits).into_owned()),
            false => Err(self.bad("expected a text or a whole number")),
        }
    }

    fn text(&mut self) -> Result<String> {
        let mut units = Vec::new();
        self.string(|unit| units.push(unit))?;
        String::from_utf16(&units).map_err(|_| self.bad("half of a surrogate pair"))
    }

    /// Reads a string, and hands on its UTF-16 units, which is what `\u` escapes.
    fn string(&mut self, mut unit: impl FnMut(u16)) -> Result<()> {
        self.expect(b'"')?;
        let rest = self.json.get(self.at..).unwrap_or_default();
        let mut is_escaped = false;
        let end = rest.iter().position(|&byte| {
            let ends = byte == b'"' && !is_escaped;
            is_escaped = byte == b'\\' && !is_escaped;
            ends
        });
        let Some(end) = end else {
            return Err(self.bad("a text without an end"));
        };
        let Ok(text) = std::str::from_utf8(&rest[..end]) else {
            return Err(self.bad("a text that is not UTF-8"));
        };
        let mut chars = text.chars();
        while let Some(char) = chars.next() {
            match char {
                '\\' => unit(escaped(&mut chars).ok_or(self.bad("an unknown escape"))?),
                '\0'..='\x1f' => return Err(self.bad("a control character in a text")),
                _ => char
                    .encode_utf16(&mut [0; 2])
                    .iter()
                    .copied()
                    .for_each(&mut unit),
            }
        }
        self.at += end + 1;
        Ok(())
    }
}

/// The unit after a backslash.
fn escaped(chars: &mut std::str::Chars<'_>) -> Option<u16> {
    let byte = match chars.next()? {
        char @ ('"' | '\\' | '/') => char as u8,
        'b' => 8,
        'f' => 12,
        'n' => b'\n',
        'r' => b'\r',
        't' => b'\t',
        'u' => {
            let digits = chars.as_str().get(..4)?;
            // from_str_radix accepts a sign.
            let is_hex = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            chars.nth(3)?;
            return u16::from_str_radix(digits, 16).ok().filter(|_| is_hex);
        }
        _ => return None,
    };
    Some(byte.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NAMES: [&str; 2] = ["uuid", "zone"];

    fn both(json: &str) -> Result<[Option<String>; 2]> {
        members(json.as_bytes(), NAMES)
    }

    #[test]
    fn members_of_the_object_itself_are_found_and_the_rest_is_skipped() {
        let json = r#" {"meta": {"uuid": "no", "x": [1, -2.5e+3, true, null, {"zone": "no"}, []]},
            "admin_pass": "s\"ecret\\", "uuid" : "7f8b", "empty": {},
            "zone": "a\u00e9\ud83d\ude00\/\n"} "#;
        let expected = [Some("7f8b".to_owned()), Some("aé😀/\n".to_owned())];
        assert_eq!(both(json), Ok(expected));
        assert_eq!(both(r#"{"zone":null}"#), Ok([None, None]));
        let number = both(r#"{"uuid":123456789012345678, "zone":"a"}"#).unwrap();
        assert_eq!(number[0].as_deref(), Some("123456789012345678"));
        let last = both(r#"{"uuid":"1","uu\u0069d":"2"}"#).unwrap();
        assert_eq!(last[0].as_deref(), Some("2"));
        let escaped = both(r#"{"uuid":"\"\\\/\b\f\n\r\t\u000a"}"#).unwrap();
        assert_eq!(escaped[0].as_deref(), Some("\"\\/\u{8}\u{c}\n\r\t\n"));
        let spaced = both("\t{\r\n\"uuid\" :\t\"1\"\r}\n").unwrap();
        assert_eq!(spaced[0].as_deref(), Some("1"));
    }

    #[test]
    fn a_refusal_says_where_and_what_was_expected() {
        for (json, why) in [
            ("[", "0: expected an object"),
            ("{a", "1: expected a text"),
            ("{\"a\" 1", "5: expected a colon"),
            ("{\"a\":1;", "6: expected the end of a list or object"),
            ("{\"a\":[1;", "7: expected the end of a list or object"),
            ("{} x", "3: more text after the object"),
            ("{\"a\":x", "5: expected a value"),
            ("{\"uuid\":1.5}", "11: expected a text or a whole number"),
            ("{\"uuid\":\"\\ud83d\"}", "16: half of a surrogate pair"),
            ("{\"uuid\":\"a", "9: a text without an end"),
            ("{\"a\":\"\\x\"}", "6: an unknown escape"),
            ("{\"a\":\"\t\"}", "6: a control character in a text"),
        ] {
            let refused = both(json).unwrap_err().to_string();
            assert_eq!(refused, format!("not valid JSON at byte {why}"), "{json}");
        }
    }

    #[test]
    fn an_object_may_be_nested_up_to_a_depth() {
        let nested = |open: &str, close: &str, depth: usize| {
            // The object itself is one.
            let (open, close) = (open.repeat(depth - 1), close.repeat(depth - 1));
            both(&format!("{{\"a\":{open}1{close}}}"))
        };
        for (open, close) in [("[", "]"), ("{\"b\":", "}")] {
            assert!(nested(open, close, DEPTH_MAX).is_ok(), "{open}");
            let refused = nested(open, close, DEPTH_MAX + 1).unwrap_err();
            assert_eq!(refused.why, "nested too deep", "{open}");
        }
    }

    #[test]
    fn what_is_no_such_object_is_refused_and_not_repeated() {
        for json in [
            "",
            "[]",
            "\"secret\"",
            "{",
            "{\"uuid\"",
            "{\"uuid\":",
            "{\"uuid\":\"secret",
            "{\"uuid\":\"1\",}",
            "{\"uuid\":\"1\"} secret",
            "{\"uuid\":1.5}",
            "{\"uuid\":1e9}",
            "{\"uuid\":-1}",
            "{\"uuid\":true}",
            "{\"uuid\":[\"1\"]}",
            "{\"a\":secret}",
            "{\"a\":inf}",
            "{\"a\":+1}",
            "{\"a\":1.}",
            "{\"a\":\"\\x\"}",
            "{\"uuid\":\"\\ud83d\"}",
            "{\"a\":\"\\u+123\"}",
            "{\"a\":\"\\u00\"}",
            "{\"a\":\"\n\"}",
            "{\"a\" \"b\"}",
            "{secret:1}",
            "<html>secret</html>",
            "{\"uuid\":nothing}",
        ] {
            let error = both(json).unwrap_err().to_string();
            assert!(
                error.starts_with("not valid JSON at byte "),
                "{json}: {error}"
            );
            assert!(!error.contains("secret"), "{error}");
        }
        assert!(members(b"{\"a\":\"\xff\"}", NAMES).is_err());
        let deep = format!("{{\"a\":{}", "[".repeat(1 << 20));
        assert!(both(&deep).unwrap_err().to_string().contains("too deep"));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(json in proptest::collection::vec(any::<u8>(), 0..256)) {
            drop(members(&json, NAMES));
        }

        #[test]
        fn nothing_like_json_panics(json in r#"[{}\[\]",:a1u\\ ]{0,64}"#) {
            drop(both(&format!("{{\"uuid\":{json}")));
        }

        #[test]
        fn a_cut_object_is_refused(value in "\\PC{0,20}", cut in 0_usize..200) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            let json = format!(r#"{{"a":[{{"b":"{value}"}},3],"uuid":"{value}"}}"#);
            prop_assert!(both(&json).is_ok());
            let cut = cut.min(json.len() - 1);
            prop_assert!(members(&json.as_bytes()[..cut], NAMES).is_err());
        }
    }
}
