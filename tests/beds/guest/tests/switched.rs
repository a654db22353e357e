//! A switch to Belay and back under a pod that writes, in guests: what cinder-csi-plugin,
//! csi-digitalocean and civo-csi have mounted, with their commands and the kubelet's paths, and
//! what they do with Belay's mounts. The drivers themselves are not here.

use std::sync::Arc;

use belay_guest::{Disk, Guest, Machine, Medium};

use crate::belay::{call, try_call};
use crate::digitalocean;
use crate::disks::{ID, machine};
use crate::rig::{medium, newest_kernel, seen_programs, until};

const KUBELET: &str = "/kubelet";
const CSI: &str = "/kubelet/plugins/kubernetes.io/csi";
/// Larger than the smallest xfs.
const MIB: u64 = 320;

/// Another driver, and Belay's in its place.
struct Driver {
    name: &'static str,
    /// The filesystems that the other driver can mount.
    kinds: &'static [&'static str],
    slot: usize,
    disk: fn(&Arc<Medium>) -> Disk,
    /// The link by which the other one finds the disk.
    link: String,
    /// Starts Belay's agent.
    start: String,
    /// The one word of its publish context.
    context: String,
}

fn drivers() -> [Driver; 3] {
    let agent = |flags: &str| {
        format!(
            "setsid belay-node {flags} --kubelet-dir {KUBELET} --endpoint /run/node.sock \\
                 >>/run/node.log 2>&1 3>&- &
             echo $! >/run/node.pid
             ready /run/node.sock >/dev/null 2>&1 || {{ cat /run/node.log; exit 1; }}"
        )
    };
    let of_kind = "--driver-kind digitalocean";
    let of_digitalocean = format!("{of_kind} --kubelet-dir {KUBELET}");
    [
        Driver {
            name: "cinder.csi.openstack.org",
            kinds: &["ext4", "xfs", "block"],
            slot: 0,
            disk: |medium| Disk::block(&ID[..20], medium),
            link: format!("virtio-{}", &ID[..20]),
            start: agent("--driver-kind openstack --node-id guest"),
            context: "--context DevicePath=/dev/vdz".to_owned(),
        },
        Driver {
            name: "dobs.csi.digitalocean.com",
            kinds: &["ext4", "xfs", "block"],
            slot: 2,
            disk: |medium| Disk::scsi("DO", "Volume", "pvc-1", medium),
            link: "scsi-0DO_Volume_pvc-1".to_owned(),
            start: digitalocean::START.replace(of_kind, &of_digitalocean),
            context: "--context dobs.csi.digitalocean.com/volume-name=pvc-1".to_owned(),
        },
        Driver {
            name: "csi.civo.com",
            kinds: &["ext4"],
            slot: 2,
            disk: |medium| Disk::scsi("QEMU", "QEMU HARDDISK", ID, medium),
            link: format!("scsi-0QEMU_QEMU_HARDDISK_{ID}"),
            start: agent("--driver-kind civo --node-name guest"),
            context: String::new(),
        },
    ]
}

/// A volume of a driver, used as a filesystem or as a raw block volume.
struct Volume<'a> {
    driver: &'a Driver,
    kind: &'static str,
}

