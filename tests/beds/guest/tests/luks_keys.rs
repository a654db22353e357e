//! The keys and options of encrypted volumes: passphrases that are replaced, headers that other
//! programs have created, damaged headers, and frozen disks. `make luks` runs these tests too.

use std::time::Duration;

use belay_guest::{Disk, Guest, Kernel};

use crate::belay::metrics;
use crate::disks;
use crate::luks::{
    KEPT, create, disk, kill_during, local, machine_with_disk, refused, run, with_disk,
};
use crate::rig::{kernels_or, machine_with_state, newest_kernel, until};

/// Defines checks of the keys of `$1`, a file or disk.
pub(crate) const KEYS: &str = "\
opens() { cryptsetup open --test-passphrase --disable-locks --key-file $2 $1; }
shut() { local code=0; opens $1 $2 2>/dev/null || code=$?; [ $code = 2 ]; }
slots() { cryptsetup luksDump --disable-locks $1 >/run/dump
    grep -cE '^ +[0-9]+: luks2|^Key Slot [0-9]: ENABLED' /run/dump; }";

/// Creates a header by the command lines of other drivers, with the key file `/run/key`.
const HEADERS: [(&str, &str); 4] = [
    ("LUKS1", "luksFormat --type luks1"),
    (
        "Linode, cloudscale",
        "-v luksFormat --type=luks2 --cipher aes-xts-plain64 --key-size 512",
    ),
    (
        "ceph-csi",
        "-q luksFormat --type luks2 --hash sha256 --pbkdf-memory 32768",
    ),
    ("defaults", "luksFormat --pbkdf-memory 65536"),
];

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn headers_of_other_programs_are_opened_and_get_another_passphrase() {
    for kernel in kernels_or(Kernel::of_distribution()) {
        let (machine, _) = machine_with_disk(kernel);
        let mut guest = with_disk(&machine);
        let (used, id) = (disk("used"), disks::ID);
        let node = "/dev/$(ls /sys/block | grep ^dm-)";
        for (whose, command) in HEADERS {
            eprintln!("{whose}");
            run(
                &mut guest,
                &format!(
                    "{KEYS}
                     cryptsetup -q --iter-time 100 {command} $D --key-file /run/key
                     cryptsetup open $D made --key-file /run/key
                     mkfs.ext4 -qF {node}; cryptsetup close made
                     stage {used} --fs-type ext4; echo kept >/pods/{id}/staging/file
                     unstage {id}; [ $(mappers) = 0 ]
                     OLD=/run/key KEY=/run/other stage {used} --fs-type ext4
                     grep -q kept /pods/{id}/staging/file; unstage {id}; [ $(mappers) = 0 ]
                     opens $D /run/other; shut $D /run/key; [ $(slots $D) = 1 ]
                     OLD=/run/key KEY=/run/other stage {used} --fs-type ext4
                     grep -q kept /pods/{id}/staging/file; unstage {id}
                     opens $D /run/other; [ $(slots $D) = 1 ]"
                ),
            );
        }
        let page = metrics(&mut guest).expect("power");
        let count = format!(
            "belay_passphrase_replacements_total{{result=\"done\"}} {}",
            HEADERS.len()
        );
        assert!(page.contains(&count), "{page}");
    }
}

