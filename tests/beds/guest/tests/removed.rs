//! Volumes whose disk is removed while they are staged, in guests.

use std::sync::Arc;

use belay_guest::{Disk, Failing, Gone, Guest, Kernel, Machine, Medium};

use crate::belay::{call, metrics, try_call};
use crate::disks::{ID, KINDS, Raw, START, Volume, machine};
use crate::rig::{kernels_or, medium, newest_kernel, seen_programs, until};

const KUBELET: &str = "/kubelet";
const CSI: &str = "/kubelet/plugins/kubernetes.io/csi";

/// The calls for a volume, with paths as a kubelet makes them.
struct Subject {
    kind: &'static str,
    id: &'static str,
    mib: u64,
    stage: String,
    publish: String,
    write: String,
    check: String,
    unpublish: String,
    unstage: String,
}

/// A volume with each filesystem, and a raw one.
fn subjects() -> Vec<Subject> {
    let filesystems = KINDS.map(|(filesystem, mib, _)| {
        let mut volume = Volume::new(filesystem, &format!("serial={ID}"), mib);
        // Samples of it are read.
        volume
            .context
            .push_str(" --context attached_at=$(date +%s)");
        let globalmount = format!("{CSI}/cinder.csi.openstack.org/{ID}/globalmount");
        let at = |calls: String| in_kubelets_layout(&calls, ID, &globalmount);
        Subject {
            kind: filesystem,
            id: ID,
            mib,
            stage: at(volume.stage()),
            publish: at(volume.publish()),
            write: at(format!("cp /bin/bash /pods/{ID}/target/written")),
            check: at(format!("cmp /bin/bash /pods/{ID}/target/written")),
            unpublish: at(format!("node unpublish {ID} --target /pods/{ID}/target")),
            unstage: at(volume.unstage()),
        }
    });
    let raw = {
        const ID: &str = "raw";
        let volume = Raw(ID);
        let staging = format!("{CSI}/volumeDevices/staging/{ID}");
        let at = |calls: &str| in_kubelets_layout(calls, ID, &staging);
        let words = "dd if=/pods/raw/target bs=5 count=1 status=none";
        Subject {
            kind: ID,
            id: ID,
            mib: 64,
            stage: at(&volume.stage()),
            publish: at(&volume.publish()),
            write: at("printf words | dd of=/pods/raw/target status=none"),
            check: at(&format!("[ $({words}) = words ]")),
            unpublish: at("node unpublish raw --target /pods/raw/target"),
            unstage: at("node unstage raw --staging /pods/raw/staging"),
        }
    };
    filesystems.into_iter().chain([raw]).collect()
}

fn in_kubelets_layout(calls: &str, id: &str, staging: &str) -> String {
    let calls = calls.replace(&format!("/pods/{id}/staging"), staging);
    calls.replace(&format!("/pods/{id}/"), &format!("{KUBELET}/pods/{id}-"))
}

/// How often the volume's disk is mounted.
fn mounts(number: usize) -> String {
    format!("[ $(grep -c {KUBELET}/p /proc/self/mounts) = {number} ]")
}

fn start() -> String {
    START.replace(
        "--node-id guest",
        &format!("--node-id guest --kubelet-dir {KUBELET}"),
    )
}

/// Boots it, with an agent for a kubelet whose directory is shared.
fn boot(machine: &Machine) -> Guest<'_> {
    let mut guest = machine.boot();
    let programs = seen_programs();
    guest.run(&format!(
        "mkdir -p /belay {KUBELET} && mount --bind {programs} /belay
         mount -t tmpfs kubelet {KUBELET} && mount --make-shared {KUBELET}
         mkdir -p {KUBELET}/pods"
    ));
    call(&mut guest, &start()).expect("power");
    guest
}

fn restart(guest: &mut Guest<'_>, while_stopped: impl FnOnce(&mut Guest<'_>)) {
    guest.run("pkill -KILL -x belay-node; rm -f /run/node.sock");
    while_stopped(guest);
    call(guest, &start()).expect("power");
}

impl Subject {
    /// Its disk is plugged in, and its pod has written and is running.
    fn up(&self, guest: &mut Guest<'_>, machine: &Machine) -> Result<Arc<Medium>, Gone> {
        let medium = medium(machine, self.kind, self.mib);
        machine.slot(0).insert(Disk::block(self.id, &medium));
        guest.attach(0);
        for calls in [&self.stage, &self.publish, &self.write] {
            call(guest, calls)?;
        }
        Ok(medium)
    }

    /// Its disk comes back, and has what was written.
    fn is_whole(&self, guest: &mut Guest<'_>, machine: &Machine) {
        guest.attach(0);
        self.lives(guest, machine);
    }

