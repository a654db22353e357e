//! Finds functions and their lengths by matching braces. Knows masked code only.

use crate::mask::{is_word, line_of, places_of};

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) name: String,
    /// The line of its `fn`, counted from 1.
    pub(crate) line: usize,
    /// From the `fn` to the closing brace, both counted.
    pub(crate) length: usize,
}

/// Every function of masked code that has a body, inner ones too.
pub(crate) fn functions(code: &str) -> Vec<Function> {
    places_of(code, "fn")
        .filter_map(|at| function_at(code, at))
        .collect()
}

fn function_at(code: &str, at: usize) -> Option<Function> {
    let name: String = code[at + 2..]
        .trim_start()
        .chars()
        .take_while(|c| is_word(*c))
        .collect();
    if name.is_empty() {
        return None; // the type of a function pointer
    }
    let body = at + start_of_body(&code[at..])?;
    let end = body + end_of_block(&code[body..]);
    let line = line_of(code, at);
    Some(Function {
        name,
        line,
        length: line_of(code, end) - line + 1,
    })
}

/// `None` for a declaration: its `;` comes first. Inside brackets a `;` belongs to an array type
/// and a brace to a constant.
fn start_of_body(code: &str) -> Option<usize> {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            '{' if depth == 0 => return Some(at),
            ';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

fn end_of_block(code: &str) -> usize {
    let mut depth = 0;
    for (at, c) in code.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    code.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_measured_from_its_name_to_its_last_brace() {
        let code =
            "trait T { fn d(x: [u8; 4]); }\nfn f(\n  g: fn(u8) -> u8,\n) -> u8\n{\n  {\n  }\n}\n";
        let found = functions(code);
        assert_eq!(
            found,
            [Function {
                name: "f".to_owned(),
                line: 2,
                length: 7
            }]
        );
    }

    #[test]
    fn inner_functions_count_on_their_own() {
        let found = functions("fn a() {\n  fn b() {\n  }\n}\n");
        let lengths: Vec<_> = found.iter().map(|f| (f.name.as_str(), f.length)).collect();
        assert_eq!(lengths, [("a", 4), ("b", 2)]);
    }
}
