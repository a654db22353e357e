//! The engine of `doctor --switch`: evaluates rules about the objects of a cluster, given as data,
//! and reports findings. Contains no rules.

use std::time::SystemTime;

use super::peer::Peer;
use super::workloads::{self, Flags};
use crate::objects::{Object, Objects};
use crate::report::{Report, Verdict};

/// Maximum number of names in a finding.
const NAMES_MAX: usize = 3;

/// The cluster, and the driver in it that Belay will replace.
pub(super) struct Case<'a> {
    pub(super) objects: &'a Objects,
    pub(super) peer: &'a Peer,
    /// The driver's name in the cluster.
    pub(super) driver: &'a str,
    pub(super) now: SystemTime,
}

/// Rules that report findings with the same title.
pub(super) struct Section {
    /// The title of the findings.
    pub(super) name: &'static str,
    /// Whether the rules apply to the driver.
    pub(super) applies: fn(&Case<'_>) -> bool,
    /// A kind of object that every cluster has. If the input has no such object, the section
    /// reports that the result is unknown.
    pub(super) needs: Option<&'static str>,
    pub(super) rules: &'static [Rule],
    /// The finding if no rule is broken.
    pub(super) good: Good,
}

/// The finding of a section without broken rules.
pub(super) enum Good {
    /// No finding.
    Silent,
    /// A finding with this text, if no rule is broken. In the text of this finding, `{0}` is the
    /// number of objects that the section's first rule checks.
    IfAllHold(&'static str),
    /// A finding with this text, if no broken rule forbids the switch; broken rules may have given
    /// warnings.
    IfNoneIsWrong(&'static str),
}

/// A rule. In the texts of a rule, `{0}`, `{1}` and `{2}` are the values that the test of the rule
/// has returned.
pub(super) struct Rule {
    pub(super) verdict: Verdict,
    pub(super) about: Subject,
    pub(super) test: Test,
    pub(super) what: &'static str,
    pub(super) cure: &'static str,
}

/// Creates a rule that forbids the switch if broken.
pub(super) const fn wrong(
    about: Subject,
    test: Test,
    what: &'static str,
    cure: &'static str,
) -> Rule {
    rule(Verdict::No, about, test, what, cure)
}

/// Creates a rule that gives a warning if broken.
pub(super) const fn warning(
    about: Subject,
    test: Test,
    what: &'static str,
    cure: &'static str,
) -> Rule {
    rule(Verdict::Warn, about, test, what, cure)
}

/// Creates a rule that gives instructions if it matches, but no warning.
pub(super) const fn right(
    about: Subject,
    test: Test,
    what: &'static str,
    cure: &'static str,
) -> Rule {
    rule(Verdict::Ok, about, test, what, cure)
}

const fn rule(
    verdict: Verdict,
    about: Subject,
    test: Test,
    what: &'static str,
    cure: &'static str,
) -> Rule {
    Rule {
        verdict,
        about,
        test,
        what,
        cure,
    }
}

/// The kind of objects that a rule checks.
#[derive(Clone, Copy)]
pub(super) enum Subject {
    /// The objects of a kind that name the driver at a JSON pointer.
    Ours(&'static str, &'static str),
    /// All objects of a kind.
    All(&'static str),
    /// All Deployments, StatefulSets and DaemonSets. Findings name them by kind and name.
    Workloads,
    /// The containers with the driver's programs.
    Containers,
    /// The containers that serve the controller's calls, in a Deployment or StatefulSet.
    Controllers,
}

/// The test of whether an object breaks a rule.
pub(super) enum Test {
    /// Returns whether the object breaks the rule.
    Is(fn(Object<'_>, &Case<'_>) -> bool),
    /// Returns the values for the rule's texts if the object breaks it.
    Finds(fn(&Item<'_>, &Case<'_>) -> Option<Vec<String>>),
}

/// An object that a rule checks.
pub(super) struct Item<'a> {
    /// The name of the object in findings.
    name: String,
    /// The object itself, or the container.
    pub(super) object: Object<'a>,
    /// The workload of a container, or else the object.
    pub(super) workload: Object<'a>,
}

impl<'a> Case<'a> {
    fn items(&self, subject: Subject) -> Vec<Item<'a>> {
        let item = |object: Object<'a>| Item {
            name: object.full_name(),
            object,
            workload: object,
        };
        let containers = || {
            let all = workloads::containers(self.objects, self.peer);
            all.map(|(name, workload, object)| Item {
                name,
                object,
                workload,
            })
        };
        match subject {
            Subject::Ours(kind, pointer) => self.ours(kind, pointer).map(item).collect(),
            Subject::All(kind) => self.objects.of(kind).map(item).collect(),
            Subject::Workloads => {
                let all = workloads::workloads(self.objects);
                all.map(|(kind, it)| Item {
                    name: format!("{kind} {}", it.full_name()),
                    ..item(it)
                })
                .collect()
            }
            Subject::Containers => containers().collect(),
            Subject::Controllers => {
                let is_controller = |it: &Item<'_>| {
                    !it.name.starts_with("DaemonSet") && Flags::of(it.object).is_controller()
                };
                containers().filter(is_controller).collect()
            }
        }
    }

