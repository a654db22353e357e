//! The kernel's own time: the same lifecycle on a similar device by bare system calls, measured in
//! every round of Belay's, by the definitions of benches/BUDGET.md. No RPC, no checks. It omits
//! steps that need ioctls: binding the loop device, and growing. That work is in Belay's times
//! only, so the ratios are conservative.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use belay_bed::{devices, floor};
use rustix::io::Errno;
use rustix::mount::MountFlags;

use crate::demo_dir::DemoDir;
use crate::kind::{Kind, Scene};
use crate::proof;
use crate::samples::{Samples, Step, Who};
use crate::trouble::Trouble;

/// The smallest record that a disk can make durable.
const RECORD: [u8; 4096] = [0x5A; 4096];

/// How long another process may keep a device open that is released.
const FREE_MAX: Duration = Duration::from_secs(20);

/// One lifecycle by bare system calls.
///
/// # Errors
/// A system call or a tool fails.
pub(crate) fn live(
    demo_dir: &DemoDir,
    kind: Kind,
    sizes: (i64, i64),
    samples: &mut Samples,
) -> Result<(), Trouble> {
    Bare::new(demo_dir, Scene::Life(kind), samples)
        .whole(sizes)
        .map_err(|error| Trouble::own("measuring bare system calls", error))
}

/// A snapshot, a restore and a clone by bare system calls, if the filesystem can share blocks.
///
/// # Errors
/// A system call or a tool fails.
pub(crate) fn copies(
    demo_dir: &DemoDir,
    kind: Kind,
    sizes: (i64, i64),
    samples: &mut Samples,
) -> Result<(), Trouble> {
    Bare::new(demo_dir, Scene::Copies(kind), samples)
        .copies(sizes)
        .map_err(|error| Trouble::own("measuring bare system calls", error))
}

/// The devices of the measurement, and its samples.
struct Bare<'a> {
    scene: Scene,
    kind: Kind,
    directory: PathBuf,
    file: PathBuf,
    record: PathBuf,
    staging: PathBuf,
    target: PathBuf,
    samples: &'a mut Samples,
}

impl<'a> Bare<'a> {
    fn new(demo_dir: &DemoDir, scene: Scene, samples: &'a mut Samples) -> Self {
        let (directory, kind) = (demo_dir.bare(), scene.kind());
        Bare {
            scene,
            kind,
            file: directory.join("disk"),
            record: directory.join("record"),
            staging: directory.join("staging").join(kind.name()),
            target: directory.join("target").join(kind.name()),
            directory,
            samples,
        }
    }

    fn whole(&mut self, (first, grown): (i64, i64)) -> io::Result<()> {
        self.make_mount_points()?;
        let (file, directory) = (self.file.clone(), self.directory.clone());
        self.time(Step::Create, || {
            let disk = File::create_new(&file)?;
            disk.set_len(first.cast_unsigned())?;
            disk.sync_all()?;
            File::open(&directory)?.sync_all()
        })?;
        self.write_record(Step::Attach)?;
        let device = devices::bind(&file, &["--nooverlap"], Stdio::null())?;

        self.first_use(&device)?;
        self.time(Step::ControllerExpand, || {
            let disk = File::options().write(true).open(&file)?;
            disk.set_len(grown.cast_unsigned())?;
            disk.sync_all()
        })?;
        let device = devices::bind(&file, &["--nooverlap"], Stdio::null())?;
        self.second_use(&device)?;

        self.write_record(Step::Detach)?;
        self.time(Step::Delete, || {
            fs::remove_file(&file)?;
            File::open(&directory)?.sync_all()
        })
    }

