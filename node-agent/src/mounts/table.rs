//! Finds the devices of volumes in the mount table, including devices of hidden mounts. Reads the
//! mount table and sysfs, but never queries a mounted volume, so no function of this module waits
//! for a disk.

use std::path::{Path, PathBuf};

use belay_server::request::VolumeId;

use super::mirrors::is_mirror;
use super::{Mounts, without_links};
use crate::device::{Label, Transport, crypt};
use crate::kernel::{Dev, FileKind, Kernel, MountEntry, Result, Stat};

/// The device that a line of the mount table shows.
pub(super) struct MountedDevice {
    /// The device number in the stat of the mount's root; `None` if the mount table does not show
    /// it.
    pub(super) root: Option<Dev>,
    /// The number of the block device.
    pub(super) device: Dev,
    /// The label of a raw device's bind mount.
    pub(super) label: Option<Label>,
}

/// Returns the device that a line of the mount table shows as mounted or bound. On a tmpfs, any
/// file may have the name of a device node, so [`Covered`] accepts such a line only on the tmpfs
/// that contains the device nodes.
///
/// # Errors
/// Returns an error if sysfs cannot be read.
pub(super) fn shown_by<K: Kernel>(
    kernel: &K,
    transport: &Transport<K>,
    mount: &MountEntry,
) -> Result<Option<MountedDevice>> {
    let device = match mount.fs_type.as_str() {
        "devtmpfs" | "tmpfs" => transport.dev_named(kernel, &mount.root)?,
        // For btrfs, the kernel reports the name of the device, regardless of the source that was
        // passed to mount(2).
        "btrfs" => {
            let device = transport.dev_named(kernel, &mount.source)?;
            return Ok(device.map(|device| MountedDevice {
                root: None,
                device,
                label: None,
            }));
        }
        _ if transport.carries_volumes(kernel, mount.dev)? => Some(mount.dev),
        _ => None,
    };
    Ok(device.map(|device| MountedDevice {
        root: Some(device),
        device,
        label: Label::read(&mount.root),
    }))
}

/// The lines of the mount table that certainly refer to one device. The mount table is read at the
/// first query.
pub(crate) struct Covered<'a, K: Kernel> {
    kernel: &'a K,
    transport: &'a Transport<K>,
    volume: &'a VolumeId,
    device: Dev,
    lines: Option<Lines>,
}

#[derive(Default)]
struct Lines {
    table: Vec<MountEntry>,
    /// The indices in `table` of the device's lines.
    ours: Vec<usize>,
}

impl Lines {
    fn ours(&self) -> impl Iterator<Item = &MountEntry> {
        self.ours.iter().filter_map(|at| self.table.get(*at))
    }
}

impl<'a, K: Kernel> Covered<'a, K> {
    /// Prepares queries for the volume's device. Does not read the mount table yet.
    pub(crate) fn new(
        kernel: &'a K,
        transport: &'a Transport<K>,
        volume: &'a VolumeId,
        device: Dev,
    ) -> Self {
        Covered {
            kernel,
            transport,
            volume,
            device,
            lines: None,
        }
    }

    /// Whether the device is mounted anywhere.
    ///
    /// # Errors
    /// Returns an error if the table cannot be read.
    pub(super) fn is_anywhere(&mut self) -> Result<bool> {
        Ok(self.lines()?.ours().next().is_some())
    }

