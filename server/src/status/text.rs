//! Text in HTML: what comes from outside as text and nothing else, and numbers for people.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// Text that becomes neither markup nor an attribute's end, and that shows in its own order and on
/// one line, whatever it contains.
pub(super) struct Plain<'a>(pub(super) &'a str);

impl fmt::Display for Plain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c if c.is_control() || is_directional(c) => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// Characters that change the order of those around them (Unicode Standard Annex 9, section 2).
fn is_directional(c: char) -> bool {
    let (marks, embeddings, isolates) = (
        ['\u{61c}', '\u{200e}', '\u{200f}'],
        '\u{202a}'..='\u{202e}',
        '\u{2066}'..='\u{2069}',
    );
    marks.contains(&c) || embeddings.contains(&c) || isolates.contains(&c)
}

/// A time that has passed, in its largest unit.
pub(super) struct Age(pub(super) Duration);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{} min", seconds / 60),
            7200..172_800 => write!(f, "{} h", seconds / 3600),
            _ => write!(f, "{} d", seconds / 86_400),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_characters_that_hide_others_are_shown_as_text() {
        for (text, shown) in [
            ("vol-1", "vol-1"),
            ("", ""),
            ("é日本", "é日本"),
            ("<b a='\">&", "&lt;b a=&#39;&quot;&gt;&amp;"),
            ("a\nb\u{1b}[2J", "a\u{fffd}b\u{fffd}[2J"),
            ("\u{202e}dev\u{2069}\u{200f}", "\u{fffd}dev\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(Plain(text).to_string(), shown);
        }
    }

    #[test]
    fn ages_and_sizes_have_the_unit_that_a_person_would_use() {
        for (seconds, shown) in [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7199, "119 min"),
            (7200, "2 h"),
            (172_800, "2 d"),
        ] {
            assert_eq!(Age(Duration::from_secs(seconds)).to_string(), shown);
        }
    }
}
