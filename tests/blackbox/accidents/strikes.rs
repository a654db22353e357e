//! The effect of each accident on a cell, and how each accident ends.

use std::fs::{self, File};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};

use super::cell::Cell;
use super::memory;
use crate::rig::{Clock, Frozen, mount_image, run, text, until};

fn set_len(path: &Path, bytes: u64) {
    let file = File::options().write(true).open(path).expect("open");
    file.set_len(bytes).expect("ftruncate");
}

pub(super) fn nothing(_: &mut Cell) {}

pub(super) fn cut(cell: &mut Cell) {
    let bytes = fs::metadata(&cell.struck).expect("stat").len();
    set_len(&cell.struck, bytes / 8);
}

pub(super) fn empty(cell: &mut Cell) {
    let bytes = fs::metadata(&cell.struck).expect("stat").len();
    set_len(&cell.struck, 0);
    set_len(&cell.struck, bytes);
}

pub(super) fn grow(cell: &mut Cell) {
    let bytes = fs::metadata(&cell.struck).expect("stat").len();
    set_len(&cell.struck, bytes + (64 << 20));
}

/// Restores the size of a snapshot, which is not in use. A volume keeps its size, since its
/// filesystem may have grown.
pub(super) fn cut_back_snapshot(cell: &mut Cell) {
    if cell.struck != cell.volume.file {
        let bytes = fs::metadata(&cell.backup).expect("stat").len();
        set_len(&cell.struck, bytes);
    }
}

pub(super) fn remove(cell: &mut Cell) {
    fs::remove_file(&cell.struck).expect("unlink");
}

pub(super) fn replace_by_zeros(cell: &mut Cell) {
    let bytes = fs::metadata(&cell.struck).expect("stat").len();
    fs::remove_file(&cell.struck).expect("unlink");
    let file = File::create_new(&cell.struck).expect("create");
    file.set_len(bytes).expect("ftruncate");
}

/// Copies the backup into the existing file.
pub(super) fn restore_in_place(cell: &mut Cell) {
    let (from, to) = (text(&cell.backup), text(&cell.struck));
    set_len(&cell.struck, 0);
    run("cp", &["--sparse=always", "--no-preserve=all", from, to]);
}

/// Replaces the file with the backup. A volume that was used needs none of its attributes; any
/// other volume is formatted only with them.
pub(super) fn restore_by_rename(cell: &mut Cell) {
    let new = cell.struck.with_extension("restored");
    let attributes = match cell.moment.has_data() {
        true => "--no-preserve=xattr",
        false => "--preserve=xattr",
    };
    let (from, to) = (text(&cell.backup), text(&new));
    run("cp", &["--sparse=always", attributes, from, to]);
    fs::rename(&new, &cell.struck).expect("rename");
}

pub(super) fn open(cell: &mut Cell) {
    let file = File::options().read(true).write(true).open(&cell.struck);
    cell.held = Some(file.expect("open"));
}

pub(super) fn let_go(cell: &mut Cell) {
    cell.held = None;
}

pub(super) fn mount_by_hand(cell: &mut Cell) {
    let point = cell.scene.test_dir().directory("by-hand");
    // The same filesystem may already be mounted on this node, as the snapshot's source.
    let options = match cell.kind {
        "xfs" => "loop,nouuid",
        _ => "loop",
    };
    mount_image(&cell.struck, &point, options);
    cell.mounted.push(point);
    cell.is_mounted_by_hand = true;
}

pub(super) fn unmount_by_hand(cell: &mut Cell) {
    cell.is_mounted_by_hand = false;
    while let Some(point) = cell.mounted.pop() {
        run("umount", &[text(&point)]);
    }
}

pub(super) fn copy_beside(cell: &mut Cell) {
    let copy = cell.struck.with_file_name("vol-copy-by-hand");
    run("cp", &["--sparse=always", text(&cell.struck), text(&copy)]);
}

pub(super) fn remove_copy(cell: &mut Cell) {
    let copy = cell.struck.with_file_name("vol-copy-by-hand");
    fs::remove_file(copy).expect("unlink");
}