    /// The files are formatted first, so that a clone can be mounted.
    fn copies(&mut self, (first, grown): (i64, i64)) -> io::Result<()> {
        self.make_mount_points()?;
        let (kind, file, staging) = (self.kind, self.file.clone(), self.staging.clone());
        let [snapshot, restored, clone] =
            ["snapshot", "restored", "clone"].map(|name| self.directory.join(name));
        File::create_new(&file)?.set_len(first.cast_unsigned())?;
        let device = devices::bind(&file, &["--nooverlap"], Stdio::null())?;
        mkfs(kind, &device)?;
        devices::release_and_wait(&file)?;

        match self.share(Step::Snapshot, &file, &snapshot, None) {
            // The probe has left an empty file.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::OPNOTSUPP) => {
                fs::remove_file(&snapshot)?;
                return fs::remove_file(&file);
            }
            shared => shared?,
        }
        self.share(Step::Restore, &snapshot, &restored, Some(grown))?;
        self.share(Step::Clone, &file, &clone, None)?;
        if !kind.is_block() {
            let device = devices::bind(&clone, &["--nooverlap"], Stdio::null())?;
            self.time(Step::StageClone, || {
                floor::stage(kind.name(), &device, &staging)
            })?;
            floor::unstage(&staging)?;
            devices::release_and_wait(&clone)?;
        }
        let directory = self.directory.clone();
        self.time(Step::DeleteSnapshot, || {
            fs::remove_file(&snapshot)?;
            File::open(&directory)?.sync_all()
        })?;
        [file, restored, clone].iter().try_for_each(fs::remove_file)
    }

    /// Creates `to` from the blocks of `from`, durably.
    fn share(&mut self, step: Step, from: &Path, to: &Path, bytes: Option<i64>) -> io::Result<()> {
        let directory = self.directory.clone();
        let started = Instant::now();
        let (from, to) = (File::open(from)?, File::create_new(to)?);
        from.sync_all()?;
        rustix::fs::ioctl_ficlone(&to, &from)?;
        bytes.map_or(Ok(()), |bytes| to.set_len(bytes.cast_unsigned()))?;
        to.sync_all()?;
        File::open(directory)?.sync_all()?;
        let took = started.elapsed();
        self.samples.add(self.scene, step, Who::Kernel, took);
        Ok(())
    }

    fn first_use(&mut self, device: &Path) -> io::Result<()> {
        let (kind, staging, target) = (self.kind, self.staging.clone(), self.target.clone());
        self.time(Step::StageBlank, || {
            mkfs(kind, device)?;
            floor::stage(kind.name(), device, &staging)
        })?;
        self.free_after_use(device)?;
        self.time(Step::Publish, || {
            floor::publish(kind.name(), &staging, &target)
        })?;
        let took = proof::write(kind, &target, 1).map_err(io::Error::other)?;
        self.samples.add(self.scene, Step::Write, Who::Kernel, took);
        self.time(Step::Stats, || floor::stats(kind.name(), &target).map(drop))?;
        self.time(Step::Unpublish, || floor::unpublish(kind.name(), &target))?;
        if !kind.is_block() {
            self.time(Step::PublishReadOnly, || {
                floor::publish(kind.name(), &staging, &target)?;
                let flags = MountFlags::BIND | MountFlags::RDONLY;
                Ok(rustix::mount::mount_remount(&target, flags, "")?)
            })?;
            self.time(Step::Unpublish, || floor::unpublish(kind.name(), &target))?;
        }
        self.unstage()
    }

    fn second_use(&mut self, device: &Path) -> io::Result<()> {
        let (kind, staging, target) = (self.kind, self.staging.clone(), self.target.clone());
        self.time(Step::StageAgain, || {
            floor::stage(kind.name(), device, &staging)
        })?;
        self.free_after_use(device)?;
        self.time(Step::Publish, || {
            floor::publish(kind.name(), &staging, &target)
        })?;
        let took = proof::compare(kind, &target, 1).map_err(io::Error::other)?;
        self.samples.add(self.scene, Step::Read, Who::Kernel, took);
        self.time(Step::Unpublish, || floor::unpublish(kind.name(), &target))?;
        self.unstage()
    }

    /// Its last user releases a device: so the umount frees it, as with the agent. A raw device has
    /// no user in between.
    fn free_after_use(&self, device: &Path) -> io::Result<()> {
        match self.kind {
            Kind::Block => Ok(()),
            Kind::Ext4 | Kind::Xfs | Kind::Btrfs => devices::detach(device),
        }
    }

    /// Unmounts, and waits untimed until the device is free.
    fn unstage(&mut self) -> io::Result<()> {
        let staging = self.staging.clone();
        self.time(Step::Unstage, || floor::unstage(&staging))?;
        if self.kind.is_block() {
            devices::release_and_wait(&self.file)
        } else {
            free(&self.file)
        }
    }

    /// A directory for a filesystem, a file for a device node.
    fn make_mount_points(&self) -> io::Result<()> {
        for parent in ["staging", "target"] {
            fs::create_dir_all(self.directory.join(parent))?;
        }
        if self.kind.is_block() {
            File::create(&self.staging).map(drop)
        } else {
            fs::create_dir_all(&self.staging)
        }
    }

    fn write_record(&mut self, step: Step) -> io::Result<()> {
        let path = self.record.clone();
        self.time(step, || {
            let mut file = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .open(path)?;
            file.write_all(&RECORD)?;
            file.sync_data()
        })
    }

    fn time(&mut self, step: Step, work: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let started = Instant::now();
        work().map_err(|error| {
            io::Error::other(format!(
                "{} of {}: {error}",
                step.label(self.kind),
                self.kind.name()
            ))
        })?;
        let took: Duration = started.elapsed();
        self.samples.add(self.scene, step, Who::Kernel, took);
        Ok(())
    }
}

/// The child process that a blank stage needs, with options like the agent's.
fn mkfs(kind: Kind, device: &Path) -> io::Result<()> {
    let (tool, options): (_, &[&str]) = match kind {
        Kind::Block => return Ok(()),
        Kind::Ext4 => {
            let extended = "nodiscard,lazy_itable_init=1,lazy_journal_init=1";
            ("mkfs.ext4", &["-q", "-F", "-E", extended])
        }
        Kind::Xfs => ("mkfs.xfs", &["-q", "-f", "-K"]),
        Kind::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-K"]),
    };
    let output = Command::new(tool)
        .args(options)
        .arg(device)
        .stdin(Stdio::null())
        .output()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(io::Error::other(format!("{tool}: {}", said.trim())));
    }
    Ok(())
}

/// Waits until the device of `file` is free: the last umount releases it, but another process, such
/// as udev, may have it open.
fn free(file: &Path) -> io::Result<()> {
    let deadline = Instant::now() + FREE_MAX;
    while !devices::bound_to(&devices::list()?, file)?.is_empty() {
        if Instant::now() > deadline {
            return Err(io::Error::other(format!("{}: still bound", file.display())));
        }
        std::thread::yield_now();
    }
    Ok(())
}
