//! Volumes that are disks, in guests: the agent finds them by what the kernel says, whether udevd
//! makes its links or not. There is no controller: a test says what it would say.

use belay_guest::{Disk, Gone, Guest, Hardware, Kernel, Machine, Output};

use crate::belay::{call, try_call};
use crate::rig::{MIB, kernels, medium, newest_kernel, seen_programs, until};

/// An ID like those of Cinder; a virtio disk shows its first 20 characters.
pub(crate) const ID: &str = "7f8b1c2d-1111-4222-8333-444455556666";
const SERIAL: &str = "7f8b1c2d-1111-4222-8";
/// A filesystem and the sizes of its volume before and after, in MiB.
pub(crate) const KINDS: [(&str, u64, u64); 3] =
    [("ext4", 128, 192), ("xfs", 320, 400), ("btrfs", 256, 320)];

pub(crate) const START: &str = "\
mkdir -p /pods
setsid belay-node --driver-kind openstack --endpoint /run/node.sock --node-id guest \\
    --http-endpoint 127.0.0.1:9808 \\
    >>/run/node.log 2>&1 3>&- &
ready /run/node.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }";

/// A volume as its kubelet has it.
pub(crate) struct Volume {
    id: &'static str,
    filesystem: &'static str,
    pub(crate) context: String,
}

impl Volume {
    pub(crate) fn new(filesystem: &'static str, word: &str, mib: u64) -> Self {
        let bytes = mib * MIB;
        Volume {
            id: ID,
            filesystem,
            context: format!(
                "--context transport=disk --context {word} --context bytes={bytes} \
                 --context content=new"
            ),
        }
    }

    /// With the secret of its format mark, from a controller with a key.
    pub(crate) fn with_mark(mut self) -> Self {
        let secret = "5a".repeat(32);
        let attached = format!("{{\"publish_context\":{{\"mark\":\"{secret}\"}}}}");
        let from = format!(" --context-from <(echo '{attached}')");
        self.context.push_str(&from);
        self
    }

    pub(crate) fn stage(&self) -> String {
        let Volume {
            id,
            filesystem,
            context,
        } = self;
        format!(
            "mkdir -p /pods/{id}/staging
             node stage {id} --staging /pods/{id}/staging --fs-type {filesystem} {context}"
        )
    }

    pub(crate) fn publish(&self) -> String {
        let Volume {
            id,
            filesystem,
            context,
        } = self;
        format!(
            "node publish {id} --staging /pods/{id}/staging --target /pods/{id}/target \
                 --fs-type {filesystem} {context}"
        )
    }

    pub(crate) fn grow(&self, mib: u64) -> String {
        let id = self.id;
        format!(
            "node expand {id} --path /pods/{id}/target --staging /pods/{id}/staging --size {mib}MiB"
        )
    }

    pub(crate) fn unstage(&self) -> String {
        let id = self.id;
        format!("node unstage {id} --staging /pods/{id}/staging")
    }

    pub(crate) fn take_down(&self) -> String {
        let (id, unstage) = (self.id, self.unstage());
        format!("node unpublish {id} --target /pods/{id}/target\n{unstage}")
    }
}

pub(crate) fn machine(kernel: Kernel) -> Machine {
    let hardware = Hardware {
        blocks: 2,
        scsis: 1,
        memory: 768,
        ..Hardware::default()
    };
    Machine::new(kernel, hardware)
}

pub(crate) fn boot(machine: &Machine) -> Guest<'_> {
    boot_after(machine, "true")
}

/// Boots like [`boot`], but starts the agent after `command`.
pub(crate) fn boot_after<'a>(machine: &'a Machine, command: &str) -> Guest<'a> {
    let mut guest = machine.boot();
    guest.run(command);
    let programs = seen_programs();
    guest.run(&format!(
        "mkdir -p /belay && mount --bind {programs} /belay"
    ));
    call(&mut guest, START).expect("power");
    guest
}

/// Begins a stage, which continues while the guest does something else.
pub(crate) fn begin_stage(guest: &mut Guest<'_>, volume: &Volume) -> Result<(), Gone> {
    // A process that keeps running must not hold the channel open.
    let stage = volume.stage().replace('\n', ";");
    let begin = format!(
        "rm -f /run/code
         (if ({stage}) >/run/staged 2>&1; then echo 0; else echo 1; fi >/run/code) \\
             >/dev/null 2>&1 3>&- &"
    );
    call(guest, &begin).map(drop)
}

/// Waits for the end of that stage; the exit code is 0 if it succeeded.
pub(crate) fn end_of_stage(guest: &mut Guest<'_>) -> Result<Output, Gone> {
    call(guest, &until("[ -s /run/code ]"))?;
    try_call(guest, "cat /run/staged; [ $(cat /run/code) = 0 ]")
}

