//! csi-sanity, the official suite, on programs that run in a guest.

use belay_guest::Guest;
use serde_json::Value;

use crate::belay::call;
use crate::filer;
use crate::rig::{seen, until};

/// How long csi-sanity may take.
const MINUTES: usize = 10;

/// The specs that have passed.
pub(crate) struct Passed(Vec<String>);

impl Passed {
    /// Returns the number of specs whose text contains the words.
    pub(crate) fn count(&self, words: &str) -> usize {
        self.0.iter().filter(|text| text.contains(words)).count()
    }

    /// Checks that the suite has not skipped specs for want of a capability of the controller.
    #[track_caller]
    pub(crate) fn is_complete(&self) {
        let Self(texts) = self;
        assert!(texts.len() > 40, "{texts:?}");
        for source in [
            "from an existing source volume",
            "from an existing source snapshot",
        ] {
            assert_eq!(self.count(source), 1, "{texts:?}");
        }
        assert!(self.count("snapshot") >= 6, "{texts:?}");
    }
}

/// Runs the suite on the controller at `/run/controller.sock` and the node agent at this socket,
/// with these flags and parameters of the class, in YAML.
///
/// # Panics
/// Panics if a spec fails.
pub(crate) fn csi_sanity(
    guest: &mut Guest<'_>,
    node: &str,
    parameters: &str,
    flags: &str,
) -> Passed {
    let program = filer::cache().join("bin/csi-sanity");
    assert!(
        program.exists(),
        "no {}; run: make setup",
        program.display()
    );
    let suite = seen(&program);
    let mut run = |script: &str| call(guest, script).expect("power");
    run(&format!(
        "cat >/run/parameters.yaml <<'END'\n{parameters}\nEND
         rm -rf /run/code /run/csi-mount /run/csi-staging
         (setsid bash -c '{suite} --ginkgo.no-color --ginkgo.json-report=/run/report.json \\
             --csi.endpoint={node} --csi.controllerendpoint=/run/controller.sock \\
             --csi.mountdir=/run/csi-mount --csi.stagingdir=/run/csi-staging \\
             --csi.testvolumeparameters=/run/parameters.yaml {flags}
             echo $? >/run/code' >/run/sanity.log 2>&1 3>&- &)"
    ));
    let ends = until("[ -s /run/code ]");
    // More than one script may take.
    for _ in 0..MINUTES * 2 {
        run(&format!("{{ {ends}; }} || true"));
    }
    let report = run(
        "[ $(cat /run/code) = 0 ] || { grep -v '^$' /run/sanity.log | tail -120; exit 1; }
         cat /run/report.json",
    );
    let report: Value = serde_json::from_str(&report).expect("a report");
    let specs = report[0]["SpecReports"].as_array().expect("specs");
    let passed = specs.iter().filter(|spec| spec["State"] == "passed");
    let texts = passed.filter_map(|spec| spec["LeafNodeText"].as_str());
    Passed(texts.map(ToOwned::to_owned).collect())
}