pub(super) fn make_immutable(cell: &mut Cell) {
    run("chattr", &["+i", text(&cell.struck)]);
}

pub(super) fn make_mutable(cell: &mut Cell) {
    run("chattr", &["-i", text(&cell.struck)]);
}

fn mount_over(cell: &mut Cell, point: &Path) {
    run("mount", &["-t", "tmpfs", "tmpfs", text(point)]);
    cell.mounted.push(point.to_owned());
}

pub(super) fn mount_over_target(cell: &mut Cell) {
    let point = cell.target.clone();
    if point.is_dir() {
        return mount_over(cell, &point);
    }
    run("mount", &["--bind", "/dev/null", text(&point)]);
    cell.mounted.push(point);
}

pub(super) fn mount_over_staging(cell: &mut Cell) {
    let point = cell.volume.staging.clone();
    mount_over(cell, &point);
}

pub(super) fn mount_over_disk(cell: &mut Cell) {
    let point = cell.scene.disk().to_owned();
    mount_over(cell, &point);
}

pub(super) fn fill(cell: &mut Cell) {
    let stat = rustix::fs::statvfs(cell.scene.disk()).expect("statvfs");
    let filler = cell.scene.disk().join("filler");
    File::create_new(&filler).expect("create");
    // The last blocks are needed for metadata; the rest is smaller than one of the pod's files.
    let mut bytes = stat.f_bavail * stat.f_frsize;
    while bytes > (1 << 20) {
        let length = format!("{bytes}");
        let done = std::process::Command::new("fallocate")
            .args(["--keep-size", "--offset", "0", "--length", &length])
            .arg(&filler)
            .output();
        if done.is_ok_and(|output| output.status.success()) {
            break;
        }
        bytes -= bytes / 16;
    }
}

pub(super) fn make_room(cell: &mut Cell) {
    fs::remove_file(cell.scene.disk().join("filler")).expect("unlink");
}

/// Stops writes like an ext4 that was mounted with `errors=remount-ro`, after an error.
pub(super) fn stop_writes(cell: &mut Cell) {
    let disk = text(cell.scene.disk()).to_owned();
    run("mount", &["-o", "remount,errors=remount-ro", &disk]);
    let source = run("findmnt", &["--noheadings", "--output=SOURCE", &disk]);
    let device = source.trim().trim_start_matches("/dev/");
    let trigger = format!("/sys/fs/ext4/{device}/trigger_fs_error");
    fs::write(trigger, "an accident").expect("sysfs");
}

pub(super) fn freeze_disk(cell: &mut Cell) {
    cell.frozen = Some(Frozen::at(cell.scene.disk()));
}

pub(super) fn thaw_disk(cell: &mut Cell) {
    cell.frozen = None;
}

pub(super) fn shut_down(cell: &mut Cell) {
    run("xfs_io", &["-x", "-c", "shutdown", text(cell.scene.disk())]);
}

/// Follows docs/health.md: takes all volumes down, mounts the disk again, and restarts both
/// programs.
pub(super) fn mount_again(cell: &mut Cell) {
    cell.take_all_down();
    cell.remount_disk();
}

pub(super) fn take_disk_away(cell: &mut Cell) {
    run("umount", &["--lazy", text(cell.scene.disk())]);
}

pub(super) fn bring_disk_back(cell: &mut Cell) {
    let image = cell.scene.test_dir().path().join("disk");
    mount_image(&image, cell.scene.disk(), "loop");
    cell.scene.restart_agent();
    cell.scene.restart_controller();
}

pub(super) fn kill_agent(cell: &mut Cell) {
    cell.scene.restart_agent();
}

pub(super) fn kill_controller(cell: &mut Cell) {
    cell.scene.stop_controller();
    start_controller(cell);
}

/// Starts the controller again. Until then, only its claim protects a volume that is being copied.
fn start_controller(cell: &mut Cell) {
    cell.expect_claim_kept();
    cell.scene.start_controller();
}

pub(super) fn starve_agent(cell: &mut Cell) {
    memory::starve(cell.scene.agent_pid());
    cell.scene.restart_agent();
}