impl Volume<'_> {
    fn is_raw(&self) -> bool {
        self.kind == "block"
    }

    fn staging(&self) -> String {
        match self.is_raw() {
            true => format!("{CSI}/volumeDevices/staging/pv-1"),
            false => format!("{CSI}/{}/{ID}/globalmount", self.driver.name),
        }
    }

    fn target(&self, pod: &str) -> String {
        match self.is_raw() {
            true => format!("{CSI}/volumeDevices/publish/pv-1/{pod}"),
            false => format!("{KUBELET}/pods/{pod}/volumes/kubernetes.io~csi/pv-1/mount"),
        }
    }

    fn link(&self) -> String {
        format!("/dev/disk/by-id/{}", self.driver.link)
    }

    fn format(&self) -> String {
        match self.kind {
            "block" => "true".to_owned(),
            "xfs" => format!("mkfs.xfs -q -f {}", self.link()),
            kind => format!("mkfs.{kind} -q -F {}", self.link()),
        }
    }

    /// Stages like the other driver: mount(8) of the link; a raw volume is not staged.
    fn staged_by_other(&self) -> String {
        let (staging, link) = (self.staging(), self.link());
        match self.kind {
            "block" => format!("mkdir -p {staging}"),
            "xfs" => format!("mkdir -p {staging} && mount -t xfs -o nouuid {link} {staging}"),
            kind => format!("mkdir -p {staging} && mount -t {kind} -o defaults {link} {staging}"),
        }
    }

    fn published_by_other(&self, pod: &str) -> String {
        let (staging, target, kind) = (self.staging(), self.target(pod), self.kind);
        match self.is_raw() {
            true => format!(
                "mkdir -p $(dirname {target}) && touch {target}
                 mount -o bind {} {target}",
                self.link()
            ),
            false => format!(
                "mkdir -p {target} && mount -t {kind} -o bind {staging} {target}
                 mount -t {kind} -o bind,remount,rw {staging} {target}"
            ),
        }
    }

    fn unpublished_by_other(&self, pod: &str) -> String {
        let target = self.target(pod);
        format!("umount {target} && rm -d {target}")
    }

    fn unstaged_by_other(&self) -> String {
        let staging = self.staging();
        format!("umount {staging} && rm -d {staging}")
    }

    fn flags(&self) -> String {
        let (staging, context) = (self.staging(), &self.driver.context);
        let kind = match self.kind {
            "block" => "--block".to_owned(),
            kind => format!("--fs-type {kind}"),
        };
        format!("--staging {staging} {kind} {context}")
    }

    /// Stages like the kubelet, which makes the staging path of a filesystem.
    fn stage(&self) -> String {
        let (staging, flags) = (self.staging(), self.flags());
        format!("mkdir -p {staging}\nnode stage {ID} {flags}")
    }

    /// With the mode that the kubelet makes of `ReadWriteOnce`.
    fn publish(&self, pod: &str) -> String {
        self.publish_as("SINGLE_NODE_MULTI_WRITER", pod)
    }

    fn publish_as(&self, mode: &str, pod: &str) -> String {
        let (target, flags) = (self.target(pod), self.flags());
        format!(
            "mkdir -p $(dirname {target})
             node publish {ID} --target {target} --mode {mode} {flags}"
        )
    }

    fn unpublish(&self, pod: &str) -> String {
        format!("node unpublish {ID} --target {}", self.target(pod))
    }

    fn unstage(&self) -> String {
        format!("node unstage {ID} --staging {}", self.staging())
    }

    /// Returns the command that writes a line of the pod to a file, or to a block of the disk.
    fn line(&self, number: &str) -> String {
        match self.is_raw() {
            true => {
                format!("dd of=/pod/data bs=512 seek={number} conv=notrunc,fsync,sync status=none")
            }
            false => "dd of=/pod/data/lines oflag=append conv=notrunc,fsync status=none".to_owned(),
        }
    }

    /// A pod with a mount namespace, into which the target is bound: it writes lines, each of which
    /// has the sum of its number, and is on the disk before `/run/POD` has the number.
    fn start_pod(&self, pod: &str) -> String {
        let (target, line) = (self.target(pod), self.line("$n"));
        let place = match self.is_raw() {
            true => "touch /pod/data",
            false => "mkdir -p /pod/data",
        };
        format!(
            "cat >/run/pod.sh <<'POD'
mkdir -p /pod && mount -t tmpfs pod /pod && {place}
mount --bind {target} /pod/data
n=0
while [ ! -e /run/{pod}.end ]; do
    n=$((n + 1))
    echo \"$n $(echo $n | sha256sum | cut -c 1-16)\" | {line} || exit 1
    echo $n >/run/{pod}.new && mv /run/{pod}.new /run/{pod}
    sleep 0.02
done
umount /pod/data
POD
             rm -f /run/{pod} /run/{pod}.end
             setsid unshare --mount --propagation slave bash /run/pod.sh \\
                 >/run/{pod}.log 2>&1 3>&- &
             echo $! >/run/{pod}.pid
             {}",
            until(&format!("[ -s /run/{pod} ]"))
        )
    }

    /// Waits for ten more lines.
    fn is_writing(&self, pod: &str) -> String {
        format!(
            "n=$(($(cat /run/{pod}) + 10))
             {}",
            until(&format!("[ $(cat /run/{pod}) -ge $n ]"))
        )
    }

    fn end_pod(&self, pod: &str) -> String {
        format!(
            "touch /run/{pod}.end
             {}
             [ ! -s /run/{pod}.log ] || {{ cat /run/{pod}.log; exit 1; }}",
            until(&format!("[ ! -e /proc/$(cat /run/{pod}.pid) ]"))
        )
    }

    /// Every line that the pod saw on the disk is in this place, with its sum.
    fn has_lines(&self, pod: &str, place: &str) -> String {
        let read = match self.is_raw() {
            true => format!("dd if={place} bs=512 skip=1 status=none | tr -d '\\0'"),
            false => format!("cat {place}/lines"),
        };
        format!(
            "most=$(cat /run/{pod}) n=0
             {read} | head -n $most >/run/found
             [ $(wc -l </run/found) = $most ]
             while read number sum; do
                 n=$((n + 1))
                 [ $number = $n ] && [ $sum = $(echo $n | sha256sum | cut -c 1-16) ]
             done </run/found"
        )
    }
}

/// Returns the check that no mount and no name of the volume is left.
fn is_gone(driver: &Driver) -> String {
    format!(
        "! grep {KUBELET}/p /proc/self/mountinfo
         [ -z \"$(ls /dev/belay/{} 2>/dev/null)\" ]",
        driver.name
    )
}

#[track_caller]
fn run(guest: &mut Guest<'_>, script: &str) -> String {
    call(guest, script).expect("power")
}

fn boot(machine: &Machine) -> Guest<'_> {
    let mut guest = machine.boot();
    let programs = seen_programs();
    guest.run(&format!(
        "mkdir -p /belay /pods {KUBELET} && mount --bind {programs} /belay
         mount -t tmpfs kubelet {KUBELET} && mount --make-shared {KUBELET}"
    ));
    guest
}

