//! Writes the mutants of a file into its source, each behind a switch.

use crate::list::Mutant;
use crate::places::{CALL, Places};
use std::collections::BTreeMap;
use std::ops::Range;

/// The function that reads the switch.
const SWITCH: &str = "crate::mutant_switch::on";

/// A source file with its mutants.
#[derive(Default)]
pub(crate) struct Woven {
    pub(crate) text: String,
    /// The ranges of the text in which a compiler error is due to a mutant.
    pub(crate) marks: Vec<Mark>,
    /// Mutants that are left out of the text because no runtime switch can select them, such as
    /// those in constants; these mutants are built separately.
    pub(crate) left: Vec<u32>,
    /// Mutants that are not valid Rust.
    pub(crate) rejected: Vec<u32>,
}

/// A range of the text that was changed for a mutant.
pub(crate) struct Mark {
    pub(crate) range: Range<usize>,
    pub(crate) id: u32,
    /// Whether the range contains the mutant's own text, rather than the text around the mutant.
    pub(crate) own: bool,
}

/// An insertion of text before and after a range of the source.
#[derive(Default)]
struct Edit {
    range: Range<usize>,
    before: String,
    after: &'static str,
    /// The ranges of `before` that contain the text of mutants, each with its mutant.
    own: Vec<(Range<usize>, u32)>,
    /// Further ranges of the source to which compiler errors due to these mutants may point.
    also: Option<Range<usize>>,
}

/// Returns the source with all the given mutants, which must be mutants of this source.
///
/// # Errors
/// Fails if the source is not Rust, or if the code at a mutant's position does not match the
/// mutant.
pub(crate) fn weave(source: &str, mutants: &[&Mutant]) -> Result<Woven, String> {
    let places = Places::of(source)?;
    let (mut left, mut rejected) = (Vec::new(), Vec::new());
    // Group the mutants by kind and position, so that one edit contains all mutants of an
    // expression.
    let mut groups: BTreeMap<(usize, &str), Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        let at = mutant
            .range(source)
            .ok_or("a position after the end")?
            .start;
        let constant = places.constant.iter().any(|range| range.contains(&at));
        let opaque = mutant.genre == "FnValue" && mutant.returns.contains("impl ");
        if places.joints.contains(&at) {
            rejected.push(mutant.id);
        } else if constant || opaque {
            left.push(mutant.id);
        } else {
            groups
                .entry((at, mutant.genre.as_str()))
                .or_default()
                .push(mutant);
        }
    }
    let mut edits = Vec::new();
    for ((at, genre), group) in groups {
        match edit(source, &places, at, genre, &group) {
            Some(edit) => edits.push(edit),
            None => left.extend(group.iter().map(|mutant| mutant.id)),
        }
    }
    Ok(Woven {
        left,
        rejected,
        ..applied(source, &edits)
    })
}

/// Returns an edit with a switch for each mutant; `None` if the code cannot contain a switch.
fn edit(source: &str, places: &Places, at: usize, genre: &str, group: &[&Mutant]) -> Option<Edit> {
    match genre {
        "FnValue" => {
            // Use a range to the end of the file, so that this edit encloses all others at its
            // position.
            let mut edit = Edit {
                range: at..usize::MAX,
                ..Edit::default()
            };
            for mutant in group {
                let value = &mutant.replacement;
                edit.add(
                    mutant,
                    &format!("if {SWITCH}({}) {{ return {value}; }} ", mutant.id),
                );
            }
            Some(edit)
        }
        "BinaryOperator" | "UnaryOperator" => {
            let operator = places.operators.get(&at)?;
            let (whole, sign) = (&operator.whole, &operator.sign);
            Some(choice(whole, group, |mutant| {
                let (left, right) = (whole.start..sign.start, sign.end..whole.end);
                format!("{}{}{}", &source[left], mutant.replacement, &source[right])
            }))
        }
        "MatchArmGuard" => {
            let guard = places.guards.get(&at)?;
            Some(choice(guard, group, |mutant| mutant.replacement.clone()))
        }
        CALL => {
            let [mutant] = group else { return None };
            let mut edit = Edit {
                range: mutant.range(source)?,
                after: " }",
                ..Edit::default()
            };
            edit.add(mutant, &format!("if !{SWITCH}({}) {{ ", mutant.id));
            Some(edit)
        }
        "MatchArm" => {
            let arm = places.arms.get(&at)?;
            let [mutant] = group else { return None };
            let mut edit = Edit {
                also: Some(arm.matched.clone()),
                ..Edit::default()
            };
            if let Some(guard) = &arm.guard {
                edit.range = guard.clone();
                edit.add(mutant, &format!("!{SWITCH}({}) && (", mutant.id));
                edit.after = ")";
            } else {
                edit.range = arm.pattern.end..arm.pattern.end;
                edit.add(mutant, &format!(" if !{SWITCH}({})", mutant.id));
            }
            Some(edit)
        }
        _ => None,
    }
}

/// Returns an edit that replaces the expression with a choice: the mutant whose switch is on, or
/// the original.
fn choice(range: &Range<usize>, group: &[&Mutant], with: impl Fn(&Mutant) -> String) -> Edit {
    let mut edit = Edit {
        range: range.clone(),
        before: "(".to_owned(),
        ..Edit::default()
    };
    for mutant in group {
        edit.add(
            mutant,
            &format!("if {SWITCH}({}) {{ ({}) }} ", mutant.id, with(mutant)),
        );
        edit.before.push_str("else ");
    }
    edit.before.push_str("{ (");
    edit.after = ") })";
    edit
}

