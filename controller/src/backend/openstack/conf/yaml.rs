//! The subset of YAML that `clouds.yaml` uses: mappings of texts, with anchors and merge keys. All
//! values are read as text, so a password that consists of digits is not converted to a number.
//! Errors quote no content. An alias is only a few bytes long, but can repeat all of the preceding
//! text. The limits therefore apply to the content after all aliases and merge keys are resolved.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum depth of nested mappings and lists, including nesting through aliases.
const DEPTH_MAX: usize = 32;
/// Maximum number of mappings that one lookup may search.
const SEARCHED_MAX: usize = 1000;
/// The key that merges one or several other mappings.
const MERGE: &str = "<<";

/// A value.
#[derive(Debug)]
pub(super) enum Node {
    /// A text; `None` for `null`, `~` or an empty value.
    Text(Option<String>),
    Map(Vec<(String, Rc<Node>)>),
    List(Vec<Rc<Node>>),
}

impl Node {
    /// Returns the value of a key if this node is a mapping that contains or merges the key.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(pairs) = self else { return None };
        let own = pairs.iter().rev().find(|(known, _)| known == key);
        if let Some((_, value)) = own {
            return Some(value);
        }
        let merged = pairs.iter().filter(|(known, _)| known == MERGE);
        merged.into_iter().find_map(|(_, value)| match &**value {
            Self::List(all) => all.iter().find_map(|one| one.get(key)),
            one => one.get(key),
        })
    }

    /// Returns the keys of a mapping, without merged keys.
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(key, _)| key.as_str()).collect(),
            Self::Text(_) | Self::List(_) => Vec::new(),
        }
    }
}

/// Parses the first document of a text.
///
/// # Errors
/// Returns the position of invalid or unsupported YAML.
pub(super) fn parse(text: &str) -> Result<Rc<Node>, String> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: BTreeMap::new(),
    };
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(Rc::new(Node::Text(None))),
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (event, span) => return Ok(reader.node(event, span, 0)?.node),
        }
    }
}

struct Reader<I> {
    events: I,
    anchors: BTreeMap<usize, Read>,
}

/// A parsed value.
#[derive(Clone)]
struct Read {
    node: Rc<Node>,
    /// The number of nested mappings and lists in the value.
    levels: usize,
    /// The number of mappings that a lookup may search: the value itself and the mappings that it
    /// merges.
    searched: usize,
}

/// Returns the number of mappings that a lookup in one of these values may search.
fn searched<'a>(all: impl Iterator<Item = &'a Read>) -> usize {
    all.fold(0, |sum, read| sum.saturating_add(read.searched))
}

/// Returns the number of levels of a mapping or list with these values.
fn levels<'a>(all: impl Iterator<Item = &'a Read>) -> usize {
    1 + all.map(|read| read.levels).max().unwrap_or(0)
}

