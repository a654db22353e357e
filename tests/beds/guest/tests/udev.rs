//! The udev rule and disks of clouds, in a guest with the real udevd and the distribution's rules.
//! Each disk is attached without the rule first: what the rule prevents must happen then.

use std::path::Path;
use std::sync::Arc;

use belay_bed::tools;
use belay_guest::{Disk, Guest, Machine, Medium};

use crate::belay::call;
use crate::disks::{ID, Volume, boot, machine};
use crate::rig::{medium, newest_kernel, seen, until};

/// The UUID of the filesystem in the partition of the boot disk, and in each volume.
const UUID: &str = "5bd4a0de-0000-4000-8000-00000000b007";
/// Slots of the machine.
const BOOT: usize = 0;
const BLOCK: usize = 1;
const SCSI: usize = 2;
const OPT_IN: &str = "SUBSYSTEM==\"block\", ENV{BELAY_ALL_VOLUMES}=\"1\"";

/// An automounter, and an LVM that begins from scratch.
const PREPARE: &str = "\
modprobe dm-mod
mkdir -p /run/udev/rules.d
echo 'ACTION==\"add\", KERNEL==\"sd*|vd*\", RUN+=\"/bin/touch /run/automounted\"' \\
    >/run/udev/rules.d/99-automount.rules
udevadm control --reload";

/// The owner of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Kubernetes,
    /// The same, if all volumes of the machine belong to it.
    KubernetesByOptIn,
    Machine,
}

/// A disk, and its link.
struct Attachable {
    owner: Owner,
    slot: usize,
    disk: fn(&Arc<Medium>) -> Disk,
    link: &'static str,
}

const DISKS: [Attachable; 6] = [
    Attachable {
        owner: Owner::Kubernetes,
        slot: SCSI,
        disk: |medium| Disk::scsi("DO", "Volume", "pvc-7f8b1c2d-1111-4222-8333", medium),
        link: "scsi-0DO_Volume_pvc-7f8b1c2d-1111-4222-8333",
    },
    // A name as of no claim, and the UUID of the opt-in.
    Attachable {
        owner: Owner::Machine,
        slot: SCSI,
        disk: |medium| Disk::scsi("DO", "Volume", ID, medium),
        link: "scsi-0DO_Volume_7f8b1c2d-1111-4222-8333-444455556666",
    },
    Attachable {
        owner: Owner::KubernetesByOptIn,
        slot: BLOCK,
        disk: |medium| Disk::block(ID, medium),
        link: "virtio-7f8b1c2d-1111-4222-8",
    },
    Attachable {
        owner: Owner::KubernetesByOptIn,
        slot: SCSI,
        disk: |medium| Disk::scsi("QEMU", "QEMU HARDDISK", ID, medium),
        link: "scsi-0QEMU_QEMU_HARDDISK_7f8b1c2d-1111-4222-8333-444455556666",
    },
    Attachable {
        owner: Owner::Machine,
        slot: BLOCK,
        disk: |medium| Disk::block("data", medium),
        link: "virtio-data",
    },
    Attachable {
        owner: Owner::Machine,
        slot: SCSI,
        disk: |medium| Disk::scsi("QEMU", "QEMU HARDDISK", "drive-scsi0", medium),
        link: "scsi-0QEMU_QEMU_HARDDISK_drive-scsi0",
    },
];

/// A volume of Cinder that the machine has booted from.
const BOOTED: Attachable = Attachable {
    owner: Owner::Machine,
    slot: BOOT,
    disk: |medium| Disk::block("0b007c2d-1111-4222-8333-444455556666", medium),
    link: "virtio-0b007c2d-1111-4222-8",
};

/// The links and properties that udevd gives to a disk and its partitions.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    /// Links that come from the disk itself, not from its content.
    names: Vec<String>,
    /// Links, properties and programs that come from its content, or act upon it.
    effects: Vec<String>,
}

impl Seen {
    fn is_left_alone(&self) -> bool {
        self.effects == ["SYSTEMD_READY=0", "UDISKS_IGNORE=1"]
    }
}