/// Its DaemonSet is deleted.
fn stop_agent(guest: &mut Guest<'_>) {
    let ended = until("[ ! -e /proc/$(cat /run/node.pid) ]");
    run(guest, &format!("kill -TERM $(cat /run/node.pid)\n{ended}"));
}

/// A pod uses it.
fn is_refused(guest: &mut Guest<'_>, calls: &str) {
    let refused = try_call(guest, calls).expect("power");
    assert_ne!(refused.code, 0, "{calls}");
    assert!(refused.text.contains("unpublish"), "{}", refused.text);
}

/// Uses a volume that the other driver has staged and published, publishes it to another pod, and
/// unstages it. A raw volume, which it has not staged, is not staged until its pod has ended.
fn there(guest: &mut Guest<'_>, volume: &Volume<'_>) {
    run(guest, &volume.staged_by_other());
    run(guest, &volume.published_by_other("first"));
    run(guest, &volume.start_pod("first"));
    run(guest, &volume.driver.start);
    // The kubelet asks for statistics all the time, and repeats calls after its restart.
    let stats = format!(
        "node stats {ID} --path {} --staging {}",
        volume.target("first"),
        volume.staging()
    );
    let stats = run(guest, &stats);
    assert!(!stats.contains("\"abnormal\": true"), "{stats}");
    match volume.is_raw() {
        true => is_refused(guest, &volume.stage()),
        false => {
            run(guest, &volume.stage());
            run(guest, &volume.publish("first"));
            run(guest, &volume.is_writing("first"));
            // The target of the other driver counts.
            let single = volume.publish_as("SINGLE_NODE_SINGLE_WRITER", "second");
            let refused = try_call(guest, &single).expect("power");
            assert!(
                refused.text.contains("already published at"),
                "{}",
                refused.text
            );
            run(guest, &volume.publish("second"));
            let seen = volume.has_lines("first", &volume.target("second"));
            run(guest, &seen);
            is_refused(guest, &volume.unstage());
            run(guest, &volume.unpublish("second"));
        }
    }
    run(guest, &volume.is_writing("first"));
    run(guest, &volume.end_pod("first"));
    run(guest, &volume.has_lines("first", &volume.target("first")));
    run(guest, &volume.unpublish("first"));
    run(guest, &volume.unstage());
    run(guest, &is_gone(volume.driver));
}

/// A filesystem that Belay has staged and published is used and taken down by the other driver.
fn back(guest: &mut Guest<'_>, volume: &Volume<'_>) {
    run(guest, &volume.stage());
    run(guest, &volume.publish("third"));
    run(guest, &volume.start_pod("third"));
    stop_agent(guest);
    run(guest, &volume.published_by_other("fourth"));
    run(guest, &volume.is_writing("third"));
    run(guest, &volume.has_lines("third", &volume.target("fourth")));
    run(guest, &volume.unpublished_by_other("fourth"));
    run(guest, &volume.end_pod("third"));
    run(guest, &volume.unpublished_by_other("third"));
    run(guest, &volume.unstaged_by_other());
    run(guest, &volume.staged_by_other());
    run(guest, &volume.published_by_other("fifth"));
    run(guest, &volume.has_lines("third", &volume.target("fifth")));
    run(guest, &volume.unpublished_by_other("fifth"));
    run(guest, &volume.unstaged_by_other());
}

#[test]
#[ignore = "needs User-mode Linux: make guest"]
fn a_pod_writes_on_while_another_driver_is_replaced_by_belay_and_belay_by_it() {
    let machine = machine(newest_kernel());
    let mut guest = boot(&machine);
    for driver in &drivers() {
        for &kind in driver.kinds {
            eprintln!("{}: {kind}", driver.name);
            let volume = Volume { driver, kind };
            let medium = medium(&machine, &format!("{}-{kind}", driver.name), MIB);
            machine.slot(driver.slot).insert((driver.disk)(&medium));
            guest.attach(driver.slot);
            let link = volume.link();
            run(&mut guest, &until(&format!("[ -b {link} ]")));
            run(&mut guest, &volume.format());
            there(&mut guest, &volume);
            // Another driver would not unmount the staging path of a raw volume.
            match volume.is_raw() {
                true => stop_agent(&mut guest),
                false => {
                    run(&mut guest, &volume.format());
                    back(&mut guest, &volume);
                }
            }
            guest.detach(driver.slot);
            machine.slot(driver.slot).remove();
            // Belay comes back, and finds nothing that it must keep.
            run(&mut guest, &driver.start);
            run(&mut guest, &until(&is_gone(driver).replace('\n', " && ")));
            stop_agent(&mut guest);
        }
    }
}