    /// Its disk is attached, and has what was written.
    fn lives(&self, guest: &mut Guest<'_>, machine: &Machine) {
        let (stage, publish) = (&self.stage, &self.publish);
        for calls in [stage, publish, &self.check, &self.unpublish, &self.unstage] {
            call(guest, calls).expect("power");
        }
        guest.run(&mounts(0));
        guest.run("[ -z \"$(ls /dev/belay/cinder.csi.openstack.org)\" ]");
        guest.detach(0);
        machine.slot(0).remove();
    }
}

fn detach(guest: &mut Guest<'_>) {
    guest.detach(0);
    guest.run(&until("[ ! -e /sys/block/vda ]"));
}

/// The pod has ended, its kubelet was killed and has forgotten the volume, and the cloud detaches
/// the disk.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_that_no_pod_has_is_staged_again_once_its_disk_is_back() {
    for kernel in kernels_or(newest_kernel()) {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        for subject in subjects() {
            subject.up(&mut guest, &machine).expect("power");
            call(&mut guest, &subject.unpublish).expect("power");
            detach(&mut guest);
            // A raw device stays until its next stage.
            let left = usize::from(subject.kind == "raw");
            call(&mut guest, &until(&mounts(left))).expect("power");
            subject.is_whole(&mut guest, &machine);
        }
    }
}

/// The disk is back while the pod still has the removed one.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_is_not_staged_again_while_a_pod_has_its_removed_disk() {
    for kernel in kernels_or(Kernel::of_distribution()) {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        for subject in subjects() {
            subject.up(&mut guest, &machine).expect("power");
            call(&mut guest, "sync").expect("power");
            detach(&mut guest);
            guest.attach(0);
            let refused = try_call(&mut guest, &subject.stage).expect("power");
            assert!(
                refused.text.contains("-target"),
                "{}: {refused:?}",
                subject.kind
            );
            guest.run(&mounts(2));
            call(&mut guest, &subject.unpublish).expect("power");
            subject.lives(&mut guest, &machine);
        }
    }
}

/// The agent that starts then, or is restarted before, has not mounted it; a pod may still have it.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_that_an_earlier_agent_has_staged_is_unstaged_without_its_disk() {
    let gone_first = kernels_or(Kernel::of_distribution()).into_iter();
    let gone_later = kernels_or(newest_kernel()).into_iter();
    let both = gone_first
        .map(|it| (it, true))
        .chain(gone_later.map(|it| (it, false)));
    for (kernel, is_gone_first) in both {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        for subject in subjects() {
            subject.up(&mut guest, &machine).expect("power");
            let first = if is_gone_first {
                "sync"
            } else {
                &*subject.unpublish
            };
            call(&mut guest, first).expect("power");
            restart(&mut guest, |guest| {
                if is_gone_first {
                    detach(guest);
                }
            });
            if is_gone_first && subject.kind != "raw" {
                let refused = try_call(&mut guest, &subject.unstage).expect("power");
                let why = "unpublish it first";
                assert!(refused.text.contains(why), "{}: {refused:?}", subject.kind);
                guest.run(&mounts(2));
            }
            if is_gone_first {
                call(&mut guest, &subject.unpublish).expect("power");
            } else {
                detach(&mut guest);
                // The name of the disk leads the agent to the filesystem.
                let left = usize::from(subject.kind == "raw");
                call(&mut guest, &until(&mounts(left))).expect("power");
            }
            call(&mut guest, &subject.unstage).expect("power");
            guest.run(&mounts(0));
            subject.is_whole(&mut guest, &machine);
        }
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn data_that_a_removed_disk_does_not_have_is_reported_until_the_unstage() {
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    for subject in subjects() {
        let disk = subject.up(&mut guest, &machine).expect("power");
        let is_reported = |guest: &mut Guest<'_>| {
            let page = metrics(guest).expect("power");
            let unsynced = page.lines().find(|line| line.contains("\"DataUnsynced\""));
            unsynced.is_some_and(|line| line.ends_with(" 1"))
        };
        assert!(!is_reported(&mut guest), "{}", subject.kind);
        disk.fail(Failing {
            writes: true,
            flushes: true,
            ..Failing::default()
        });
        detach(&mut guest);
        call(&mut guest, &subject.unpublish).expect("power");
        assert!(is_reported(&mut guest), "{}", subject.kind);
        call(&mut guest, &subject.unstage).expect("power");
        assert!(!is_reported(&mut guest), "{}", subject.kind);
        machine.slot(0).remove();
    }
}
