//! Mappers of encrypted volumes: everything about a mapper follows from the device below.

use belay_contract::disk::DiskIdentity;
use belay_server::call::Failure;
use belay_server::request::VolumeId;

use super::Transport;
use crate::device::{Intent, Label, Verdict, crypt};
use crate::kernel::{self, Dev, Kernel};

impl<K: Kernel> Transport<K> {
    /// Returns the device below the mapper with this number, or the number itself if it is not a
    /// mapper's. Returns `None` if the mapper does not exist, or its disk was removed.
    pub(super) fn below(&self, kernel: &K, dev: Dev) -> kernel::Result<Option<Dev>> {
        if !kernel.is_mapper(dev) {
            return Ok(Some(dev));
        }
        let mapper = crypt::at(kernel, dev)?;
        Ok(mapper.and_then(|mapper| mapper.below.first().copied()))
    }

    /// Whether the mapper uses a device that this transport attaches, or used a disk that was
    /// removed.
    pub(super) fn is_over_volume(&self, kernel: &K, dev: Dev) -> kernel::Result<bool> {
        let Some(mapper) = crypt::at(kernel, dev)? else {
            return Ok(false);
        };
        match (self, mapper.below.first()) {
            (_, Some(below)) => self.carries_volumes(kernel, *below),
            (Transport::Disks(_), None) => Ok(true),
            (Transport::Loops(_), None) => Ok(false),
        }
    }

    /// Returns the relation of a mapper to the volume, which is that of the device below.
    pub(super) fn verdict_on_mapper(
        &self,
        kernel: &K,
        volume: &VolumeId,
        (dev, label): (Dev, Option<&Label>),
        how: (Intent, Option<&DiskIdentity>),
    ) -> Result<Verdict<K>, Failure> {
        let removed = || match self {
            Transport::Loops(_) => Verdict::Unbound,
            Transport::Disks(_) => Verdict::Removed,
        };
        let Some(mapper) = crypt::at(kernel, dev)? else {
            return Ok(removed());
        };
        if let Some(label) = label
            && !(crypt::node(dev).ends_with(label.node()) && label.is_current(kernel)?)
        {
            return Ok(removed());
        }
        let Some(below) = mapper.below.first() else {
            return Ok(removed());
        };
        let verdict = self.verdict(kernel, volume, *below, None, how)?;
        if verdict.held().is_none() {
            return Ok(verdict);
        }
        let Some(fd) = crypt::open_node(kernel, &mapper)? else {
            return Ok(removed());
        };
        Ok(verdict.map(|below| {
            let mut device = below.under((mapper, fd));
            // Assume that the mapper has other users until it has been checked.
            device.is_shared = true;
            device
        }))
    }
}
