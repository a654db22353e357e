//! The driver `local` in guests of both kernels: the one without statmount(2) and, of a guest's
//! own, the capability that growing a mounted ext4 takes.

use belay_guest::{Gone, Guest};

use crate::belay::{Volume, call, start};
use crate::rig::{MIB, boot, kernels, machine_with_state};

/// A filesystem and the sizes of its volume before and after, in MiB.
const KINDS: [(&str, u64, u64); 3] = [("ext4", 128, 192), ("xfs", 320, 400), ("btrfs", 256, 320)];

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_of_each_filesystem_grows_under_its_pod_and_keeps_its_data() {
    for kernel in kernels() {
        let (machine, _) = machine_with_state(kernel, "ext4");
        let mut guest = boot(&machine);
        start(&mut guest).expect("power");
        for (filesystem, before, after) in KINDS {
            live(&mut guest, filesystem, before, after).expect("power");
        }
        let left =
            "ls -A /state/belay/volumes; findmnt --list --noheadings -o TARGET | grep ^/pods";
        let left = guest.try_run(left).expect("power").text;
        assert_eq!(left, "", "left behind");
    }
}

fn live(guest: &mut Guest<'_>, filesystem: &'static str, mib: u64, more: u64) -> Result<(), Gone> {
    let volume = Volume::create(guest, filesystem, filesystem, mib)?;
    volume.stage(guest)?;
    volume.publish(guest)?;
    let (staging, target) = (volume.staging(), volume.target());
    call(guest, &format!("cp /bin/bash {target}/before"))?;

    let small = volume.total(guest)?;
    // A pod that has a file open and writes.
    call(
        guest,
        &format!("exec 4>{target}/open; echo open >&4; sync {target}/before"),
    )?;
    volume.grow(guest, more)?;
    let large = volume.total(guest)?;
    let least = (more - mib) * MIB * 9 / 10;
    assert!(
        large >= small + least,
        "{filesystem}: {small}, then {large}"
    );
    call(
        guest,
        &format!(
            "head -c 8M /dev/urandom >{target}/after
             sha256sum <{target}/after >/run/sum"
        ),
    )?;

    volume.unpublish(guest)?;
    volume.unstage(guest)?;
    call(
        guest,
        &format!("! mountpoint -q {staging} && [ ! -e {target} ]"),
    )?;
    volume.stage(guest)?;
    volume.publish(guest)?;
    call(
        guest,
        &format!(
            "cmp /bin/bash {target}/before && sha256sum --check --status /run/sum <{target}/after"
        ),
    )?;
    assert_eq!(volume.total(guest)?, large, "{filesystem}: staged again");
    volume.unpublish(guest)?;
    volume.unstage(guest)?;
    volume.delete(guest)
}