impl<'a, I> Reader<I>
where
    I: Iterator<Item = Result<(Event<'a>, Span), ScanError>>,
{
    fn next(&mut self) -> Result<(Event<'a>, Span), String> {
        match self.events.next() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => Err(format!("line {}: not YAML", error.marker().line())),
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Read, String> {
        let bad = |why: &str| Err(format!("line {}: {why}", span.start.line()));
        if depth > DEPTH_MAX {
            return bad("nested too deeply");
        }
        let (anchor, read) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_none = style == ScalarStyle::Plain && ["", "~", "null"].contains(&&*text);
                let node = Rc::new(Node::Text((!is_none).then(|| text.into_owned())));
                let (levels, searched) = (0, 0);
                let read = Read {
                    node,
                    levels,
                    searched,
                };
                (anchor, read)
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(read) if depth + read.levels > DEPTH_MAX => return bad("nested too deeply"),
                Some(read) => return Ok(read.clone()),
                None => return bad("an alias of nothing"),
            },
            Event::MappingStart(anchor, _) => (anchor, self.map(depth)?),
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            _ => return bad("not YAML"),
        };
        self.anchors.insert(anchor, read.clone());
        Ok(read)
    }

    fn map(&mut self, depth: usize) -> Result<Read, String> {
        let mut pairs: Vec<(String, Read)> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let line = span.start.line();
            if matches!(event, Event::MappingEnd) {
                let merged = pairs.iter().filter(|(key, _)| key == MERGE);
                let searched = searched(merged.map(|(_, read)| read)).saturating_add(1);
                if searched > SEARCHED_MAX {
                    return Err(format!("line {line}: merges too many mappings"));
                }
                let levels = levels(pairs.iter().map(|(_, read)| read));
                let pairs = pairs.into_iter().map(|(key, read)| (key, read.node));
                let node = Rc::new(Node::Map(pairs.collect()));
                return Ok(Read {
                    node,
                    levels,
                    searched,
                });
            }
            let key = match &*self.node(event, span, depth + 1)?.node {
                Node::Text(Some(key)) => key.clone(),
                _ => return Err(format!("line {line}: a key that is no text")),
            };
            let (event, span) = self.next()?;
            pairs.push((key, self.node(event, span, depth + 1)?));
        }
    }

    fn list(&mut self, depth: usize) -> Result<Read, String> {
        let mut all: Vec<Read> = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                let (levels, searched) = (levels(all.iter()), searched(all.iter()));
                let node = Node::List(all.into_iter().map(|read| read.node).collect());
                return Ok(Read {
                    node: Rc::new(node),
                    levels,
                    searched,
                });
            }
            all.push(self.node(event, span, depth + 1)?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(node: &'a Node, path: &[&str]) -> Option<&'a str> {
        let found = path.iter().try_fold(node, |node, key| node.get(key))?;
        match found {
            Node::Text(text) => text.as_deref(),
            Node::Map(_) | Node::List(_) => None,
        }
    }

    #[test]
    fn a_value_is_kept_as_written_and_mappings_merge_others() {
        let node = parse(
            "# a comment\nbase: &base {region: one, same: base}\nlist: [a, {b: c}]\n\
             cloud:\n  <<: *base\n  digits: 0123\n  hex: 0x1f\n  quoted: \"a: #\\\"\"\n  \
             single: 'it''s'\n  none: ~\n  empty:\n  nothing: null\n  word: 'null'\n  \
             block: |\n    two\n    lines\n  same: own\n  same: last\n\
             both:\n  <<: [*base, {more: x}]\n\
             ---\nother: document\n",
        )
        .unwrap();
        for (path, expected) in [
            (&["cloud", "region"][..], Some("one")),
            (&["cloud", "same"], Some("last")),
            (&["cloud", "digits"], Some("0123")),
            (&["cloud", "hex"], Some("0x1f")),
            (&["cloud", "quoted"], Some("a: #\"")),
            (&["cloud", "single"], Some("it's")),
            (&["cloud", "none"], None),
            (&["cloud", "empty"], None),
            (&["cloud", "nothing"], None),
            (&["cloud", "word"], Some("null")),
            (&["cloud", "block"], Some("two\nlines\n")),
            (&["both", "more"], Some("x")),
            (&["both", "region"], Some("one")),
            (&["list", "b"], None),
            (&["other"], None),
        ] {
            assert_eq!(text(&node, path), expected, "{path:?}");
        }
        assert_eq!(node.keys(), ["base", "list", "cloud", "both"]);
        for empty in ["", "# nothing\n", "~"] {
            assert!(parse(empty).unwrap().keys().is_empty(), "{empty:?}");
        }
    }

    /// A lookup of a missing key would search all mappings.
    #[test]
    fn what_aliases_repeat_is_limited_as_if_it_were_written_out() {
        let mut doubling = "m0: &m0 {a: b}\n".to_owned();
        let mut chain = "m0: &m0 {a: b}\n".to_owned();
        let mut nested = "m0: &m0 {a: b}\n".to_owned();
        for n in 1..40 {
            let before = n - 1;
            doubling += &format!("m{n}: &m{n} {{<<: [*m{before}, *m{before}]}}\n");
            chain += &format!("m{n}: &m{n} {{<<: *m{before}}}\n");
            nested += &format!("m{n}: &m{n} {{a: *m{before}}}\n");
        }
        // A lookup in the tenth mapping searches 1023 mappings, and in the ninth 511.
        for (text, first) in [(&doubling, 9), (&chain, 31), (&nested, 31)] {
            let refused = parse(text).unwrap_err();
            let line = format!("line {}: ", first + 1);
            assert!(refused.starts_with(&line), "{refused}");
            let lines = text.lines().take(first).collect::<Vec<_>>().join("\n");
            let node = parse(&lines).unwrap();
            assert_eq!(node.keys().len(), first);
            let last = format!("m{}", first - 1);
            assert_eq!(super::tests::text(&node, &[&last, "none"]), None);
        }
        // The length of a list is limited only if the list is merged.
        for (key, is_refused) in [("all", false), ("<<", true)] {
            let list = parse(&format!("{key}: [{}]", "{a: b}, ".repeat(1000)));
            assert_eq!(list.is_err(), is_refused, "{key}");
        }
    }

    #[test]
    fn what_is_no_yaml_is_refused_by_its_line_without_a_word_of_it() {
        let deep = "[".repeat(40) + &"]".repeat(40);
        for (text, line) in [
            ("a: b\ncanary: [", "line "),
            ("a: b\n\tcanary: c\n", "line "),
            ("a: \"canary", "line "),
            ("a: b\n? [canary]\n: c\n", "line 2: a key that is no text"),
            ("a: *canary\n", "line 1: "),
            (&deep, "line 1: nested too deeply"),
        ] {
            let refused = parse(text).unwrap_err();
            assert!(refused.starts_with(line), "{text:?}: {refused}");
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