    /// Whether the device is mounted at that path, even if another mount hides it.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    pub(super) fn is_at(&mut self, path: &Path) -> Result<bool> {
        Ok(self.lines()?.ours().any(|line| line.point == path))
    }

    /// Whether the mount at `path` is a mirror of one of the mounts at `others`.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    pub(super) fn mirrors(&mut self, path: &Path, others: &[&Path]) -> Result<bool> {
        let lines = self.lines()?;
        let known = || lines.ours().filter(|line| others.contains(&&*line.point));
        let is_known = |line: &MountEntry| known().any(|of| is_mirror(&lines.table, line, of));
        Ok(lines.ours().filter(|line| line.point == path).all(is_known))
    }

    /// Returns the paths of all bind mounts of the device whose label names the volume, except
    /// `except` and its mirrors.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    pub(crate) fn named(&mut self, except: &[&Path]) -> Result<Vec<PathBuf>> {
        let (transport, volume) = (self.transport, self.volume);
        let is_ours = |line: &&MountEntry| {
            let label = Label::read(&line.root);
            label.is_some_and(|label| transport.is_named(volume, &label))
        };
        let ours = self.lines()?.ours().filter(is_ours);
        let ours: Vec<_> = ours.map(|line| line.point.clone()).collect();
        let mut left = Vec::new();
        for point in ours {
            if !except.contains(&point.as_path()) && !self.mirrors(&point, except)? {
                left.push(point);
            }
        }
        Ok(left)
    }

    /// Returns all paths at which the device is mounted, except `except` and its mirrors. Omits
    /// bind mounts whose label names a different volume that no longer has this device number.
    ///
    /// # Errors
    /// Returns an error if the mount table or sysfs cannot be read.
    pub(crate) fn paths(&mut self, except: &[&Path]) -> Result<Vec<PathBuf>> {
        let lines = self.lines()?.ours();
        let shown: Vec<_> = lines
            .map(|line| (line.point.clone(), Label::read(&line.root)))
            .collect();
        let mut left = Vec::new();
        for (point, label) in shown {
            let label = label.filter(|label| !self.transport.is_named(self.volume, label));
            if let Some(label) = label
                && !label.is_current(self.kernel)?
            {
                continue;
            }
            if !except.contains(&point.as_path()) && !self.mirrors(&point, except)? {
                left.push(point);
            }
        }
        Ok(left)
    }

    fn lines(&mut self) -> Result<&Lines> {
        let lines = match self.lines.take() {
            Some(lines) => lines,
            None => self.read()?,
        };
        Ok(self.lines.insert(lines))
    }

    fn read(&self) -> Result<Lines> {
        let (kernel, transport) = (self.kernel, self.transport);
        if !transport.carries_volumes(kernel, self.device)? {
            return Ok(Lines::default());
        }
        // A container may have its device nodes on a tmpfs. On any other tmpfs, a pod may have
        // created a file with the name of a device node.
        let nodes = match transport.node_of(kernel, self.device)? {
            Some(node) => kernel.look(&node)?.map(|node| node.dev),
            None => None,
        };
        let table = kernel.mounts()?;
        let mut ours = Vec::new();
        for (at, line) in table.iter().enumerate() {
            let is_sure = line.fs_type != "tmpfs" || nodes == Some(line.dev);
            if is_sure
                && !self.is_of_another_mapper(line)
                && let Some(shown) = shown_by(kernel, transport, line)?
                && shown.device == self.device
            {
                ours.push(at);
            }
        }
        Ok(Lines { table, ours })
    }
}

impl<K: Kernel> Covered<'_, K> {
    /// Whether the line shows a mapper other than the device. A node may have its root filesystem,
    /// and so hundreds of bind mounts, on a mapper, about which sysfs must not be read each time.
    fn is_of_another_mapper(&self, line: &MountEntry) -> bool {
        let name = match line.fs_type.as_str() {
            "devtmpfs" | "tmpfs" => &line.root,
            "btrfs" => &line.source,
            _ => return line.dev != self.device && self.kernel.is_mapper(line.dev),
        };
        crypt::is_name(name) && !self.kernel.is_mapper(self.device)
    }
}

/// The result of [`Mounts::elsewhere`].
pub(crate) struct Elsewhere {
    /// The other paths at which the storage is mounted.
    pub(crate) paths: Vec<PathBuf>,
    /// Whether several mounts are stacked at the path.
    pub(crate) is_stacked: bool,
}

