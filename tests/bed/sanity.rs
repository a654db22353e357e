//! Runs csi-sanity, the official test suite, against a controller whose node agent has no device to
//! attach.

#![expect(clippy::expect_used, reason = "a test ends without the suite")]

use std::path::Path;
use std::process::Command;

/// Runs the suite against both sockets, with volumes of this access type (`mount` or `block`), and
/// without the specs of the node service. The suite's directories are created in `dir`.
///
/// # Panics
/// Panics if csi-sanity is missing, or if a spec fails.
pub fn passes_without_node_service(node: &Path, controller: &Path, dir: &Path, access_type: &str) {
    let option = |name: &str, value: &Path| format!("--csi.{name}={}", value.display());
    let output = Command::new("csi-sanity")
        .args(["--ginkgo.no-color", "--ginkgo.skip=Node Service"])
        .arg(option("endpoint", node))
        .arg(option("controllerendpoint", controller))
        .arg(option("mountdir", &dir.join("mount")))
        .arg(option("stagingdir", &dir.join("staging")))
        .arg(format!("--csi.testvolumeaccesstype={access_type}"))
        .output()
        .expect("csi-sanity");
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{words}");
    assert!(words.contains(" 0 Failed"), "{words}");
}