pub(super) fn starve_controller(cell: &mut Cell) {
    memory::starve(cell.scene.controller_pid());
    cell.scene.stop_controller();
    start_controller(cell);
}

fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    kill_process(pid.expect("a process"), signal).expect("kill");
}

/// Stops a program, and returns once all its threads have stopped (proc_pid_stat(5)).
fn freeze(pid: u32) {
    signal(pid, Signal::STOP);
    until("it has stopped", || {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).expect("readdir");
        threads.all(|thread| {
            let stat = fs::read_to_string(thread.expect("readdir").path().join("stat"));
            // A thread that has just ended has no such file.
            stat.is_ok_and(|stat| stat.contains(") T "))
        })
    });
}

pub(super) fn freeze_agent(cell: &mut Cell) {
    freeze(cell.scene.agent_pid());
}

pub(super) fn thaw_agent(cell: &mut Cell) {
    signal(cell.scene.agent_pid(), Signal::CONT);
}

pub(super) fn freeze_controller(cell: &mut Cell) {
    freeze(cell.scene.controller_pid());
}

pub(super) fn thaw_controller(cell: &mut Cell) {
    signal(cell.scene.controller_pid(), Signal::CONT);
}

/// Sets only the soft limit, which a process without privileges may raise again.
fn limit(pid: u32, what: &str, value: &str) {
    run(
        "prlimit",
        &["--pid", &pid.to_string(), &format!("--{what}={value}:")],
    );
}

fn descriptors(pid: u32) -> usize {
    let open = fs::read_dir(format!("/proc/{pid}/fd"));
    open.expect("its descriptors").count()
}

pub(super) fn take_descriptors(cell: &mut Cell) {
    let pid = cell.scene.agent_pid();
    limit(pid, "nofile", &descriptors(pid).to_string());
}

pub(super) fn give_descriptors(cell: &mut Cell) {
    limit(cell.scene.agent_pid(), "nofile", "1024");
}

pub(super) fn take_controller_descriptors(cell: &mut Cell) {
    let pid = cell.scene.controller_pid();
    limit(pid, "nofile", &descriptors(pid).to_string());
}

pub(super) fn give_controller_descriptors(cell: &mut Cell) {
    limit(cell.scene.controller_pid(), "nofile", "1024");
}

pub(super) fn stall_agent_log(cell: &mut Cell) {
    cell.scene.agent_log().stall();
}

pub(super) fn resume_agent_log(cell: &mut Cell) {
    cell.scene.agent_log().resume();
}

pub(super) fn stall_controller_log(cell: &mut Cell) {
    cell.scene.controller_log().stall();
}

pub(super) fn resume_controller_log(cell: &mut Cell) {
    cell.scene.controller_log().resume();
}

const DAY: i64 = 24 * 3600;

/// Sets the clock back by a day, and by a year while the program is working.
fn set_clock_back(cell: &mut Cell, pid: u32) {
    let clock = Clock::of(pid);
    clock.shift(-DAY);
    cell.scene.expect_neighbours_served(true, "a day back");
    clock.shift(-365 * DAY);
    cell.clock = Some(clock);
}

pub(super) fn set_agent_clock_back(cell: &mut Cell) {
    set_clock_back(cell, cell.scene.agent_pid());
}

pub(super) fn set_controller_clock_back(cell: &mut Cell) {
    set_clock_back(cell, cell.scene.controller_pid());
}

pub(super) fn put_clock_forward(cell: &mut Cell) {
    let clock = cell.clock.take();
    clock.expect("a clock that was set back").put_back();
}

/// Leaves no address space for another page: the next allocation ends the program.
pub(super) fn take_memory(cell: &mut Cell) {
    limit(cell.scene.agent_pid(), "as", "1");
}

pub(super) fn take_controller_memory(cell: &mut Cell) {
    limit(cell.scene.controller_pid(), "as", "1");
}

/// Restores the limit. If the program has ended, starts it again, as the kubelet does.
pub(super) fn give_memory(cell: &mut Cell) {
    cell.scene.restart_agent();
    until("it has its memory", || cell.scene.agent_pid() != 0);
}
