//! The lists of disks, volumes, snapshots and files, as rows. Makes no calls.

use std::collections::BTreeSet;
use std::time::Duration;

use belay_contract::drivers::local::UNCLAIMED_AFTER;

use super::cluster::{Cluster, Item, Kind, problem};
use crate::objects::Object;
use crate::render::{Cell, Rows};

/// The problem of a disk with volumes or snapshots and without a LocalDisk.
const GONE: &str = "gone: no LocalDisk";

/// Returns one row per node, with the totals of its disks.
pub(super) fn nodes(cluster: &Cluster) -> Rows {
    let promised = cluster.promised();
    let row = |node: &str| {
        let disks = || {
            let all = cluster.disks();
            all.filter(move |disk| disk.text("/spec/node") == node)
        };
        let items = || cluster.all().filter(|item| item.node() == node);
        let count = |kind| number(items().filter(|item| item.kind == kind).count());
        let total = |at: &str| disks().map(|disk| disk.number(at)).sum::<u64>();
        let of_disk = |disk: Object<'_>| promised.get(disk.name()).copied().unwrap_or(0);
        let free = disks().map(|it| it.number("/status/promisable").saturating_sub(of_disk(it)));
        let places = disks().map(|disk| disk.text("/spec/place"));
        let places: BTreeSet<_> = places.chain(items().map(Item::place)).collect();
        let problems = disks().filter_map(|disk| match problem(cluster, disk).as_str() {
            "" => None,
            problem => Some(format!("{}: {problem}", disk.text("/spec/disk"))),
        });
        let gone = cluster.gone().into_iter().filter(|(of, _)| *of == node);
        let problems = problems.chain(gone.map(|(_, disk)| format!("{disk}: {GONE}")));
        let promised = promised.iter().filter(|(name, _)| {
            let of = name.rsplit_once('.');
            of.is_some_and(|(of, _)| of == node)
        });
        vec![
            text(node),
            Cell::Text(places.into_iter().collect::<Vec<_>>().join(", ")),
            number(disks().count()),
            size(Some(total("/status/bytes"))),
            size(Some(promised.map(|(_, bytes)| bytes).sum())),
            size(Some(free.sum())),
            count(Kind::Volume),
            count(Kind::Snapshot),
            Cell::Text(problems.collect::<Vec<_>>().join("; ")),
        ]
    };
    let of_disks = cluster.disks().map(|disk| disk.text("/spec/node"));
    let names: BTreeSet<_> = of_disks.chain(cluster.all().map(Item::node)).collect();
    let columns = [
        "node",
        "place",
        "disks",
        "size_bytes",
        "promised_bytes",
        "free_bytes",
        "volumes",
        "snapshots",
        "problem",
    ];
    Rows::new("nodes", &columns, names.into_iter().map(row))
}

/// Returns one row per disk.
pub(super) fn disks(cluster: &Cluster) -> Rows {
    let promised = cluster.promised();
    let promised = |name: &str| promised.get(name).copied().unwrap_or(0);
    let count = |kind: Kind, name: &str| {
        let on_disk = |item: &Item<'_>| item.disk_name() == name;
        number(cluster.of_kind(kind).filter(on_disk).count())
    };
    let row = |node: &str, disk: &str, object: Option<Object<'_>>| {
        let name = format!("{node}.{disk}");
        let known = |at: &str| object.and_then(|it| it.at(at)?.as_u64());
        let free = known("/status/promisable");
        let free = free.map(|bytes| bytes.saturating_sub(promised(&name)));
        let age = object.map(|it| cluster.silence(it));
        vec![
            text(node),
            text(disk),
            size(known("/status/bytes")),
            size(Some(promised(&name))),
            size(free),
            count(Kind::Volume, &name),
            count(Kind::Snapshot, &name),
            Cell::number(known("/status/unlisted/count").and_then(|it| i64::try_from(it).ok())),
            age.map_or(Cell::Unknown, seconds),
            Cell::Text(object.map_or(GONE.to_owned(), |it| problem(cluster, it))),
        ]
    };
    let disks = cluster.disks();
    let disks = disks.map(|it| row(it.text("/spec/node"), it.text("/spec/disk"), Some(it)));
    let gone = cluster.gone().into_iter();
    let columns = [
        "node",
        "disk",
        "size_bytes",
        "promised_bytes",
        "free_bytes",
        "volumes",
        "snapshots",
        "unlisted",
        "report_age_seconds",
        "problem",
    ];
    let rows = disks.chain(gone.map(|(node, disk)| row(node, disk, None)));
    Rows::new("disks", &columns, rows)
}