/// The whole lifecycle of a volume whose disk appears after the stage has begun.
fn live(
    guest: &mut Guest<'_>,
    machine: &Machine,
    slot: usize,
    volume: &Volume,
    mib: u64,
) -> Result<(), Gone> {
    let target = format!("/pods/{}/target", volume.id);
    // The agent has no link to wait for.
    call(guest, "udevadm control --stop-exec-queue || true")?;
    begin_stage(guest, volume)?;
    guest.attach(slot);
    let Output { code, text } = end_of_stage(guest)?;
    assert_eq!(code, 0, "{text}");
    call(guest, "udevadm control --start-exec-queue || true")?;
    call(guest, &volume.publish())?;
    call(
        guest,
        &format!("cp /bin/bash {target}/before && sync {target}/before"),
    )?;
    machine.slot(slot).grow(mib * MIB);
    call(guest, &volume.grow(mib))?;
    let blocks = call(
        guest,
        &format!("stat --file-system --format '%b %S' {target}"),
    )?;
    let numbers: Vec<u64> = blocks
        .split_whitespace()
        .filter_map(|it| it.parse().ok())
        .collect();
    let total = numbers.iter().product::<u64>();
    assert!(
        total >= mib * MIB * 8 / 10,
        "{}: {total} bytes",
        volume.filesystem
    );
    call(guest, &volume.take_down())?;
    call(guest, &volume.stage())?;
    call(guest, &volume.publish())?;
    call(guest, &format!("cmp /bin/bash {target}/before"))?;
    call(guest, &volume.take_down())?;
    guest.detach(slot);
    Ok(())
}

