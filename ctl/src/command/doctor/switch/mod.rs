//! `belayctl doctor --switch KIND`: checks whether Belay can take over a driver's volumes, by the
//! Kubernetes objects of a cluster. The command reads the objects from a file or standard input. It
//! makes no network connections and changes nothing.

mod accounts;
mod claims;
mod controller;
mod peer;
mod remote;
mod rules;
mod running;
mod settings;
mod storage;
mod workloads;

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;

use crate::failure::Failure;
use crate::flags;
use crate::objects::Objects;
use crate::render::Answer;
use crate::report::{Report, Verdict};
use peer::{Kind, Peer};
use rules::{Case, Section};

/// Maximum size of the objects, in bytes: enough for tens of thousands of volumes.
const BYTES_MAX: u64 = 1 << 30;

/// The driver to replace, and the objects of the cluster.
#[derive(Args, Clone)]
pub(crate) struct Switch {
    /// Check instead whether Belay can replace this driver in a cluster, by the objects that
    /// `--objects` reads
    #[arg(
        long,
        value_name = "DRIVER",
        conflicts_with_all = ["directories", "kubelet_dir"]
    )]
    switch: Option<Kind>,
    /// Objects of the cluster in JSON, as kubectl prints them; `-` is standard input
    #[arg(long, value_name = "FILE", default_value = "-", requires = "switch")]
    objects: PathBuf,
}

impl Switch {
    /// Returns the report on the cluster; `None` if `--switch` is not given.
    ///
    /// # Errors
    /// Fails if the objects cannot be read.
    pub(super) fn run(&self) -> Result<Option<Answer>, Failure> {
        let Some(kind) = self.switch else {
            return Ok(None);
        };
        let text = flags::read_up_to(&self.objects, BYTES_MAX);
        let text = text.map_err(|failure| flags::unread("--objects", &failure))?;
        let objects = Objects::parse(&text)?;
        let report = judge(&objects, kind.peer(), SystemTime::now());
        Ok(Some(Answer::Report(report)))
    }
}

fn judge(objects: &Objects, peer: &Peer, now: SystemTime) -> Report {
    let mut report = Report::default();
    let case = Case {
        objects,
        peer,
        driver: named(&mut report, objects, peer),
        now,
    };
    running::programs(&mut report, objects, peer);
    let mut judge = |sections: &[Section]| {
        for section in sections {
            section.judge(&mut report, &case);
        }
    };
    if peer.is_remote {
        judge(&remote::SECTIONS);
        remote::object(&mut report, &case);
        controller::findings(&mut report, &case);
        return report;
    }
    judge(&[accounts::SECTION]);
    judge(&settings::SECTIONS);
    judge(&[running::LEASES]);
    judge(&storage::SECTIONS);
    running::nodes(&mut report, &case);
    claims::findings(&mut report, &case);
    report
}

/// Returns the driver's name in the cluster, and reports that name. The driver's name is the first
/// possible name that a CSIDriver, PersistentVolume or StorageClass of the cluster contains. If no
/// object has a possible name, reports a failed check and returns the first possible name.
fn named<'a>(report: &mut Report, objects: &Objects, peer: &'a Peer) -> &'a str {
    let is_used = |name: &&&str| {
        let has = |kind, pointer| objects.of(kind).any(|it| it.text(pointer) == **name);
        has("CSIDriver", "/metadata/name")
            || has("PersistentVolume", "/spec/csi/driver")
            || has("StorageClass", "/provisioner")
    };
    if let Some(name) = peer.drivers.iter().find(is_used) {
        report.add(Verdict::Ok, "driver", *name);
        return name;
    }
    let what = format!(
        "no CSIDriver, PersistentVolume or StorageClass of the input is of {}",
        peer.drivers.join(" or ")
    );
    let cure = "is it the right cluster? If it never had the driver, install Belay as usual";
    report.cure(Verdict::No, "driver", what, cure);
    peer.drivers[0]
}

#[cfg(test)]
mod tests;