/// The slot of the previous passphrase that a replacement has left is removed by the next stage.
/// A replacement that cannot be made leaves a volume that is used with its previous passphrase.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_replacement_is_completed_later_and_its_failure_leaves_the_volume_usable() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let mut guest = with_disk(&machine);
    let (used, id) = (disk("used"), disks::ID);
    let fast = "--pbkdf pbkdf2 --pbkdf-force-iterations 1000";
    run(
        &mut guest,
        &format!(
            "{KEYS}
             printf 'a third' >/run/third
             stage {} --fs-type ext4; echo kept >/pods/{id}/staging/file; unstage {id}
             cryptsetup luksAddKey -q {fast} --key-file /run/key $D /run/other
             OLD=/run/key KEY=/run/other stage {used} --fs-type ext4; unstage {id}
             opens $D /run/other; shut $D /run/key; [ $(slots $D) = 1 ]
             sha256sum <$D >/run/whole",
            disk("new --context attached_at=$(date +%s)")
        ),
    );
    let wrong = refused(
        &mut guest,
        &format!("OLD=/run/key KEY=/run/third stage {used} --fs-type ext4"),
    );
    let both = "encryptionPassphrase, and of encryptionPassphrasePrevious opens no key slot";
    assert!(wrong.contains(both), "{wrong}");
    run(&mut guest, KEPT);
    let same = refused(
        &mut guest,
        &format!("OLD=/run/other KEY=/run/other stage {used} --fs-type ext4"),
    );
    assert!(same.contains("are the same"), "{same}");
    // All 32 slots are in use.
    run(
        &mut guest,
        &format!(
            "{KEYS}
             for slot in $(seq 31); do
                 printf \"slot $slot\" >/run/slot
                 cryptsetup luksAddKey -q {fast} --key-file /run/other $D /run/slot
             done
             OLD=/run/other KEY=/run/key stage {used} --fs-type ext4
             grep -q kept /pods/{id}/staging/file; unstage {id}; [ $(mappers) = 0 ]
             opens $D /run/other; shut $D /run/key
             grep -q 'was not replaced, and still opens it' /run/node.log"
        ),
    );
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_agent_that_is_killed_while_it_replaces_a_passphrase_loses_no_volume() {
    let mut chance = belay_bed::chance::Chance::new("kills of a replacing agent");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    let (machine, _) = machine_with_state(newest_kernel(), "ext4");
    let mut guest = local(&machine);
    let id = create(&mut guest, "replaced", 160, "");
    let file = format!("/state/belay/volumes/{id}");
    run(
        &mut guest,
        &format!(
            "stage {id} --fs-type ext4; echo kept >/pods/{id}/staging/file
             unstage {id}; [ $(mappers) = 0 ]"
        ),
    );
    let (mut old, mut new) = ("/run/key", "/run/other");
    for number in 0..if is_long { 40 } else { 4 } {
        let tenths = chance.below(120);
        eprintln!("kill {number}: after {tenths} tenths of a second");
        let call = format!("OLD={old} KEY={new} stage {id} --fs-type ext4");
        kill_during(&mut guest, &call, tenths);
        run(
            &mut guest,
            &format!(
                "{KEYS}
                 opens {file} {old} || opens {file} {new}
                 OLD={old} KEY={new} stage {id} --fs-type ext4
                 grep -q kept /pods/{id}/staging/file; unstage {id}; [ $(mappers) = 0 ]
                 opens {file} {new}; shut {file} {old}; [ $(slots {file}) = 1 ]"
            ),
        );
        (old, new) = (new, old);
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_class_selects_discards_and_the_key_derivation() {
    let (machine, _) = machine_with_state(newest_kernel(), "ext4");
    let mut guest = local(&machine);
    let how = "--parameter encryptionDiscard=true --parameter encryptionPbkdf=pbkdf2";
    let context = "--volume-context encryptionDiscard=true --volume-context encryptionPbkdf=pbkdf2";
    let id = create(&mut guest, "options", 160, how);
    let short = refused(&mut guest, &format!("stage {id} {context} --fs-type ext4"));
    assert!(short.contains("at least 32"), "{short}");
    let discards = "cat /sys/block/dm-*/queue/discard_max_bytes";
    run(
        &mut guest,
        &format!(
            "{KEYS}
             head -c 24 /dev/urandom | base64 -w 0 >/run/random; export KEY=/run/random
             [ $(stat -c %s $KEY) = 32 ]
             stage {id} {context} --fs-type ext4; [ $({discards}) -gt 0 ]
             publish {id} --fs-type ext4
             head -c 40M /dev/urandom >/pods/{id}/target/file; sync /pods/{id}/target/file
             full=$(stat -c %b /state/belay/volumes/{id})
             rm /pods/{id}/target/file; sync; fstrim /pods/{id}/target
             [ $(stat -c %b /state/belay/volumes/{id}) -lt $((full - 65536)) ]
             unpublish {id}; unstage {id}; [ $(mappers) = 0 ]
             slots /state/belay/volumes/{id}; grep -q 'PBKDF:.*pbkdf2' /run/dump
             stage {id} --fs-type ext4; [ $({discards}) = 0 ]
             unstage {id}; controller delete {id}"
        ),
    );
}

/// Stages volumes with a damaged header, and with one that needs too much memory.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_bad_header_is_a_clear_error_and_one_good_copy_is_enough() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let mut guest = with_disk(&machine);
    let (used, id) = (disk("used"), disks::ID);
    let zero = |at: u64, bytes: u64| {
        format!(
            "dd if=/dev/zero of=$D bs=4096 seek={} count={} conv=notrunc,fsync status=none",
            at / 4096,
            bytes / 4096
        )
    };
    run(
        &mut guest,
        &format!(
            "stage {} --fs-type ext4; echo kept >/pods/{id}/staging/file; unstage {id}
             dd if=$D of=/run/header bs=1M count=16 status=none",
            disk("new --context attached_at=$(date +%s)")
        ),
    );
    let restore = "dd if=/run/header of=$D bs=1M conv=notrunc,fsync status=none";
    for at in [0, 0x4000] {
        run(
            &mut guest,
            &format!(
                "{}; stage {used} --fs-type ext4; grep -q kept /pods/{id}/staging/file
                 unstage {id}; [ $(mappers) = 0 ]
                 grep -q 'a copy of its LUKS header is damaged' /run/node.log
                 : >/run/node.log; {restore}",
                zero(at, 4096)
            ),
        );
    }
    refuse_header(&mut guest, &zero(0, 0x8000), "no LUKS header");
    refuse_header(
        &mut guest,
        &format!("{restore}; cryptsetup luksErase -q $D"),
        "the LUKS header has no key slot",
    );
    let costly = "\
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null || true
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir /sys/fs/cgroup/agent; echo 256M >/sys/fs/cgroup/agent/memory.max
pgrep -x belay-node >/sys/fs/cgroup/agent/cgroup.procs
cryptsetup luksFormat -q --type luks2 --pbkdf-memory 250000 --pbkdf-parallel 1 \
    --pbkdf-force-iterations 4 --key-file /run/key $D";
    refuse_header(&mut guest, costly, "a key slot of the LUKS header needs");
    run(
        &mut guest,
        &format!("{restore}; stage {used} --fs-type ext4; unstage {id}; [ $(mappers) = 0 ]"),
    );
}

#[track_caller]
fn refuse_header(guest: &mut Guest<'_>, make: &str, words: &str) {
    run(guest, &format!("{make}; sync; sha256sum <$D >/run/whole"));
    let used = disk("used");
    let why = refused(guest, &format!("stage {used} --fs-type ext4"));
    assert!(why.contains(words), "{words}: {why}");
    run(guest, KEPT);
}

/// A disk that freezes while its volume is opened: its own call hangs, other encrypted volumes
/// are refused with the reason, and all are staged after the thaw.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_frozen_disk_delays_other_encrypted_volumes_only_until_it_responds() {
    let (machine, medium) = machine_with_disk(newest_kernel());
    let second = crate::rig::medium(&machine, "second", 256);
    let id = disks::ID;
    let other = id.replace("7f8b", "8a8b");
    machine.slot(1).insert(Disk::block(&other, &second));
    let mut guest = with_disk(&machine);
    let (used, new) = (disk("used"), disk("new --context attached_at=$(date +%s)"));
    let new_other = new.replace(id, &other);
    run(
        &mut guest,
        &format!(
            "stage {new} --fs-type ext4; echo kept >/pods/{id}/staging/file; unstage {id}
             echo 3 >/proc/sys/vm/drop_caches"
        ),
    );
    medium.delay(Duration::from_millis(50));
    run(
        &mut guest,
        &format!("(stage {used} --fs-type ext4) >/run/staged 2>&1 3>&- &"),
    );
    run(&mut guest, &until("pgrep -x cryptsetup"));
    machine.slot(0).hold();
    let busy = refused(&mut guest, &format!("stage {new_other} --fs-type ext4"));
    assert!(busy.contains("a key derivation"), "{busy}");
    machine.slot(0).release();
    medium.delay(Duration::ZERO);
    run(
        &mut guest,
        &format!(
            "for _ in $(seq 100); do
                 stage {used} --fs-type ext4 && stage {new_other} --fs-type ext4 && break
                 sleep 1
             done
             [ $(mappers) = 2 ]; grep -q kept /pods/{id}/staging/file
             unstage {id}; unstage {other}; [ $(mappers) = 0 ]"
        ),
    );
}
