//! The part of YAML that `clouds.yaml` has: mappings of texts, with anchors and merge keys. The
//! text of a value is kept as written: a password of digits is no number. Errors quote nothing.

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};
use std::collections::BTreeMap;
use std::rc::Rc;

/// Levels of mappings and lists.
const DEPTH_MAX: usize = 32;
/// The key that merges another mapping, or several.
const MERGE: &str = "<<";

/// A value.
#[derive(Debug)]
pub(super) enum Node {
    /// None for `null`, `~` and nothing.
    Text(Option<String>),
    Map(Vec<(String, Rc<Node>)>),
    List(Vec<Rc<Node>>),
}

impl Node {
    /// The value of a key, if this is a mapping that has it, or merges one that has it.
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

    /// The keys of a mapping, without those that it merges.
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::Map(pairs) => pairs.iter().map(|(key, _)| key.as_str()).collect(),
            Self::Text(_) | Self::List(_) => Vec::new(),
        }
    }
}

/// The first document of the text.
///
/// # Errors
/// Where it is no YAML, or not of this part.
pub(super) fn parse(text: &str) -> Result<Rc<Node>, String> {
    let mut reader = Reader {
        events: Parser::new_from_str(text),
        anchors: BTreeMap::new(),
    };
    loop {
        match reader.next()? {
            (Event::StreamEnd, _) => return Ok(Rc::new(Node::Text(None))),
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (event, span) => return reader.node(event, span, 0),
        }
    }
}

struct Reader<I> {
    events: I,
    anchors: BTreeMap<usize, Rc<Node>>,
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

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Rc<Node>, String> {
        let bad = |why: &str| Err(format!("line {}: {why}", span.start.line()));
        if depth > DEPTH_MAX {
            return bad("nested too deeply");
        }
        let (anchor, node) = match event {
            Event::Scalar(text, style, anchor, _) => {
                let is_none = style == ScalarStyle::Plain && ["", "~", "null"].contains(&&*text);
                (anchor, Node::Text((!is_none).then(|| text.into_owned())))
            }
            Event::Alias(anchor) => match self.anchors.get(&anchor) {
                Some(node) => return Ok(Rc::clone(node)),
                None => return bad("an alias of nothing"),
            },
            Event::MappingStart(anchor, _) => (anchor, self.map(depth)?),
            Event::SequenceStart(anchor, _) => (anchor, self.list(depth)?),
            _ => return bad("not YAML"),
        };
        let node = Rc::new(node);
        self.anchors.insert(anchor, Rc::clone(&node));
        Ok(node)
    }

    fn map(&mut self, depth: usize) -> Result<Node, String> {
        let mut pairs = Vec::new();
        loop {
            let (event, span) = self.next()?;
            let line = span.start.line();
            if matches!(event, Event::MappingEnd) {
                return Ok(Node::Map(pairs));
            }
            let key = match &*self.node(event, span, depth + 1)? {
                Node::Text(Some(key)) => key.clone(),
                _ => return Err(format!("line {line}: a key that is no text")),
            };
            let (event, span) = self.next()?;
            pairs.push((key, self.node(event, span, depth + 1)?));
        }
    }

    fn list(&mut self, depth: usize) -> Result<Node, String> {
        let mut all = Vec::new();
        loop {
            let (event, span) = self.next()?;
            if matches!(event, Event::SequenceEnd) {
                return Ok(Node::List(all));
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
