//! Known defects of csi-digitalocean's node plugin, each the name of a test that shows that Belay
//! does not have it; with attachments of csi-digitalocean, which name the volume alone.

use std::fs;

use belay_bed::tools;
use belay_guest::{Disk, Hardware, Machine, Medium, Survival};

use crate::belay::{call, try_call};
use crate::digitalocean::start;
use crate::disks::KINDS;
use crate::rig::{MIB, medium, newest_kernel, until};

/// The slots of the SCSI disks.
const SLOTS: [usize; 2] = [0, 1];

fn machine() -> Machine {
    let hardware = Hardware {
        blocks: 0,
        scsis: SLOTS.len(),
        memory: 768,
        ..Hardware::default()
    };
    Machine::new(newest_kernel(), hardware)
}

/// A volume by its number: ID, name, and the calls of its kubelet.
struct Volume(usize);

impl Volume {
    fn id(&self) -> String {
        format!("7f8b1c2d-1111-4222-8333-{:012}", self.0)
    }

    fn name(&self) -> String {
        format!("pvc-{}", self.id())
    }

    fn insert(&self, machine: &Machine, medium: &std::sync::Arc<Medium>) {
        let disk = Disk::scsi("DO", "Volume", &self.name(), medium);
        machine.slot(SLOTS[self.0]).insert(disk);
    }

    fn stage(&self, kind: &str) -> String {
        let (id, name) = (self.id(), self.name());
        let kind = match kind {
            "block" => "--block".to_owned(),
            filesystem => format!("--fs-type {filesystem}"),
        };
        format!(
            "mkdir -p {0}\nnode stage {id} --staging {0} {kind} \\
                 --context dobs.csi.digitalocean.com/volume-name={name}",
            self.staging()
        )
    }

    fn staging(&self) -> String {
        format!("/pods/{}/staging", self.id())
    }