/// The pod has ended, its kubelet was killed, and the cloud detaches the disk.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_detach_without_an_unstage_loses_nothing_that_an_ended_pod_has_written() {
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    for (filesystem, mib, _) in KINDS {
        let volume = Volume::new(filesystem, &format!("serial={ID}"), mib);
        let medium = medium(&machine, filesystem, mib);
        machine.slot(0).insert(Disk::block(ID, &medium));
        guest.attach(0);
        let target = format!("/pods/{ID}/target");
        let written = format!(
            "{}\n{}\ncp /bin/bash {target}/written
             node unpublish {ID} --target {target}",
            volume.stage(),
            volume.publish()
        );
        call(&mut guest, &written).expect("power");
        guest.detach(0);
        guest.run(&until("[ ! -e /sys/block/vda ]"));
        let unstage = format!("node unstage {ID} --staging /pods/{ID}/staging");
        call(&mut guest, &unstage).expect("power");
        guest.attach(0);
        let again = format!(
            "{}\n{}\ncmp /bin/bash {target}/written\n{}",
            volume.stage(),
            volume.publish(),
            volume.take_down()
        );
        call(&mut guest, &again).expect("power");
        guest.detach(0);
        machine.slot(0).remove();
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_hot_plugged_disk_of_each_bus_is_staged_grown_and_taken_down() {
    for kernel in kernels() {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        for (filesystem, before, after) in KINDS {
            let word = format!("serial={ID}");
            let volume = Volume::new(filesystem, &word, before);
            let name = format!("block-{filesystem}");
            let disk = Disk::block(ID, &medium(&machine, &name, before));
            machine.slot(0).insert(disk);
            live(&mut guest, &machine, 0, &volume, after).expect("power");
            machine.slot(0).remove();

            let word = format!("names=scsi-0QEMU_QEMU_HARDDISK_{ID}");
            let volume = Volume::new(filesystem, &word, before);
            let name = format!("scsi-{filesystem}");
            let medium = medium(&machine, &name, before);
            machine
                .slot(2)
                .insert(Disk::scsi("QEMU", "QEMU HARDDISK", ID, &medium));
            live(&mut guest, &machine, 2, &volume, after).expect("power");
            machine.slot(2).remove();
        }
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_disk_that_is_not_certainly_the_volumes_is_not_used() {
    let machine = machine(Kernel::of_distribution());
    let mut guest = boot(&machine);
    let volume = Volume::new("ext4", &format!("serial={ID}"), 128);
    // Both show the same 20 characters.
    for (slot, serial) in [(0, ID), (1, "7f8b1c2d-1111-4222-8333-000000000000")] {
        let medium = medium(&machine, &format!("alike{slot}"), 128);
        machine.slot(slot).insert(Disk::block(serial, &medium));
        guest.attach(slot);
    }
    guest.run(&until("[ -b /dev/vda ] && [ -b /dev/vdb ]"));
    let refused = try_call(&mut guest, &volume.stage()).expect("power");
    assert_ne!(refused.code, 0, "{refused:?}");
    assert!(refused.text.contains("both match"), "{refused:?}");
    guest.run("cmp -n 1048576 /dev/vda /dev/zero && cmp -n 1048576 /dev/vdb /dev/zero");

    // A link that leads elsewhere is not followed.
    guest.detach(0);
    machine.slot(0).remove();
    guest.detach(1);
    let medium = medium(&machine, "foreign", 128);
    machine.slot(1).insert(Disk::block("foreign", &medium));
    guest.attach(1);
    guest.run(&until("[ -b /dev/disk/by-id/virtio-foreign ]"));
    guest.run(&format!(
        "ln -s /dev/disk/by-id/virtio-foreign /dev/disk/by-id/virtio-{SERIAL}"
    ));
    let stage = format!("timeout 5 bash -c '{}'", volume.stage().replace('\n', ";"));
    let waits = try_call(
        &mut guest,
        &stage.replace(
            "node stage",
            "belayctl --endpoint /run/node.sock node stage",
        ),
    );
    assert_ne!(waits.expect("power").code, 0, "it used the wrong disk");
    guest.run("cmp -n 1048576 /dev/vda /dev/zero || cmp -n 1048576 /dev/vdb /dev/zero");
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_disk_that_vanishes_under_a_volume_is_reported_and_the_volume_is_taken_down() {
    let machine = machine(Kernel::of_distribution());
    let mut guest = boot(&machine);
    let volume = Volume::new("ext4", &format!("serial={ID}"), 128);
    let medium = medium(&machine, "gone", 128);
    machine.slot(0).insert(Disk::block(ID, &medium));
    guest.attach(0);
    for step in [volume.stage(), volume.publish()] {
        call(&mut guest, &step).expect("power");
    }
    guest.detach(0);
    guest.run(&until("[ ! -e /sys/block/vda ]"));
    let health = format!("node health {ID} --staging /pods/{ID}/staging");
    let health = try_call(&mut guest, &health).expect("power");
    assert!(health.text.contains("DeviceLost"), "{health:?}");
    call(&mut guest, &volume.take_down()).expect("power");
    guest.run("! grep /pods /proc/self/mounts");
    // The cloud attaches it again.
    guest.attach(0);
    for step in [volume.stage(), volume.publish(), volume.take_down()] {
        call(&mut guest, &step).expect("power");
    }
}

/// A raw volume by its disk's serial, and the calls for it.
pub(crate) struct Raw(pub(crate) &'static str);

impl Raw {
    fn flags(&self) -> String {
        let (id, bytes) = (self.0, 64 * MIB);
        format!(
            "--staging /pods/{id}/staging --block --context transport=disk \
             --context serial={id} --context bytes={bytes} --context content=new"
        )
    }

    pub(crate) fn stage(&self) -> String {
        let (id, flags) = (self.0, self.flags());
        format!("mkdir -p /pods/{id}/staging\nnode stage {id} {flags}")
    }

    pub(crate) fn publish(&self) -> String {
        let (id, flags) = (self.0, self.flags());
        format!("node publish {id} {flags} --target /pods/{id}/target")
    }

    fn up(&self) -> String {
        format!("{}\n{}", self.stage(), self.publish())
    }

    fn down(&self) -> String {
        let id = self.0;
        format!(
            "node unpublish {id} --target /pods/{id}/target
             node unstage {id} --staging /pods/{id}/staging"
        )
    }
}

/// Before and after a start of the agent, which knows the mounts by what the kernel says of them.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_raw_volume_whose_number_went_to_another_disk_is_taken_down_and_the_other_kept() {
    for (kernel, is_restarted) in kernels()
        .into_iter()
        .flat_map(|it| [(it.clone(), false), (it, true)])
    {
        let machine = machine(kernel);
        let mut guest = boot(&machine);
        let (lost, got) = (Raw("lost"), Raw("got"));
        for (slot, volume) in [(0, &lost), (1, &got)] {
            let medium = medium(&machine, volume.0, 64);
            machine.slot(slot).insert(Disk::block(volume.0, &medium));
        }
        guest.attach(0);
        call(&mut guest, &lost.up()).expect("power");
        guest.detach(0);
        guest.run(&until("[ ! -e /sys/block/vda ]"));
        guest.attach(1);
        guest.run(&until("[ -b /dev/vda ]"));
        guest.run("[ $(stat -c %t:%T /dev/vda) = $(stat -c %t:%T /pods/lost/target) ]");
        call(&mut guest, &got.up()).expect("power");
        guest.run("printf words | dd of=/pods/got/target conv=fsync status=none");
        if is_restarted {
            guest.run("pkill -KILL -x belay-node; rm -f /run/node.sock");
            call(&mut guest, START).expect("power");
        }
        let publish = format!(
            "node publish lost {} --target /pods/lost/again",
            lost.flags()
        );
        let refused = try_call(&mut guest, &publish).expect("power");
        assert!(refused.text.contains("was removed"), "{refused:?}");
        // Before Linux 6.8 mounts have no ids, and only a path leads to one.
        let health = "node health lost --staging /pods/lost/staging";
        let health = try_call(&mut guest, health).expect("power");
        assert!(health.text.contains("DeviceLost"), "{health:?}");
        let unstage = "node unstage got --staging /pods/got/staging";
        let refused = try_call(&mut guest, unstage).expect("power");
        assert!(refused.text.contains("still published"), "{refused:?}");
        call(&mut guest, &lost.down()).expect("power");
        guest.run("[ $(dd if=/pods/got/target bs=5 count=1 status=none) = words ]");
        call(&mut guest, &got.down()).expect("power");
        guest.run("! grep /pods /proc/self/mountinfo");
        guest.run("[ -z \"$(ls /dev/belay/cinder.csi.openstack.org)\" ]");
    }
}