    /// Returns the objects of a kind that name the driver at a JSON pointer.
    pub(super) fn ours(&self, kind: &str, pointer: &str) -> impl Iterator<Item = Object<'a>> {
        let all = self.objects.of(kind);
        all.filter(move |it| it.text(pointer) == self.driver)
    }
}

impl Section {
    /// Defaults for a section: the rules apply to all drivers, and if no rule is broken, nothing is
    /// reported.
    pub(super) const ALWAYS: Self = Self {
        name: "",
        applies: |_| true,
        needs: None,
        rules: &[],
        good: Good::Silent,
    };

    /// Evaluates the rules and reports the findings. Returns whether a rule is broken, or the input
    /// has no object of the kind that the section needs.
    pub(super) fn judge(&self, report: &mut Report, case: &Case<'_>) -> bool {
        if !(self.applies)(case) {
            return false;
        }
        if let Some(kind) = self.needs
            && !case.objects.have(kind)
        {
            missing(report, self.name, kind);
            return true;
        }
        let (mut is_broken, mut is_wrong) = (false, false);
        for rule in self.rules {
            if rule.judge(report, self.name, case) {
                is_broken = true;
                is_wrong |= rule.verdict == Verdict::No;
            }
        }
        let what = match self.good {
            Good::IfAllHold(what) if !is_broken => what,
            Good::IfNoneIsWrong(what) if !is_wrong => what,
            _ => return is_broken,
        };
        let count = self.rules.first().map(|rule| case.items(rule.about).len());
        let count = count.unwrap_or_default().to_string();
        report.add(Verdict::Ok, self.name, filled(what, &[count]));
        is_broken
    }
}

impl Rule {
    /// Reports the objects that break the rule. Objects with the same values share a finding.
    /// Returns whether any object breaks the rule.
    fn judge(&self, report: &mut Report, name: &str, case: &Case<'_>) -> bool {
        let mut found: Vec<(Vec<String>, Names)> = Vec::new();
        for item in case.items(self.about) {
            let values = match self.test {
                Test::Is(test) => test(item.object, case).then(Vec::new),
                Test::Finds(test) => test(&item, case),
            };
            let Some(values) = values else { continue };
            match found.iter_mut().find(|(known, _)| *known == values) {
                Some((_, names)) => names.0.push(item.name),
                None => found.push((values, Names(vec![item.name]))),
            }
        }
        for (values, names) in &found {
            let what = format!("{names}: {}", filled(self.what, values));
            report.cure(self.verdict, name, what, filled(self.cure, values));
        }
        !found.is_empty()
    }
}

/// Replaces the placeholders of a text by values.
fn filled(text: &str, values: &[String]) -> String {
    let values = values.iter().enumerate();
    values.fold(text.to_owned(), |text, (at, value)| {
        text.replace(&format!("{{{at}}}"), value)
    })
}

/// Reports that the input has no object of a kind that every cluster has, so that the result is
/// unknown.
pub(super) fn missing(report: &mut Report, name: &str, kind: &str) {
    let cure = format!("add {kind} to the objects: `belayctl doctor --help` has the command");
    report.cure(Verdict::No, name, format!("the input has no {kind}"), cure);
}

/// The names of the objects with the same finding.
#[derive(Default)]
pub(super) struct Names(pub(super) Vec<String>);

impl std::fmt::Display for Names {
    /// Writes the first names, and the number of further names.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(NAMES_MAX)];
        f.write_str(&shown.join(", "))?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_are_counted() {
        let names = Names(["a", "b", "c", "d", "e"].map(str::to_owned).to_vec());
        assert_eq!(names.to_string(), "a, b, c and 2 more");
    }
}
