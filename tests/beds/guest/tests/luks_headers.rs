//! Headers that an encrypted volume must not be opened with, or only with its passphrase, and
//! mappers of others: each is refused with a code and a sentence, and no byte of the disk changes.
//! `make luks` runs these tests too.

use std::path::Path;

use belay_guest::Disk;

use crate::disks;
use crate::luks::{KEPT, create, disk, local, machine_with_disk, refused, run, with_disk};
use crate::rig::{MIB, machine_with_state, medium, newest_kernel, seen};

/// Adds the key for the token, and shows that the token opens the disk.
const TOKEN: &str = "\
echo '{\"type\":\"luks2-keyring\",\"keyslots\":[\"0\"],\"key_description\":\"belay\"}' >/run/token
cryptsetup token import --json-file /run/token $D
python3 -c 'import ctypes
key = open(\"/run/key\", \"rb\").read()
add_key, user_keyring = 248, -4
assert ctypes.CDLL(None).syscall(add_key, b\"user\", b\"belay\", key, len(key), user_keyring) > 0'
cryptsetup open --test-passphrase --token-only $D </dev/null";

/// Keeps the header of the volume, and puts it back.
const KEEP: &str = "dd if=$D of=/run/header bs=1M count=16 status=none";
const RESTORE: &str = "dd if=/run/header of=$D bs=1M conv=notrunc,fsync status=none";

/// A state of the disk in which a stage is refused.
struct Refused {
    /// The script that makes it, with `$D`.
    make: &'static str,
    /// The passphrase of the stage.
    key: &'static str,
    code: &'static str,
    words: &'static str,
}

const FAST: &str = "fast='--pbkdf pbkdf2 --pbkdf-force-iterations 1000'";

const HEADERS: [Refused; 7] = [
    Refused {
        make: "true",
        key: "/run/other",
        code: "FAILED_PRECONDITION",
        words: "encryptionPassphrase opens no key slot",
    },
    Refused {
        make: "python3 $HEADER $D memory 4194304",
        key: "/run/key",
        code: "RESOURCE_EXHAUSTED",
        words: "a key slot of the LUKS header needs 4096 MiB",
    },
    Refused {
        make: "cryptsetup luksErase -q $D",
        key: "/run/key",
        code: "FAILED_PRECONDITION",
        words: "the LUKS header has no key slot",
    },
    // The header of another volume, with another passphrase.
    Refused {
        make: "truncate -s 20M /run/image; cryptsetup luksFormat -q $fast /run/image /run/other
               dd if=/run/image of=$D bs=1M count=16 conv=notrunc,fsync status=none",
        key: "/run/key",
        code: "FAILED_PRECONDITION",
        words: "opens no key slot",
    },
    // With the same passphrase: the volume is opened, but its content is noise.
    Refused {
        make: "truncate -s 20M /run/image; cryptsetup luksFormat -q $fast /run/image /run/key
               dd if=/run/image of=$D bs=1M count=16 conv=notrunc,fsync status=none",
        key: "/run/key",
        code: "FAILED_PRECONDITION",
        words: "was opened, and has",
    },
    Refused {
        make: "cryptsetup luksFormat -q --type luks1 $fast $D /run/other",
        key: "/run/key",
        code: "FAILED_PRECONDITION",
        words: "opens no key slot",
    },
    Refused {
        make: "dd if=/dev/zero of=$D bs=4096 count=8 conv=notrunc,fsync status=none",
        key: "/run/key",
        code: "FAILED_PRECONDITION",
        words: "cryptsetup repair",
    },
];

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_header_that_the_passphrase_does_not_open_is_refused_and_not_changed() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let mut guest = with_disk(&machine);
    let (used, id) = (disk("used"), disks::ID);
    let header = seen(&Path::new(env!("CARGO_MANIFEST_DIR")).join("header.py"));
    run(
        &mut guest,
        &format!(
            "echo HEADER={header} >>/run/calls.sh
             stage {} --fs-type ext4; echo kept >/pods/{id}/staging/file; unstage {id}; {KEEP}",
            disk("new --context attached_at=$(date +%s)")
        ),
    );
    for case in HEADERS {
        let Refused {
            make,
            key,
            code,
            words,
        } = case;
        run(
            &mut guest,
            &format!("{FAST}\n{RESTORE}; {make}; sync; sha256sum <$D >/run/whole"),
        );
        let why = refused(
            &mut guest,
            &format!("KEY={key} stage {used} --fs-type ext4"),
        );
        assert!(why.contains(code) && why.contains(words), "{make}: {why}");
        run(&mut guest, KEPT);
    }
    // A token would open the volume with any passphrase.
    run(
        &mut guest,
        &format!("{RESTORE}; {TOKEN}; sync; sha256sum <$D >/run/whole"),
    );
    let why = refused(
        &mut guest,
        &format!("KEY=/run/other stage {used} --fs-type ext4"),
    );
    assert!(why.contains("opens no key slot"), "{why}");
    run(&mut guest, KEPT);
    run(
        &mut guest,
        &format!(
            "stage {used} --fs-type ext4; grep -q kept /pods/{id}/staging/file; unstage {id}
             [ $(mappers) = 0 ]; cryptsetup luksDump $D | grep -q luks2-keyring"
        ),
    );
}

/// Mappers of others are neither used nor closed.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_mapper_of_another_program_is_refused_and_stays() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let mut guest = with_disk(&machine);
    let (used, id) = (disk("used"), disks::ID);
    let own = format!("belay-cinder.csi.openstack.org-{id}");
    let second = "dmsetup create second --uuid CRYPT-LUKS2-0-second";
    run(
        &mut guest,
        &format!(
            "stage {} --fs-type ext4; echo kept >/pods/{id}/staging/file; unstage {id}
             sha256sum <$D >/run/whole",
            disk("new --context attached_at=$(date +%s)")
        ),
    );
    for (make, mappers, words, end) in [
        (
            format!("dmsetup create {own} --table '0 8 error'"),
            1,
            "device-mapper has a device",
            format!("dmsetup remove {own}"),
        ),
        (
            format!(
                "cryptsetup open --disable-keyring $D byhand --key-file /run/key
                 dmsetup table --showkeys byhand | {second}"
            ),
            2,
            "cryptsetup close",
            "dmsetup remove byhand second".to_owned(),
        ),
        (
            format!(
                "cryptsetup open --disable-keyring $D {own} --key-file /run/key
                 dmsetup table --showkeys {own} | {second}"
            ),
            1,
            "cryptsetup close second",
            "dmsetup remove second".to_owned(),
        ),
    ] {
        run(&mut guest, &make);
        let why = refused(&mut guest, &format!("stage {used} --fs-type ext4"));
        assert!(
            why.contains("FAILED_PRECONDITION") && why.contains(words),
            "{make}: {why}"
        );
        let left = run(&mut guest, "mappers");
        assert!(
            left.parse::<u32>().is_ok_and(|it| it >= mappers),
            "{make}: {left}"
        );
        run(
            &mut guest,
            &format!("{end}; dmsetup remove {own} 2>/dev/null || true\n{KEPT}"),
        );
    }
    run(
        &mut guest,
        &format!(
            "stage {used} --fs-type ext4; grep -q kept /pods/{id}/staging/file; unstage {id}
             [ $(mappers) = 0 ]"
        ),
    );
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_volume_without_space_for_its_header_is_refused() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let small = medium(&machine, "small", 20);
    let id = disks::ID.replace("7f8b", "8a8b");
    machine.slot(1).insert(Disk::block(&id, &small));
    let mut guest = with_disk(&machine);
    let new = disk("new --context attached_at=$(date +%s)")
        .replace(disks::ID, &id)
        .replace(&(256 * MIB).to_string(), &(20 * MIB).to_string());
    for how in ["--fs-type ext4", "--fs-type xfs", "--fs-type btrfs"] {
        let why = refused(&mut guest, &format!("stage {new} {how}"));
        let is_refused = why.contains("FAILED_PRECONDITION") && why.contains("the minimum");
        assert!(is_refused, "{how}: {why}");
        run(
            &mut guest,
            "cmp -n 20971520 /dev/vdb /dev/zero; [ $(mappers) = 0 ]",
        );
    }
    drop(guest);

    let (machine, _) = machine_with_state(newest_kernel(), "ext4");
    let mut guest = local(&machine);
    let why = refused(
        &mut guest,
        "controller create small --size 20MiB --limit 20MiB --parameter encrypted=true",
    );
    assert!(why.contains("OUT_OF_RANGE"), "{why}");
    let id = create(&mut guest, "least", 144, "");
    run(
        &mut guest,
        &format!("stage {id} --fs-type ext4; unstage {id}"),
    );
}
