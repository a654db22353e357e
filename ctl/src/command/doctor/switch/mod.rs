//! `belayctl doctor --switch KIND`: whether Belay can take over a driver's volumes, by the
//! cluster's objects. Reads them from a file or standard input; connects to nothing and changes
//! nothing.

mod accounts;
mod claims;
mod clouds;
mod controller;
mod objects;
mod options;
mod peer;
mod remote;
mod running;
mod settings;
mod storage;

use std::path::PathBuf;
use std::time::SystemTime;

use clap::Args;

use crate::failure::Failure;
use crate::flags;
use crate::render::Answer;
use crate::report::{Report, Verdict};
use objects::{Object, Objects};
use peer::{Kind, Peer};

/// Tens of thousands of volumes.
const BYTES_MAX: u64 = 1 << 30;
/// Names that a finding shows.
const NAMES_MAX: usize = 3;

/// Which driver to replace, and the objects of the cluster.
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
    /// The report, if `--switch` is given.
    ///
    /// # Errors
    /// The objects cannot be read.
    pub(super) fn run(&self) -> Result<Option<Answer>, Failure> {
        let Some(kind) = self.switch else {
            return Ok(None);
        };
        let text = flags::read_up_to(&self.objects, BYTES_MAX)?;
        let objects = Objects::parse(&text)?;
        let report = judge(&objects, kind.peer(), SystemTime::now());
        Ok(Some(Answer::Report(report)))
    }
}

fn judge(objects: &Objects, peer: &Peer, now: SystemTime) -> Report {
    let mut report = Report::default();
    let driver = named(&mut report, objects, peer);
    running::workloads(&mut report, objects, peer);
    if peer.is_remote {
        remote::object(&mut report, objects, driver);
        remote::attachments(&mut report, objects, driver);
        remote::volumes(&mut report, objects, driver);
        controller::findings(&mut report, objects, (peer, driver), now);
        return report;
    }
    accounts::findings(&mut report, objects, peer);
    settings::findings(&mut report, objects, peer);
    running::leases(&mut report, objects, driver, now);
    running::nodes(&mut report, objects, peer, driver);
    running::attachments(&mut report, objects, driver);
    storage::volumes(&mut report, objects, peer, driver);
    storage::classes(&mut report, objects, peer, driver);
    storage::snapshots(&mut report, objects, peer, driver);
    claims::hints(&mut report, objects, peer);
    claims::inline(&mut report, objects, driver);
    report
}

/// The name that the cluster knows the driver by: the first that an object has.
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

/// Objects with the same finding, by name.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn of<'a>(objects: impl Iterator<Item = Object<'a>>) -> Self {
        Self(objects.map(Object::full_name).collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Display for Names {
    /// The first ones, and how many there are besides.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = &self.0[..self.0.len().min(NAMES_MAX)];
        f.write_str(&shown.join(", "))?;
        match self.0.len() - shown.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A finding about objects, if there are any; otherwise nothing.
fn about(
    report: &mut Report,
    verdict: Verdict,
    name: &str,
    found: &Names,
    what: &str,
    cure: impl Into<String>,
) {
    if !found.is_empty() {
        report.cure(verdict, name, format!("{found}: {what}"), cure);
    }
}

/// That the input has no object of a kind that every cluster has, so nothing is known.
fn missing(report: &mut Report, name: &str, kind: &str) {
    let cure = format!("add {kind} to the objects: `belayctl doctor --help` has the command");
    report.cure(Verdict::No, name, format!("the input has no {kind}"), cure);
}

#[cfg(test)]
mod tests;
