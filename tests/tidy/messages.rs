//! Checks that messages about a volume or a snapshot begin with `volume ID: ` or `snapshot ID: `,
//! so that one search finds them in every program's log.

use crate::Finding;
use crate::tree::RustFile;

const PROGRAMS: [&str; 3] = ["controller/src/", "node-agent/src/", "server/src/"];
const RULE: &str = "a message about a volume or a snapshot begins with its ID and a colon";

/// Returns a finding for each message in a file that begins in another way.
pub(crate) fn check(file: &RustFile) -> Vec<Finding> {
    let is_program = PROGRAMS
        .iter()
        .any(|program| file.path.starts_with(program));
    // Tests also contain the messages that they expect from others, such as clouds.
    if !is_program || file.path.contains("/tests") {
        return Vec::new();
    }
    let lines = file.content.lines().zip(1..);
    let wrong = lines.filter(|(line, _)| begins_otherwise(line));
    wrong
        .map(|(_, at)| Finding::new(&file.path, at, RULE))
        .collect()
}

fn begins_otherwise(line: &str) -> bool {
    ["\"volume {", "\"snapshot {"].iter().any(|begin| {
        let id = line.split_once(begin).map(|(_, rest)| rest);
        let after = id.and_then(|rest| rest.split_once('}'));
        after.is_some_and(|(_, after)| !after.starts_with([':', '"']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_a_colon_is_found_in_a_program_and_nowhere_else() {
        let content = "//! x\n\"volume {id} is gone\"\n\"volume {}: gone\"\n\"volume {id}\"\n";
        for (path, count) in [
            ("controller/src/operation/phase.rs", 1),
            ("node-agent/src/operation/tests/suite.rs", 0),
            ("tests/beds/openstack/src/cloud.rs", 0),
        ] {
            let found = check(&RustFile::new(path, content));
            assert_eq!(found.len(), count, "{path}");
            assert!(found.iter().all(|finding| finding.line == 2), "{path}");
        }
    }
}