impl<K: Kernel> Mounts<'_, K> {
    /// Returns the other mounts of a removed disk, which sysfs no longer lists and which is staged
    /// at `path`; `stat` describes the root of the staged mount. For a filesystem, returns all
    /// mounts of this filesystem; for a raw device, all bind mounts of the same device node or of a
    /// node whose name contains the volume. Omits mirrors of the staged mount. Returns `None` if
    /// the mount table does not contain the mount at `path`.
    ///
    /// # Errors
    /// Returns an error if the mount table cannot be read.
    pub(crate) fn elsewhere(
        &self,
        volume: &VolumeId,
        path: &Path,
        stat: &Stat,
    ) -> Result<Option<Elsewhere>> {
        let table = self.kernel.mounts()?;
        // The mount table contains paths without symlinks.
        let real = without_links(self.kernel, path)?;
        let here: Vec<_> = table.iter().filter(|line| line.point == real).collect();
        let Some(own) = self.shown_at(path, stat, &here)? else {
            return Ok(None);
        };
        let is_same = |line: &MountEntry| {
            let is_named = || {
                let label = Label::read(&line.root);
                label.is_some_and(|label| self.transport.is_named(volume, &label))
            };
            let is_bind = stat.kind == FileKind::BlockDevice;
            line.dev == own.dev && (!is_bind || line.root == own.root || is_named())
        };
        // The kubelet's directory may have two paths on a node; each mount in it then appears at
        // both paths.
        let is_mirror = |line: &MountEntry| here.iter().any(|of| is_mirror(&table, line, of));
        let others = table
            .iter()
            .filter(|line| line.point != real && is_same(line) && !is_mirror(line));
        Ok(Some(Elsewhere {
            paths: others.map(|line| line.point.clone()).collect(),
            is_stacked: here.len() > 1,
        }))
    }

    /// Returns the line of the mount that `stat` describes, among the lines `here`, which all have
    /// the mount point `path`. The order of the mount table does not show which mount is on top, so
    /// this compares the root of the visible mount. If several lines have that root, any of them
    /// leads to the same result.
    ///
    /// # Errors
    /// Returns the kernel's error.
    fn shown_at<'a>(
        &self,
        path: &Path,
        stat: &Stat,
        here: &[&'a MountEntry],
    ) -> Result<Option<&'a MountEntry>> {
        if let [only] = here {
            return Ok(Some(only));
        }
        let root = self.kernel.mount_root(path, stat.mount_id)?;
        let mut lines = here.iter().copied();
        Ok(lines.find(|line| Some(&line.root) == root.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::LoopDir;
    use crate::kernel::fake::Machine;

    #[test]
    fn a_line_shows_a_loop_device_by_its_number_its_node_or_its_source() {
        let kernel = Machine::new().process();
        let volumes = Path::new("/volumes");
        kernel.mkdir(volumes, 0o700).unwrap();
        let driver = "local.csi.belay.dev".parse().unwrap();
        let transport = Transport::Loops(LoopDir::open(&kernel, &driver, volumes).unwrap().into());
        let (loop3, other) = (kernel.loop_dev(3), Dev { major: 8, minor: 1 });
        for (fs_type, dev, root, source, device, is_root_known) in [
            ("ext4", loop3, "/", "/dev/sda1", Some(loop3), true),
            ("ext4", other, "/", "/dev/loop3", None, false),
            ("xfs", loop3, "/sub", "any", Some(loop3), true),
            ("devtmpfs", other, "/loop3", "dev", Some(loop3), true),
            ("tmpfs", other, "/loop3", "tmpfs", Some(loop3), true),
            ("tmpfs", loop3, "/file", "/dev/loop3", None, false),
            ("btrfs", other, "/", "/dev/loop3", Some(loop3), false),
            ("btrfs", loop3, "/loop3", "/dev/sda1", None, false),
        ] {
            let line = MountEntry {
                id: 1,
                parent: 0,
                dev,
                root: root.into(),
                point: "/staging".into(),
                fs_type: fs_type.to_owned(),
                source: source.into(),
                peer_group: 0,
            };
            let shown = shown_by(&kernel, &transport, &line).unwrap();
            assert_eq!(shown.as_ref().map(|shown| shown.device), device, "{line:?}");
            let known = shown.and_then(|shown| shown.root);
            assert_eq!(known, device.filter(|_| is_root_known), "{line:?}");
        }
    }
}