impl Edit {
    fn add(&mut self, mutant: &Mutant, text: &str) {
        let start = self.before.len();
        self.before.push_str(text);
        self.own.push((start..self.before.len(), mutant.id));
    }
}

/// Applies the edits. An edit may contain other edits.
fn applied(source: &str, edits: &[Edit]) -> Woven {
    // Sort the insertions by position. At the same position, ends precede starts, inner ends
    // precede outer ends, and outer starts precede inner starts.
    let mut inserted = Vec::new();
    for (number, edit) in (0_isize..).zip(edits) {
        let Range { start, end } = edit.range;
        let length = end.saturating_sub(start);
        if end <= source.len() && !edit.after.is_empty() {
            inserted.push(((end, 0, length, -number), edit, false));
        }
        inserted.push(((start, 1, usize::MAX - length, number), edit, true));
    }
    inserted.sort_by_key(|(key, ..)| *key);
    let mut woven = Woven::default();
    let mut copied = 0;
    let mut shifts = vec![(0, 0)];
    for ((at, ..), edit, before) in inserted {
        woven.text.push_str(&source[copied..at]);
        copied = at;
        let shift = woven.text.len();
        if before {
            for (range, id) in &edit.own {
                let range = shift + range.start..shift + range.end;
                woven.marks.push(Mark {
                    range,
                    id: *id,
                    own: true,
                });
            }
            woven.text.push_str(&edit.before);
        } else {
            woven.text.push_str(edit.after);
        }
        shifts.push((at, woven.text.len() - at));
    }
    woven.text.push_str(&source[copied..]);
    let moved = |at: usize| {
        let shift = shifts.iter().rev().find(|(from, _)| *from <= at);
        at + shift.map_or(0, |(_, by)| *by)
    };
    for edit in edits {
        let whole = (edit.range.end <= source.len()).then_some(&edit.range);
        for range in whole.into_iter().chain(&edit.also) {
            let range = moved(range.start)..moved(range.end);
            let marks = edit.own.iter().map(|(_, id)| Mark {
                range: range.clone(),
                id: *id,
                own: false,
            });
            woven.marks.extend(marks);
        }
    }
    woven
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "\
const SIZE: u64 = 1 << 4;
fn least(a: u64, b: Option<u64>) -> u64 {
    sync()?;
    match b {
        None if a > 1 => 0,
        Some(b) if let 1 = b && a < b => !a,
        _ => a + SIZE,
    }
}
";

    fn mutant(id: u32, genre: &str, text: &str, replacement: &str) -> Mutant {
        let at = SOURCE.find(text).unwrap();
        let before = &SOURCE[..at];
        let line = before.matches('\n').count() + 1;
        let column = at - before.rfind('\n').map_or(0, |at| at + 1) + 1;
        Mutant {
            id,
            name: String::new(),
            file: String::new(),
            genre: genre.to_owned(),
            replacement: replacement.to_owned(),
            returns: "-> u64".to_owned(),
            start: (line, column),
            end: (line, column + text.len()),
        }
    }

    fn woven(mutants: &[Mutant]) -> Woven {
        let woven = weave(SOURCE, &mutants.iter().collect::<Vec<_>>()).unwrap();
        // The range of a mark must contain the text of its mutant, because compiler errors in the
        // range are attributed to this mutant.
        for mark in woven.marks.iter().filter(|mark| mark.own) {
            let text = &woven.text[mark.range.clone()];
            assert!(text.contains(&format!("on({})", mark.id)), "{text}");
        }
        woven
    }

    #[test]
    fn mutants_of_one_expression_and_of_its_parts_are_all_in_the_text() {
        let woven = woven(&[
            mutant(1, "FnValue", "sync()?;", "7"),
            mutant(2, "BinaryOperator", "+", "-"),
            mutant(3, "BinaryOperator", "+", "*"),
            mutant(4, "MatchArm", "None if", ""),
            mutant(5, "MatchArmGuard", "a > 1", "true"),
            mutant(6, "BinaryOperator", "> 1", "<"),
            mutant(7, "UnaryOperator", "!a", ""),
            mutant(8, CALL, "sync()?;", ""),
        ]);
        assert!(woven.left.is_empty() && woven.rejected.is_empty());
        let text: String = woven.text.split_whitespace().collect();
        let on = "crate::mutant_switch::on";
        for part in [
            format!("{{if{on}(1){{return7;}}if!{on}(8){{sync()?;}}match"),
            format!("(if{on}(2){{(a-SIZE)}}elseif{on}(3){{(a*SIZE)}}else{{(a+SIZE)}})"),
            format!("Noneif!{on}(4)&&((if{on}(5){{(true)}}else{{("),
            format!("(if{on}(6){{(a<1)}}else{{(a>1)}})"),
            format!("(if{on}(7){{(a)}}else{{(!a)}})"),
        ] {
            assert!(text.contains(&part), "{part} in\n{text}");
        }
    }

    #[test]
    fn what_no_switch_can_select_is_left_and_what_is_not_rust_is_rejected() {
        let constant = woven(&[mutant(1, "BinaryOperator", "<< 4", ">>")]);
        assert_eq!((constant.left, constant.text.as_str()), (vec![1], SOURCE));
        let joint = woven(&[mutant(2, "BinaryOperator", "&&", "||")]);
        assert_eq!((joint.rejected, joint.text.as_str()), (vec![2], SOURCE));
    }

    #[test]
    fn a_mutant_alone_replaces_its_own_text() {
        let alone = mutant(1, "BinaryOperator", "<<", ">>").apply(SOURCE);
        assert!(alone.unwrap().starts_with("const SIZE: u64 = 1 >> 4;\nfn"));
    }
}