/// Returns one row per volume or snapshot, of one node if `node` is set.
pub(super) fn of_kind(cluster: &Cluster, kind: Kind, node: &Option<String>) -> Rows {
    let name = match kind {
        Kind::Volume => "volumes",
        Kind::Snapshot => "snapshots",
    };
    let is_there = |item: &Item<'_>| node.as_ref().is_none_or(|node| item.node() == node);
    objects(name, cluster, cluster.of_kind(kind).filter(is_there))
}

/// Returns one row per object.
pub(super) fn objects<'a>(
    name: &'static str,
    cluster: &Cluster,
    items: impl Iterator<Item = Item<'a>>,
) -> Rows {
    let row = |item: Item<'_>| {
        let phase = match item.phase() {
            "" => "Ordered",
            phase => phase,
        };
        let claim = cluster.claim_name(item);
        let claim = claim.unwrap_or_else(|| "unclaimed".to_owned());
        let rest = [text(phase), Cell::Text(claim), text(item.failure())];
        identity(item).into_iter().chain(rest).collect()
    };
    let columns = [
        "name",
        "id",
        "node",
        "disk",
        "size_bytes",
        "phase",
        "claim",
        "failure",
    ];
    Rows::new(name, &columns, items.map(row))
}

/// Returns the volumes and snapshots that have a file, or had one, and no claim.
pub(super) fn unclaimed(cluster: &Cluster) -> impl Iterator<Item = Item<'_>> {
    cluster.all().filter(|item| {
        ["Ready", "Lost"].contains(&item.phase())
            && cluster.age(item.object) >= UNCLAIMED_AFTER
            && cluster.claim(*item).is_none()
    })
}

/// Returns one row per unclaimed volume and snapshot.
pub(super) fn of_unclaimed(cluster: &Cluster) -> Rows {
    let row = |item: Item<'_>| {
        let age = seconds(cluster.age(item.object));
        let rest = [text(item.phase()), text(item.kind.noun()), age];
        identity(item).into_iter().chain(rest).collect()
    };
    let columns = [
        "name",
        "id",
        "node",
        "disk",
        "size_bytes",
        "phase",
        "kind",
        "age_seconds",
    ];
    Rows::new("unclaimed_objects", &columns, unclaimed(cluster).map(row))
}

/// Returns one row per file that has no object. A store lists only the first files of its disk.
pub(super) fn unlisted(cluster: &Cluster) -> Rows {
    let (mut rows, mut notes) = (Vec::new(), Vec::new());
    for disk in cluster.disks() {
        let count = disk.number("/status/unlisted/count");
        let files: Vec<_> = disk.list("/status/unlisted/first").collect();
        for file in &files {
            let [node, name] = ["/spec/node", "/spec/disk"].map(|at| text(disk.text(at)));
            let bytes = size(file.at("/bytes").and_then(serde_json::Value::as_u64));
            let [id, file] = ["/id", "/name"].map(|at| text(file.text(at)));
            let count = Cell::Number(i64::try_from(count).unwrap_or(i64::MAX));
            rows.push(vec![node, name, id, file, bytes, count]);
        }
        if count > files.len() as u64 {
            let (name, listed) = (disk.name(), files.len());
            let note = format!("disk {name}: {count} files without an object, {listed} listed");
            notes.push(note);
        }
    }
    let columns = ["node", "disk", "id", "name", "size_bytes", "files_of_disk"];
    Rows {
        narrow: columns.len() - 1,
        notes,
        ..Rows::new("unlisted_files", &columns, rows)
    }
}

/// Returns the name in the request, the ID, the node, the disk and the size.
fn identity(item: Item<'_>) -> [Cell; 5] {
    let name = text(item.object.text("/spec/name"));
    let [id, node, disk] = [item.id(), item.node(), item.disk()].map(text);
    [name, id, node, disk, size(item.bytes())]
}

fn text(text: &str) -> Cell {
    Cell::Text(text.to_owned())
}

fn size(bytes: Option<u64>) -> Cell {
    let bytes = bytes.map(|bytes| i64::try_from(bytes).unwrap_or(i64::MAX));
    bytes.map_or(Cell::Unknown, Cell::Bytes)
}

fn number(number: usize) -> Cell {
    Cell::Number(i64::try_from(number).unwrap_or(i64::MAX))
}

fn seconds(age: Duration) -> Cell {
    Cell::Seconds(i64::try_from(age.as_secs()).unwrap_or(i64::MAX))
}
