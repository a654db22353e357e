//! csi-sanity with a class of encrypted volumes.

use belay_guest::Guest;

use crate::belay::metrics;
use crate::luks::{local, run};
use crate::rig::{kernels_or, machine_with_state, newest_kernel};
use crate::sanity::csi_sanity;

/// The suite has the passphrase in its own words for the Secret of NodeStageVolume.
const SECRETS: &str = "\
printf 'NodeStageVolumeSecret: {encryptionPassphrase: canary-passphrase}\\n' >/run/secrets.yaml";

#[test]
#[ignore = "needs User-mode Linux: make luks"]
fn csi_sanity_passes_with_encrypted_volumes() {
    for kernel in kernels_or(newest_kernel()) {
        let (machine, _) = machine_with_state(kernel, "ext4");
        let mut guest = local(&machine);
        run(&mut guest, SECRETS);
        let mut headers = created_headers(&mut guest);
        for kind in ["mount", "block"] {
            let flags = format!(
                "--csi.secrets=/run/secrets.yaml --csi.testvolumeaccesstype={kind} \
                 --csi.testvolumesize=$((160 << 20)) --csi.testvolumeexpandsize=$((224 << 20))"
            );
            let parameters = "encrypted: \"true\"";
            let passed = csi_sanity(&mut guest, "/run/node.sock", parameters, &flags);
            passed.is_complete();
            eprintln!("{kind}: {} specs", passed.count(""));
            // The suite has staged encrypted volumes, and left nothing.
            let now = created_headers(&mut guest);
            assert!(now >= headers + 4, "{kind}: {headers}, then {now} headers");
            headers = now;
            run(
                &mut guest,
                "[ $(mappers) = 0 ]; [ -z \"$(losetup --list --noheadings)\" ]",
            );
        }
    }
}

/// Returns the number of stages that have created a LUKS header.
fn created_headers(guest: &mut Guest<'_>) -> u64 {
    let series =
        "belay_operation_phase_duration_seconds_count{operation=\"stage\",phase=\"encrypt\"} ";
    let page = metrics(guest).expect("power");
    let count = page.lines().find_map(|line| line.strip_prefix(series));
    count.map_or(0, |count| count.parse().expect("a number"))
}