fn look(guest: &mut Guest<'_>, link: &str) -> Seen {
    guest.run(&until(&format!("[ -b /dev/disk/by-id/{link} ]")));
    let text = guest.run(&format!(
        "udevadm settle --timeout=60
         disk=$(readlink -f /dev/disk/by-id/{link})
         for node in $disk $disk[0-9]*; do
             [ -b $node ] || continue
             udevadm info --query=symlink --name=$node | tr ' ' '\\n' | grep -v by-diskseq
             udevadm info --query=property --name=$node |
                 grep -E '^(ID_FS_(TYPE|UUID)|SYSTEMD_READY|UDISKS_IGNORE)='
             [ ! -L /run/udev/watch/b$(cat /sys/class/block/${{node#/dev/}}/dev) ] || echo watched
         done
         cat /sys/block/dm-*/dm/name 2>/dev/null
         ls /run/automounted 2>/dev/null
         true"
    ));
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.retain(|line| !line.is_empty());
    lines.sort();
    let (names, effects) = lines.into_iter().partition(|line| {
        let is_of_content = line.contains("/lvm-pv-uuid-");
        line.starts_with("disk/by-path/") || line.starts_with("disk/by-id/") && !is_of_content
    });
    Seen { names, effects }
}

/// Plugs a disk in, and takes it out again.
fn visit(guest: &mut Guest<'_>, machine: &Machine, of: &Attachable, medium: &Arc<Medium>) -> Seen {
    let Attachable {
        slot, disk, link, ..
    } = of;
    guest.run("rm -rf /run/lvm /run/automounted");
    machine.slot(*slot).insert(disk(medium));
    guest.attach(*slot);
    let seen = look(guest, link);
    assert!(
        seen.names.contains(&format!("disk/by-id/{link}")),
        "{seen:?}"
    );
    if seen.is_left_alone() {
        let name = format!("/dev/disk/by-uuid/{UUID}");
        guest.run(&format!("[ $(readlink -f {name}) = /dev/vda1 ]"));
    }
    guest.run("udevadm settle --timeout=60; [ ! -b /dev/dm-0 ] || dmsetup remove_all");
    guest.detach(*slot);
    guest.run(&until(&format!("[ ! -e /dev/disk/by-id/{link} ]")));
    machine.slot(*slot).remove();
    seen
}

/// A filesystem with the UUID and label of the boot disk's.
fn twin(machine: &Machine) -> Arc<Medium> {
    let twin = medium(machine, "twin", 16);
    make_ext4(&machine.directory().join("twin"), 0);
    twin
}

fn make_ext4(file: &Path, offset: u64) {
    let offset = format!("offset={offset}");
    let arguments = [
        "-q",
        "-F",
        "-U",
        UUID,
        "-L",
        "root",
        "-E",
        &offset,
        tools::text(file),
        "8M",
    ];
    tools::run("mkfs.ext4", &arguments);
}

fn insert_boot_disk(machine: &Machine) {
    let medium = medium(machine, "boot", 16);
    let file = machine.directory().join("boot");
    tools::run("sgdisk", &["--new", "1:2048:0", tools::text(&file)]);
    make_ext4(&file, 2048 * 512);
    machine.slot(BOOT).insert((BOOTED.disk)(&medium));
}

/// A member of a volume group with a logical volume.
fn member(guest: &mut Guest<'_>, machine: &Machine) -> Arc<Medium> {
    let medium = medium(machine, "member", 32);
    machine.slot(BLOCK).insert(Disk::block("member", &medium));
    guest.attach(BLOCK);
    let link = "/dev/disk/by-id/virtio-member";
    guest.run(&until(&format!("[ -b {link} ]")));
    guest.run(&format!(
        "vgcreate --quiet pods {link} && lvcreate --quiet -an -Zn -Wn -l1 -n one pods && sync"
    ));
    guest.detach(BLOCK);
    guest.run(&until(&format!("[ ! -e {link} ]")));
    machine.slot(BLOCK).remove();
    medium
}

/// Rules of the administrator; the file of this name may hide one of the distribution's.
fn add_rules(guest: &mut Guest<'_>, name: &str, content: &str) {
    guest.run(&format!(
        "{content} >/run/udev/rules.d/{name} && udevadm control --reload"
    ));
}

fn add_belay_rule(guest: &mut Guest<'_>) {
    let rule = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../udev-rules/60-belay.rules");
    add_rules(guest, "60-belay.rules", &format!("cat {}", seen(&rule)));
}

/// Attaches all disks with all contents; the boot disk stays attached.
fn visit_all(guest: &mut Guest<'_>, machine: &Machine, contents: &[Arc<Medium>]) -> Vec<Seen> {
    // udevd processes the boot disk as at a boot.
    guest.run("udevadm trigger --action=add /dev/vda /dev/vda1; rm -f /run/automounted");
    guest.run("udevadm settle --timeout=60; touch /run/automounted");
    let mut all = vec![look(guest, BOOTED.link)];
    for disk in &DISKS {
        all.extend(contents.iter().map(|it| visit(guest, machine, disk, it)));
    }
    all
}

/// The owner of each of those.
fn owners(contents: usize) -> impl Iterator<Item = Owner> {
    let of_disks = DISKS
        .iter()
        .flat_map(move |disk| [disk.owner].repeat(contents));
    std::iter::once(BOOTED.owner).chain(of_disks)
}

fn expect(before: &[Seen], after: &[Seen], contents: usize, alone: &[Owner]) {
    assert_eq!(before.len(), after.len());
    for ((before, after), owner) in before.iter().zip(after).zip(owners(contents)) {
        if alone.contains(&owner) {
            assert_eq!(before.names, after.names, "{owner:?}");
            assert!(after.is_left_alone(), "{owner:?}: {after:?}");
        } else {
            assert_eq!(before, after, "{owner:?}");
        }
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn nothing_acts_upon_the_content_of_a_clouds_volume_that_belongs_to_kubernetes() {
    let machine = machine(newest_kernel());
    insert_boot_disk(&machine);
    let mut guest = boot(&machine);
    guest.run(PREPARE);
    let contents = [twin(&machine), member(&mut guest, &machine)];

    let before = visit_all(&mut guest, &machine, &contents);
    for (number, seen) in before.iter().enumerate() {
        let has = |effect: &str| seen.effects.iter().any(|it| it.contains(effect));
        // The boot disk, then the filesystem and the member in turn.
        let is_acted_upon = match number % 2 {
            1 => has(&format!("by-uuid/{UUID}")) && has("by-label/root"),
            _ if number == 0 => has(&format!("by-uuid/{UUID}")),
            _ => has("pods-one") && has("lvm-pv-uuid"),
        };
        let is_observed = has("automounted") && has("watched");
        assert!(is_acted_upon && is_observed, "{seen:?}");
    }

    add_belay_rule(&mut guest);
    let by_default = visit_all(&mut guest, &machine, &contents);
    expect(&before, &by_default, contents.len(), &[Owner::Kubernetes]);

    add_rules(&mut guest, "59-belay.rules", &format!("echo '{OPT_IN}'"));
    let by_opt_in = visit_all(&mut guest, &machine, &contents);
    let both = [Owner::Kubernetes, Owner::KubernetesByOptIn];
    expect(&before, &by_opt_in, contents.len(), &both);

    stage(&mut guest, &machine);

    // A distribution that names no disk.
    add_rules(&mut guest, "60-persistent-storage.rules", "true");
    for (number, disk) in DISKS.iter().enumerate() {
        if both.contains(&disk.owner) {
            let seen = visit(&mut guest, &machine, disk, &contents[0]);
            assert_eq!(seen.names, before[1 + number * contents.len()].names);
        }
    }
}

/// Belay uses a disk that the rule covers.
fn stage(guest: &mut Guest<'_>, machine: &Machine) {
    let medium = medium(machine, "blank", 128);
    machine.slot(BLOCK).insert(Disk::block(ID, &medium));
    guest.attach(BLOCK);
    let volume = Volume::new("ext4", &format!("serial={ID}"), 128);
    let write = format!(
        "{}\ncp /bin/bash /pods/{ID}/staging && sync",
        volume.stage()
    );
    call(guest, &write).expect("power");
    // mkfs has written to it: udevd would read it now, if it watched the disk.
    let seen = look(guest, "virtio-7f8b1c2d-1111-4222-8");
    assert!(
        !seen
            .effects
            .iter()
            .any(|it| it.contains("by-uuid") || it.contains("ID_FS_")),
        "{seen:?}"
    );
    call(guest, &volume.unstage()).expect("power");
    guest.detach(BLOCK);
    guest.run(&until(
        "[ ! -e /dev/disk/by-id/virtio-7f8b1c2d-1111-4222-8 ]",
    ));
    machine.slot(BLOCK).remove();
}