    fn unstage(&self) -> String {
        format!("node unstage {} --staging {}", self.id(), self.staging())
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn d1_mkfs_runs_on_a_volume_with_data_whose_link_is_missing() {
    let machine = machine();
    let mut guest = machine.boot();
    start(&mut guest);
    let volume = Volume(0);
    let kept = format!("{}/kept", volume.staging());
    for (filesystem, mib, _) in KINDS {
        let medium = medium(&machine, filesystem, mib);
        volume.insert(&machine, &medium);
        guest.attach(0);
        let write = format!(
            "{}\ncp /bin/bash {kept}\n{}",
            volume.stage(filesystem),
            volume.unstage()
        );
        call(&mut guest, &write).expect("power");
        guest.detach(0);
        // The stage waits for a disk, and a link never comes.
        let begin = format!(
            "udevadm control --stop-exec-queue
             rm -f /run/code
             (if ({}) >/run/staged 2>&1; then echo 0; else echo 1; fi >/run/code) \\
                 >/dev/null 2>&1 3>&- &",
            volume
                .stage(filesystem)
                .replace('\n', ";")
                .replace("\\;", " ")
        );
        call(&mut guest, &begin).expect("power");
        guest.attach(0);
        let read = format!(
            "{}\ncat /run/staged; [ $(cat /run/code) = 0 ]
             cmp /bin/bash {kept}
             [ ! -e /dev/disk/by-id/scsi-0DO_Volume_{} ]
             {}
             udevadm control --start-exec-queue",
            until("[ -s /run/code ]"),
            volume.name(),
            volume.unstage()
        );
        call(&mut guest, &read).expect("power");
        guest.detach(0);
    }
    // The disk has no filesystem, but is not blank.
    for (name, content) in [("luks", &b"LUKS\xba\xbe\0\x01"[..]), ("data", b"some data")] {
        let medium = medium(&machine, name, 64);
        let mut image = vec![0; 4096];
        image[..content.len()].copy_from_slice(content);
        fs::write(machine.directory().join(name), image).expect("the file of a disk");
        medium.resize(64 * MIB);
        volume.insert(&machine, &medium);
        guest.attach(0);
        let staged = try_call(&mut guest, &volume.stage("ext4")).expect("power");
        assert_ne!(staged.code, 0, "{name}: {}", staged.text);
        assert_eq!(medium.writes(), 0, "{name}: {}", staged.text);
        guest.detach(0);
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn d14_an_xfs_from_a_snapshot_cannot_be_mounted_beside_its_source() {
    let machine = machine();
    let mut guest = machine.boot();
    start(&mut guest);
    let (source, copy) = (Volume(0), Volume(1));
    let disk = medium(&machine, "source", 320);
    source.insert(&machine, &disk);
    guest.attach(0);
    let write = format!(
        "{}\ncp /bin/bash {}/kept && sync\n{}",
        source.stage("xfs"),
        source.staging(),
        source.unstage()
    );
    call(&mut guest, &write).expect("power");
    guest.detach(0);
    // The cloud copies it.
    disk.lose_cache(Survival::Everything);
    let file = |name: &str| machine.directory().join(name);
    fs::copy(file("source"), file("copy")).expect("a copy");
    copy.insert(&machine, &medium(&machine, "copy", 320));
    SLOTS.iter().for_each(|slot| guest.attach(*slot));
    let both = format!(
        "{}\n{}
         cmp /bin/bash {2}/kept && cmp /bin/bash {3}/kept
         touch {2}/of-source {3}/of-copy && [ ! -e {2}/of-copy ] && [ ! -e {3}/of-source ]
         [ $(blkid -s UUID -o value /dev/sda) = $(blkid -s UUID -o value /dev/sdb) ]
         {4}\n{5}",
        source.stage("xfs"),
        copy.stage("xfs"),
        source.staging(),
        copy.staging(),
        source.unstage(),
        copy.unstage()
    );
    call(&mut guest, &both).expect("power");
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn d15_a_filesystem_stays_smaller_than_its_volume() {
    let machine = machine();
    let mut guest = machine.boot();
    start(&mut guest);
    let volume = Volume(0);
    for (filesystem, before, after) in [("ext4", 64, 192), ("xfs", 320, 480), ("btrfs", 256, 400)] {
        let file = machine.directory().join(filesystem);
        fs::File::create(&file)
            .and_then(|file| file.set_len(before * MIB))
            .expect("the file of a disk");
        tools::run(&format!("mkfs.{filesystem}"), &["-q", tools::text(&file)]);
        volume.insert(&machine, &medium(&machine, filesystem, after));
        guest.attach(0);
        let size = format!(
            "{}\nstat --file-system --format 'blocks %b %S' {}\n{}",
            volume.stage(filesystem),
            volume.staging(),
            volume.unstage()
        );
        let text = call(&mut guest, &size).expect("power");
        let blocks = text.lines().find_map(|line| line.strip_prefix("blocks "));
        let numbers = blocks.expect("a size").split_whitespace();
        let bytes: u64 = numbers
            .map(|it| it.parse::<u64>().expect("a number"))
            .product();
        assert!(bytes > after * MIB * 8 / 10, "{filesystem}: {bytes}");
        guest.detach(0);
    }
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn d17_the_size_of_a_raw_volume_is_unknown() {
    let machine = machine();
    let mut guest = machine.boot();
    start(&mut guest);
    let volume = Volume(0);
    volume.insert(&machine, &medium(&machine, "raw", 64));
    guest.attach(0);
    let (id, name, staging) = (volume.id(), volume.name(), volume.staging());
    let target = format!("/pods/{id}/target");
    let up = format!(
        "{}\nnode publish {id} --staging {staging} --target {target} --block \\
             --context dobs.csi.digitalocean.com/volume-name={name}",
        volume.stage("block")
    );
    call(&mut guest, &up).expect("power");
    let stats = call(&mut guest, &format!("node stats {id} --path {target}")).expect("power");
    let bytes = (64 * MIB).to_string();
    assert!(stats.contains(&bytes), "{stats}");
    let down = format!(
        "node unpublish {id} --target {target}\n{}",
        volume.unstage()
    );
    call(&mut guest, &down).expect("power");
    guest.detach(0);
}
