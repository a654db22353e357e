//! A volume's lifecycle as bare system calls: the kernel's time for the same result.
//!
//! Two steps differ from the agent's, because rustix has no safe call for them. The loop device is
//! bound by losetup before the clock starts, and its cost is reported separately. The clone is made
//! private by mount(2) instead of mount_setattr(2).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use belay_bed::{devices, floor};

use crate::bench_dir::at;
use crate::echo::Echo;
use crate::storage::Storage;
use crate::volume::{Call, Side, Volume};

/// The number of round trips to make after a process has run. They take a millisecond, in which the
/// process exits completely.
const SETTLING_ECHOES: u32 = 40;

/// The side of the comparison that makes bare system calls, for one volume.
pub struct Bare<'a> {
    volume: Volume,
    /// The staging path, or the path of a raw device in it, as the agent stages the volume.
    staged: PathBuf,
    /// The device of a staged raw volume.
    held: Option<File>,
    echo: &'a Echo,
    /// The time that `losetup` took to bind the device, including its own start, for each stage.
    pub attach: Vec<Duration>,
    /// The time that `losetup` took only to find a free device, for each stage.
    pub search: Vec<Duration>,
}

impl<'a> Bare<'a> {
    /// Creates the side for a formatted volume.
    #[must_use]
    pub fn new(volume: Volume, echo: &'a Echo) -> Self {
        let staged = match volume.fs_type {
            "block" => volume.staging.join("device"),
            _ => volume.staging.clone(),
        };
        Self {
            volume,
            staged,
            held: None,
            echo,
            attach: Vec::new(),
            search: Vec::new(),
        }
    }

    fn stage(&mut self) -> io::Result<Duration> {
        match self.volume.storage.clone() {
            Storage::File(file) => self.stage_file(&file),
            Storage::Disk { device, .. } => self.mount(&device),
            Storage::Directory { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn stage_file(&mut self, file: &Path) -> io::Result<Duration> {
        // The second command has warmer caches, so the two alternate.
        let is_search_first = self.attach.len().is_multiple_of(2);
        if is_search_first {
            self.search()?;
        }
        let start = Instant::now();
        let device = devices::bind(file, &[], Stdio::null())?;
        self.attach.push(start.elapsed());
        self.settle()?;
        let mounted = self.mount(&device);
        // The last user of a device releases it, so the umount frees the device, as with the agent.
        devices::detach(&device)?;
        if !is_search_first {
            self.search()?;
        }
        self.settle()?;
        mounted
    }

    fn search(&mut self) -> io::Result<()> {
        let start = Instant::now();
        devices::free()?;
        self.search.push(start.elapsed());
        Ok(())
    }

    /// Waits, so that the next call does not pay for the cold caches and freed pages of a process;
    /// the agent's side starts no process.
    fn settle(&self) -> io::Result<()> {
        (0..SETTLING_ECHOES).try_for_each(|_| self.echo.on_new().map(|_| ()))
    }

    fn mount(&mut self, device: &Path) -> io::Result<Duration> {
        let start = Instant::now();
        if self.is_raw() {
            File::create(&self.staged)?;
            // A bind mount does not keep the loop device bound.
            self.held = Some(File::open(device)?);
        }
        floor::stage(self.volume.fs_type, device, &self.staged)?;
        Ok(start.elapsed())
    }

    fn publish(&self) -> io::Result<Duration> {
        let volume = &self.volume;
        let start = Instant::now();
        match &volume.storage {
            Storage::Directory { export, name } => {
                fs::create_dir(&volume.target)?;
                export.mount(name, &volume.target)?;
            }
            _ => floor::publish(volume.fs_type, &self.staged, &volume.target)?,
        }
        Ok(start.elapsed())
    }

    fn stats(&self) -> io::Result<Duration> {
        let start = Instant::now();
        let bytes = floor::stats(self.volume.fs_type, &self.volume.target)?;
        let took = start.elapsed();
        if bytes > 0 {
            return Ok(took);
        }
        Err(io::Error::other("statfs without a size"))
    }

    fn unpublish(&self) -> io::Result<Duration> {
        let start = Instant::now();
        floor::unpublish(self.volume.fs_type, &self.volume.target)?;
        Ok(start.elapsed())
    }

    fn unstage(&mut self) -> io::Result<Duration> {
        let start = Instant::now();
        floor::unstage(&self.staged)?;
        if self.is_raw() {
            fs::remove_file(&self.staged)?;
            self.held = None;
        }
        Ok(start.elapsed())
    }

    fn is_raw(&self) -> bool {
        self.volume.fs_type == "block"
    }
}

impl Side for Bare<'_> {
    fn run(&mut self, call: Call) -> io::Result<Duration> {
        let done = match call {
            _ if !self.volume.has(call) => Ok(Duration::ZERO),
            Call::Probe => self.echo.on_new(),
            Call::Stage => self.stage(),
            Call::Publish => self.publish(),
            Call::Stats => self.stats(),
            Call::Unpublish => self.unpublish(),
            Call::Unstage => self.unstage(),
        };
        done.map_err(|error| at(call.name(), &self.volume.staging, error))
    }
}
