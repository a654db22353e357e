//! Encrypted volumes: device-mapper and cryptsetup are real, and exist only in guests. `make luks`
//! runs these tests alone.

use belay_guest::{Disk, Gone, Guest, Kernel, Machine};

use crate::belay::{SETUP, call, try_call};
use crate::disks;
use crate::rig::{MIB, boot, kernels_or, machine_with_state, medium, newest_kernel, until};

/// Loads the drivers, as a node does at boot, and defines the calls of the tests.
pub(crate) const PREPARE: &str = "\
modprobe -a dm-crypt xts
umask 077
printf 'canary-passphrase' >/run/key
printf 'another' >/run/other
cat >/run/calls.sh <<'END'
volume() { mkdir -p /pods/$1; stages=/pods/$1/staging targets=/pods/$1/target; mkdir -p $stages; }
stage() { volume $1; node stage $1 --staging $stages \\
    --secret-file encryptionPassphrase=${KEY:-/run/key} \\
    ${OLD:+--secret-file encryptionPassphrasePrevious=$OLD} \\
    --volume-context encrypted=true \"${@:2}\"; }
publish() { volume $1; node publish $1 --staging $stages --target $targets \"${@:2}\"; }
unpublish() { volume $1; node unpublish $1 --target $targets; }
unstage() { volume $1; node unstage $1 --staging $stages; }
grow() { volume $1; node expand $1 --path $targets --staging $stages --size $2; }
mappers() { ls -d /sys/block/dm-* 2>/dev/null | wc -l; }
# A shell with -e ignores the result of a pipeline that begins with an exclamation mark.
absent() { local code=0; grep -aq \"$@\" || code=$?; [ $code = 1 ]; }
detached() { losetup -a >/run/loops; absent $1 /run/loops; }
END";

/// Starts the programs of `local` without waiting for an earlier agent.
pub(crate) const START_LOCAL: &str = "\
mkdir -p /state/belay /pods
setsid belay-controller --endpoint /run/controller.sock --node-id guest \\
    --state-dir /state/belay >>/run/controller.log 2>&1 3>&- &
ready /run/controller.sock >/dev/null 2>&1 || { cat /run/controller.log; exit 1; }";
pub(crate) const START_AGENT: &str = "\
setsid belay-node --endpoint /run/node.sock --node-id guest --log-level debug \\
    --http-endpoint 127.0.0.1:9808 --loop-dir /state/belay/volumes >>/run/node.log 2>&1 3>&- &
echo $! >/run/node.pid
ready /run/node.sock >/dev/null 2>&1 || { cat /run/node.log; exit 1; }";
/// Kills the agent, and waits until its process 1 has reaped it.
const KILL_AGENT: &str = "\
kill -9 $(cat /run/node.pid); while kill -0 $(cat /run/node.pid) 2>/dev/null; do sleep 0.1; done";

/// Checks that a stage has not changed the disk, and has left no mapper.
pub(crate) const KEPT: &str = "\
sha256sum --check --status /run/whole <$D
[ $(mappers) = 0 ]";

/// Runs a script with the calls of [`PREPARE`].
#[track_caller]
pub(crate) fn run(guest: &mut Guest<'_>, script: &str) -> String {
    let script = format!(". /run/calls.sh\n{script}");
    call(guest, &script).expect("power")
}

/// Runs a script that must fail, and returns its output.
#[track_caller]
pub(crate) fn refused(guest: &mut Guest<'_>, script: &str) -> String {
    let script = format!(". /run/calls.sh\n{script}");
    let output = try_call(guest, &script).expect("power");
    assert_ne!(output.code, 0, "{script}: {}", output.text);
    output.text
}

pub(crate) fn local(machine: &Machine) -> Guest<'_> {
    let mut guest = boot(machine);
    guest.run(PREPARE);
    let setup = format!("{SETUP}{START_LOCAL}\n{START_AGENT}");
    guest.run(&setup);
    guest
}

/// Creates a volume of `local`, and returns its ID.
pub(crate) fn create(guest: &mut Guest<'_>, name: &str, mib: u64, how: &str) -> String {
    let create =
        format!("controller create {name} --size {mib}MiB --parameter encrypted=true {how}");
    let created: serde_json::Value = serde_json::from_str(&run(guest, &create)).expect("JSON");
    assert_eq!(created["volume_context"]["encrypted"], "true", "{created}");
    created["volume_id"].as_str().expect("an id").to_owned()
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_encrypted_volume_is_written_grown_and_read_again_after_a_restart() {
    for kernel in kernels_or(newest_kernel()) {
        let (machine, _) = machine_with_state(kernel, "ext4");
        let mut guest = local(&machine);
        for (filesystem, mib, grown) in [("ext4", 160, 224), ("xfs", 336, 400), ("btrfs", 288, 352)]
        {
            live(&mut guest, filesystem, mib, grown);
        }
        live_raw(&mut guest);
        // Neither the sandbox nor the file system of the agent has refused anything with a line in
        // the kernel's log.
        let log = run(&mut guest, "dmesg | grep type=1326 || true");
        assert_eq!(log, "", "refused calls");
    }
}

fn live(guest: &mut Guest<'_>, filesystem: &str, mib: u64, grown: u64) {
    let how = format!("--fs-type {filesystem}");
    let id = create(guest, filesystem, mib, &how);
    run(guest, &format!("stage {id} {how}; publish {id} {how}"));
    let target = format!("/pods/{id}/target");
    let size = format!("df --output=size -B1 {target} | tail -1");
    let parse = |text: String| text.trim().parse::<u64>().expect("a number");
    let small = parse(run(guest, &size));
    run(
        guest,
        &format!(
            "yes 'known plaintext' | head -c 4M >{target}/before; sync {target}/before
             [ $(mappers) = 1 ]
             [ $(head -c 4 /state/belay/volumes/{id}) = LUKS ]
             absent -z 'known plaintext' /state/belay/volumes/{id}"
        ),
    );
    run(guest, &format!("{KILL_AGENT}\n{START_AGENT}"));
    run(
        guest,
        &format!(
            "controller expand {id} --size {grown}MiB >/dev/null; grow {id} {grown}MiB >/dev/null
             head -c 8M /dev/urandom >{target}/after; sha256sum <{target}/after >/run/sum"
        ),
    );
    let large = parse(run(guest, &size));
    let least = small + (grown - mib) * MIB * 9 / 10;
    assert!(large >= least, "{filesystem}: {small}, then {large}");
    // The stage is repeated, and then another request is refused.
    run(guest, &format!("stage {id} {how}"));
    let plain = refused(
        guest,
        &format!("node stage {id} --staging /pods/{id}/staging {how}"),
    );
    assert!(plain.contains("from an encrypted device"), "{plain}");
    run(
        guest,
        &format!(
            "unpublish {id}; unstage {id}
             [ $(mappers) = 0 ]
             detached {id}"
        ),
    );
    refuse_otherwise(guest, &id, &how);
    run(
        guest,
        &format!(
            "stage {id} {how}; publish {id} {how}
             yes 'known plaintext' | head -c 4M | cmp - {target}/before
             sha256sum --check --status /run/sum <{target}/after
             unpublish {id}; unstage {id}
             [ $(mappers) = 0 ]
             detached {id}
             dmesg >/run/dmesg
             absent canary /run/node.log /run/controller.log /run/dmesg
             cat /run/node.log /run/key >/run/planted
             if absent canary /run/planted; then exit 1; fi
             controller delete {id}"
        ),
    );
}

/// A volume that is not staged is refused without its passphrase, and without its encryption.
fn refuse_otherwise(guest: &mut Guest<'_>, id: &str, how: &str) {
    let wrong = refused(guest, &format!("KEY=/run/other stage {id} {how}"));
    assert!(
        wrong.contains("encryptionPassphrase opens no key slot"),
        "{wrong}"
    );
    let none = refused(
        guest,
        &format!(
            "node stage {id} --staging /pods/{id}/staging --volume-context encrypted=true {how}"
        ),
    );
    assert!(none.contains("node-stage-secret-name"), "{none}");
    let plain = refused(
        guest,
        &format!("node stage {id} --staging /pods/{id}/staging {how}"),
    );
    assert!(plain.contains("a LUKS2 header"), "{plain}");
}

fn live_raw(guest: &mut Guest<'_>) {
    let id = create(guest, "raw", 128, "--block");
    let target = format!("/pods/{id}/target");
    run(
        guest,
        &format!(
            "stage {id} --block; publish {id} --block
             yes 'known plaintext' | head -c 4M >{target}; sync {target}
             absent -z 'known plaintext' /state/belay/volumes/{id}"
        ),
    );
    run(guest, &format!("{KILL_AGENT}\n{START_AGENT}"));
    run(
        guest,
        &format!(
            "controller expand {id} --size 192MiB >/dev/null; grow {id} 192MiB >/dev/null
             [ $(blockdev --getsize64 {target}) = $((176 << 20)) ]
             stage {id} --block; publish {id} --block; unpublish {id}; unstage {id}
             [ $(mappers) = 0 ]
             detached {id}
             stage {id} --block; publish {id} --block
             yes 'known plaintext' | head -c 4M | cmp - {target} -n 4194304
             unpublish {id}; unstage {id}
             [ $(mappers) = 0 ]
             controller delete {id}"
        ),
    );
}

/// Boots with a disk of 256 MiB, and the agent of the driver `openstack`.
pub(crate) fn with_disk<'a>(machine: &'a Machine) -> Guest<'a> {
    let mut guest = disks::boot_after(machine, PREPARE);
    run(
        &mut guest,
        "D=/dev/disk/by-id/virtio-7f8b1c2d-1111-4222-8; [ -b $D ] && echo D=$D >>/run/calls.sh",
    );
    guest
}

/// The arguments of a stage of the disk.
pub(crate) fn disk(content: &str) -> String {
    let (id, bytes) = (disks::ID, 256 * MIB);
    let mark = format!(
        "{{\"publish_context\":{{\"mark\":\"{}\"}}}}",
        "5a".repeat(32)
    );
    format!(
        "{id} --context transport=disk --context serial={id} --context bytes={bytes} \
         --context content={content} --context-from <(echo '{mark}')"
    )
}

pub(crate) fn machine_with_disk(kernel: Kernel) -> (Machine, std::sync::Arc<belay_guest::Medium>) {
    let machine = disks::machine(kernel);
    let medium = medium(&machine, "disk", 256);
    machine.slot(0).insert(Disk::block(disks::ID, &medium));
    (machine, medium)
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn nothing_inside_a_foreign_header_is_formatted_and_no_mapper_is_left() {
    for kernel in kernels_or(Kernel::of_distribution()) {
        let (machine, _) = machine_with_disk(kernel);
        let mut guest = with_disk(&machine);
        let (new, used) = (disk("new"), disk("used"));
        let id = disks::ID;
        let format =
            "cryptsetup luksFormat -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 $D /run/key";
        // The header of another program, without and with another program's label, or with the
        // label of another volume's attempt.
        let other = format!(
            "--label belay-{} --subsystem belay:unfinished",
            "ab".repeat(16)
        );
        for how in [
            "--type luks1",
            "--type luks2",
            &format!("--type luks2 {other}"),
        ] {
            run(
                &mut guest,
                &format!("{format} {how}; sha256sum <$D >/run/whole"),
            );
            let empty = refused(&mut guest, &format!("stage {new} --fs-type ext4"));
            assert!(empty.contains("was opened, and has"), "{how}: {empty}");
            run(&mut guest, KEPT);
            // A raw volume is bound, and its content is kept.
            run(
                &mut guest,
                &format!(
                    "stage {new} --block; publish {new} --block; [ $(mappers) = 1 ]
                     unpublish {id}; unstage {id}; [ $(mappers) = 0 ]"
                ),
            );
        }
        refuse_unencrypted(&mut guest, &used);
        live_despite_left_mappers(&mut guest, &used);
    }
}

/// Unencrypted content is neither mounted nor formatted, nor is a volume that has lost its data.
fn refuse_unencrypted(guest: &mut Guest<'_>, used: &str) {
    for make in [
        "mkfs.ext4 -qF $D",
        "wipefs -qa $D; echo data | dd of=$D bs=1M seek=90 conv=notrunc status=none",
    ] {
        run(
            guest,
            &format!(
                "dd if=/dev/zero of=$D bs=1M count=256 status=none
                     {make}; sync; sha256sum <$D >/run/whole"
            ),
        );
        let plain = refused(guest, &format!("stage {used} --fs-type ext4"));
        assert!(plain.contains("changed"), "{plain}");
        run(guest, KEPT);
    }
    // A volume that was restored or in use, and is blank, is lost.
    run(
        guest,
        "dd if=/dev/zero of=$D bs=1M count=256 status=none; sync",
    );
    let lost = refused(
        guest,
        &format!("stage {} --fs-type ext4", disk("populated")),
    );
    assert!(lost.contains("its data is lost"), "{lost}");
}

/// A volume keeps its data, though a killed agent has left a mapper before a call.
fn live_despite_left_mappers(guest: &mut Guest<'_>, used: &str) {
    let id = disks::ID;
    let own = format!("belay-cinder.csi.openstack.org-{id}");
    run(
        guest,
        &format!(
            "stage {used} --fs-type ext4; echo kept >/pods/{id}/staging/file; unstage {id}
                 cryptsetup luksDump $D >/run/dump; absent unfinished /run/dump
                 cryptsetup open $D {own} --key-file /run/key
                 unstage {id}; [ $(mappers) = 0 ]
                 cryptsetup open $D {own} --key-file /run/key
                 stage {used} --fs-type ext4; [ $(mappers) = 1 ]
                 grep -q kept /pods/{id}/staging/file; unstage {id}; [ $(mappers) = 0 ]"
        ),
    );
    // The mapper of an operator, who may be about to mount it, is left open.
    run(guest, "cryptsetup open $D byhand --key-file /run/key");
    let open = refused(guest, &format!("stage {used} --fs-type ext4"));
    assert!(open.contains("cryptsetup close byhand"), "{open}");
    run(guest, "[ $(mappers) = 1 ]; cryptsetup close byhand");
    // A cryptsetup that is killed between two requests leaves a device that sysfs does not show.
    run(
        guest,
        &format!("dmsetup create --notable {own}; [ $(mappers) = 0 ]"),
    );
    let named = refused(guest, &format!("stage {used} --fs-type ext4"));
    assert!(named.contains(&format!("dmsetup remove {own}")), "{named}");
    run(
        guest,
        &format!("dmsetup remove {own}; stage {used} --fs-type ext4; unstage {id}"),
    );
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_encrypted_volume_outlives_power_cuts_and_is_formatted_once() {
    let mut chance = belay_bed::chance::Chance::new("power cuts of encrypted disks");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    for number in 0..if is_long { 200 } else { 6 } {
        let kernel = chance.pick(&kernels_or(newest_kernel())).clone();
        // The first stage writes several hundred times; a third of the cuts come after it.
        let is_late = number % 3 == 2;
        let change = 1 + chance.below(if is_late { 40 } else { 400 });
        let survival = crate::power::survival(&mut chance);
        eprintln!("cut {number}: change {change}, after the stage: {is_late}, {survival:?}");
        let (machine, medium) = machine_with_disk(kernel);
        let mut guest = with_disk(&machine);
        let power = guest.power();
        let arm = || medium.cut_at(medium.changes() + change, move || power.cut());
        let lived = cut(&mut guest, arm, is_late);
        eprintln!("  {lived:?}");
        guest.cut();
        medium.lose_cache(survival);
        let mut guest = with_disk(&machine);
        let (used, id) = (disk("used"), disks::ID);
        run(&mut guest, &format!("stage {used} --fs-type ext4"));
        if lived.is_synced {
            run(&mut guest, &format!("grep -q kept /pods/{id}/staging/file"));
        }
        outlive_a_repair(&mut guest, &used);
    }
}

/// Writes to the staged volume, unstages it, lets cryptsetup repair its header, as it does when it
/// uses its locks, and stages the volume again: it must not be formatted.
fn outlive_a_repair(guest: &mut Guest<'_>, used: &str) {
    let id = disks::ID;
    run(
        guest,
        &format!(
            "echo written >/pods/{id}/staging/later; unstage {id}; [ $(mappers) = 0 ]
             cryptsetup luksDump $D >/run/dump; absent unfinished /run/dump
             stage {used} --fs-type ext4; grep -q written /pods/{id}/staging/later
             unstage {id}; [ $(mappers) = 0 ]"
        ),
    );
}

/// An agent was cut off while it removed the label of a new header: one copy of the header has no
/// label and a wrong checksum, and the other has the label.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_label_that_is_left_in_one_copy_leads_to_no_second_format() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let mut guest = with_disk(&machine);
    let used = disk("used");
    // The label of the mark in the publish context.
    let label = format!("belay-{}", "5a".repeat(16));
    for copy in [0, 0x4000] {
        run(
            &mut guest,
            &format!(
                "cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 \\
                     --pbkdf-force-iterations 1000 --label {label} --subsystem belay:unfinished \\
                     $D /run/key
                 cryptsetup open $D made --key-file /run/key
                 mkfs.ext4 -qF /dev/$(ls /sys/block | grep ^dm-); cryptsetup close made
                 for at in 24 208; do
                     dd if=/dev/zero of=$D bs=1 seek=$(({copy} + at)) count=48 \\
                         conv=notrunc,fsync status=none
                 done
                 stage {used} --fs-type ext4"
            ),
        );
        outlive_a_repair(&mut guest, &used);
    }
}

/// The steps that succeeded before the cut.
#[derive(Debug, Default)]
struct Lived {
    /// Whether the last stage has succeeded.
    is_staged: bool,
    is_synced: bool,
}

fn cut(guest: &mut Guest<'_>, arm: impl FnOnce(), is_late: bool) -> Lived {
    let mut arm = Some(arm);
    let mut arm_if = |is_now: bool| {
        if is_now && let Some(arm) = arm.take() {
            arm();
        }
    };
    arm_if(!is_late);
    let mut lived = Lived::default();
    let mut step = |script: String| -> Result<(), Gone> {
        call(guest, &format!(". /run/calls.sh\n{script}")).map(drop)
    };
    let (new, id) = (disk("new --context attached_at=$(date +%s)"), disks::ID);
    lived.is_staged = step(format!("stage {new} --fs-type ext4")).is_ok();
    arm_if(true);
    if lived.is_staged {
        let file = format!("/pods/{id}/staging/file");
        lived.is_synced = step(format!("echo kept >{file}; sync {file}")).is_ok();
    }
    if lived.is_synced {
        lived.is_staged = step(format!("unstage {id}; stage {new} --fs-type ext4")).is_ok();
    }
    lived
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn an_agent_that_is_killed_during_a_first_stage_leaves_a_volume_that_is_staged_later() {
    let mut chance = belay_bed::chance::Chance::new("kills of an encrypting agent");
    let is_long = std::env::var_os("BELAY_NIGHTLY").is_some();
    let (machine, _) = machine_with_state(newest_kernel(), "ext4");
    let mut guest = local(&machine);
    for number in 0..if is_long { 60 } else { 5 } {
        let id = create(&mut guest, &format!("killed-{number}"), 160, "");
        let tenths = chance.below(60);
        eprintln!("kill {number}: after {tenths} tenths of a second");
        kill_during(&mut guest, &format!("stage {id} --fs-type ext4"), tenths);
        run(
            &mut guest,
            &format!(
                "stage {id} --fs-type ext4; [ $(mappers) = 1 ]
                 echo kept >/pods/{id}/staging/file; unstage {id}; [ $(mappers) = 0 ]
                 stage {id} --fs-type ext4; grep -q kept /pods/{id}/staging/file
                 unstage {id}; [ $(mappers) = 0 ]; controller delete {id}"
            ),
        );
    }
}

/// Kills the agent some tenths of a second after a call has begun, and starts it again.
pub(crate) fn kill_during(guest: &mut Guest<'_>, call: &str, tenths: u64) {
    let (seconds, tenths) = (tenths / 10, tenths % 10);
    // A process that keeps running must not hold the channel open.
    run(
        guest,
        &format!("({call}) >/run/staged 2>&1 3>&- &\n sleep {seconds}.{tenths}; {KILL_AGENT}"),
    );
    run(guest, START_AGENT);
}

/// A disk that is removed below a mapper: its mount is unmounted, and its mapper is closed.
#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_removed_disk_leaves_no_mapper() {
    let (machine, _) = machine_with_disk(newest_kernel());
    let mut guest = with_disk(&machine);
    let (new, id) = (disk("new"), disks::ID);
    run(
        &mut guest,
        &format!("stage {new} --fs-type ext4; [ $(mappers) = 1 ]"),
    );
    guest.detach(0);
    run(&mut guest, &format!("unstage {id}"));
    let is_closed = until("[ -z \"$(ls -d /sys/block/dm-* 2>/dev/null)\" ]");
    run(&mut guest, &is_closed);
    // The mapper of a raw volume keeps neither its number nor its name.
    guest.attach(0);
    run(&mut guest, &until("[ -b $D ]"));
    let used = disk("used");
    run(
        &mut guest,
        &format!("stage {used} --block; [ $(mappers) = 1 ]"),
    );
    guest.detach(0);
    run(&mut guest, &format!("unstage {id}"));
    run(&mut guest, &is_closed);
    guest.attach(0);
    run(&mut guest, &until("[ -b $D ]"));
    run(
        &mut guest,
        &format!("stage {used} --fs-type ext4; unstage {id}; [ $(mappers) = 0 ]"),
    );
}
