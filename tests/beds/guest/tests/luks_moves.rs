//! Encrypted volumes that move to a guest with another kernel, on each bus, or after a power cut:
//! every byte is read there. `make luks` runs these tests too.

use std::sync::Arc;

use belay_bed::chance::Chance;
use belay_guest::{Disk, Guest, Hardware, Kernel, Machine, Medium};

use crate::disks::{self, boot_after};
use crate::luks::{PREPARE, create, local, run};
use crate::luks_keys::KEYS;
use crate::rig::{MIB, machine_with_state, medium, newest_kernel};

/// A filesystem or raw block, and the sizes of its volume before and after, in MiB.
type Kind = (&'static str, u64, u64);

const KINDS: [Kind; 4] = [
    ("ext4", 160, 224),
    ("xfs", 336, 400),
    ("btrfs", 288, 352),
    ("raw", 128, 192),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bus {
    Block,
    Scsi,
}

/// The disk of a volume.
struct Moved {
    bus: Bus,
    kind: Kind,
    medium: Arc<Medium>,
}

impl Moved {
    fn slot(&self) -> usize {
        match self.bus {
            Bus::Block => 0,
            Bus::Scsi => 2,
        }
    }

    fn disk(&self) -> Disk {
        match self.bus {
            Bus::Block => Disk::block(disks::ID, &self.medium),
            Bus::Scsi => Disk::scsi("QEMU", "QEMU HARDDISK", disks::ID, &self.medium),
        }
    }

    /// The path of the disk in a guest.
    fn path(&self) -> String {
        let id = disks::ID;
        match self.bus {
            Bus::Block => format!("/dev/disk/by-id/virtio-{}", &id[..20]),
            Bus::Scsi => format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{id}"),
        }
    }

    fn how(&self) -> String {
        match self.kind.0 {
            "raw" => "--block".to_owned(),
            filesystem => format!("--fs-type {filesystem}"),
        }
    }

    /// The arguments of a stage and of a publish.
    fn call(&self, content: &str, mib: u64) -> String {
        let (id, how) = (disks::ID, self.how());
        let name = match self.bus {
            Bus::Block => format!("serial={id}"),
            Bus::Scsi => format!("names=scsi-0QEMU_QEMU_HARDDISK_{id}"),
        };
        format!(
            "{id} {how} --context transport=disk --context {name} --context bytes={} \
             --context content={content} --context-from /run/mark",
            mib * MIB
        )
    }

    /// The file with the data: the device itself if it is raw.
    fn data(&self) -> String {
        let id = disks::ID;
        match self.kind.0 {
            "raw" => format!("/pods/{id}/target"),
            _ => format!("/pods/{id}/target/file"),
        }
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_that_moves_to_a_guest_with_another_kernel_keeps_every_byte() {
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    let kernels = [Kernel::of_distribution(), newest_kernel()];
    let [older, newer] = kernels.map(disks::machine);
    let mut chance = Chance::new("moves of encrypted volumes");
    let ways = [[&older, &newer], [&newer, &older]];
    let mut moves = Vec::new();
    for bus in [Bus::Block, Bus::Scsi] {
        for kind in KINDS {
            moves.extend(ways.map(|way| (way, bus, kind)));
        }
    }
    if !is_long {
        moves = vec![*chance.pick(&moves)];
    }
    for (way, bus, kind) in moves {
        move_between(way, bus, kind);
    }
}

fn move_between([first, second]: [&Machine; 2], bus: Bus, kind: Kind) {
    let (name, mib, grown) = kind;
    eprintln!("{bus:?}, {name}");
    let medium = medium(first, &format!("{bus:?}-{name}"), mib);
    let moved = Moved { bus, kind, medium };
    let sum = write(&mut boot(first, &moved), first, &moved);
    first.slot(moved.slot()).remove();
    let mut guest = boot(second, &moved);
    read(&mut guest, &moved, grown, &sum);
    drop(guest);
    second.slot(moved.slot()).remove();
}

fn boot<'a>(machine: &'a Machine, moved: &Moved) -> Guest<'a> {
    machine.slot(moved.slot()).insert(moved.disk());
    let mut guest = boot_after(machine, PREPARE);
    eprintln!("  Linux {}", guest.release());
    let mark = "5a".repeat(32);
    guest.run(&format!(
        "echo D={} >>/run/calls.sh; [ -b {0} ]
         echo '{{\"publish_context\":{{\"mark\":\"{mark}\"}}}}' >/run/mark",
        moved.path()
    ));
    guest
}

/// Creates the volume, grows it while it is published, writes it, and replaces its passphrase.
/// Returns the checksum of its data.
fn write(guest: &mut Guest<'_>, machine: &Machine, moved: &Moved) -> String {
    let (_, mib, grown) = moved.kind;
    let id = disks::ID;
    let put = format!(
        "dd if=/run/bytes of={} conv=notrunc,fsync bs=1M",
        moved.data()
    );
    let new = moved.call("new --context attached_at=$(date +%s)", mib);
    run(
        guest,
        &format!(
            "stage {new}; publish {new}
             head -c 8M /dev/urandom >/run/bytes; {put}"
        ),
    );
    machine.slot(moved.slot()).grow(grown * MIB);
    run(
        guest,
        &format!(
            "for at in /sys/block/sd*/device/rescan; do [ ! -e $at ] || echo 1 >$at; done
             grow {id} {grown}MiB
             [ $(blockdev --getsize64 /dev/dm-0) = $((({grown} - 16) << 20)) ]
             head -c 24M /dev/urandom >>/run/bytes; {put}
             unpublish {id}; unstage {id}; [ $(mappers) = 0 ]"
        ),
    );
    let used = moved.call("used", grown);
    run(
        guest,
        &format!(
            "{KEYS}
             OLD=/run/key KEY=/run/other stage {used}; unstage {id}; [ $(mappers) = 0 ]
             opens $D /run/other; shut $D /run/key"
        ),
    );
    let sum = run(guest, "sha256sum </run/bytes");
    sum.trim_end_matches(" -").trim().to_owned()
}

/// Reads the same bytes, after a stage with the first passphrase was refused.
fn read(guest: &mut Guest<'_>, moved: &Moved, mib: u64, sum: &str) {
    let (id, data) = (disks::ID, moved.data());
    let used = moved.call("used", mib);
    run(
        guest,
        &format!(
            "sha256sum <$D >/run/whole
             ! stage {used} || exit 9
             sha256sum --check --status /run/whole <$D
             KEY=/run/other stage {used}; publish {used}
             head -c 32M {data} >/run/bytes; [ $(stat -c %s /run/bytes) = $((32 << 20)) ]
             echo '{sum}  -' >/run/sum; sha256sum --check --status /run/sum </run/bytes
             unpublish {id}; unstage {id}; [ $(mappers) = 0 ]"
        ),
    );
}

/// The power is cut while the volume is published, and the other kernel boots.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_file_that_was_in_use_is_read_after_a_reboot_into_another_kernel() {
    let (older, medium) = machine_with_state(Kernel::of_distribution(), "ext4");
    let hardware = Hardware {
        memory: 768,
        ..Hardware::default()
    };
    let newer = Machine::new(newest_kernel(), hardware);
    newer.slot(0).insert(Disk::block("state", &medium));
    let mut guest = local(&older);
    let id = create(&mut guest, "rebooted", 160, "");
    let file = format!("/pods/{id}/target/file");
    let (up, down) = (
        format!("stage {id} --fs-type ext4; publish {id} --fs-type ext4"),
        format!("unpublish {id}; unstage {id}; [ $(mappers) = 0 ]; detached {id}"),
    );
    let sum = run(
        &mut guest,
        &format!(
            "({up}) >/run/staged; head -c 8M /dev/urandom >{file}; sync {file} /state/belay
             sha256sum <{file}"
        ),
    );
    guest.cut();
    for (machine, old, new) in [
        (&newer, "/run/key", "/run/other"),
        (&older, "/run/other", "/run/key"),
    ] {
        let mut guest = local(machine);
        run(
            &mut guest,
            &format!(
                "export OLD={old} KEY={new}; [ $(mappers) = 0 ]; {up}
                 echo '{sum}' >/run/sum; sha256sum --check --status /run/sum <{file}
                 {down}; sync"
            ),
        );
        guest.cut();
    }
}
