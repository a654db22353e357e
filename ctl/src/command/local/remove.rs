//! `belayctl local remove`: deletes an unclaimed volume or snapshot with its data, by the protocol
//! of the controller (`controller/src/backend/nodes/remove.rs`): an attempt that the command no
//! longer waits for is cancelled, so that no store executes it later.

use std::time::Duration;

use serde_json::{Value, json};

use super::cluster::{Cluster, Item, Kind, problem};
use super::console::{self, Ended, Wait};
use super::kubectl::{Kubectl, Reply};
use super::list;
use crate::failure::Failure;
use crate::objects::Object;
use crate::render::{Answer, Cell};

/// The number of attempts to cancel a removal, and the pause between them.
const CANCELS: u32 = 10;
const CANCEL_PAUSE: Duration = Duration::from_millis(300);

/// Removes a volume or snapshot. Without `is_confirmed`, the user must confirm it.
///
/// # Errors
/// Fails if the object must be kept, if its store refuses the removal or does not respond, or if
/// kubectl fails.
pub(super) async fn run(
    kubectl: &Kubectl,
    id: &str,
    is_confirmed: bool,
) -> Result<Answer, Failure> {
    let mut cluster = Cluster::read_all(kubectl)?;
    let mut item = plan(&cluster, id)?;
    if !is_confirmed {
        let rows = list::objects("objects", &cluster, std::iter::once(item));
        console::confirm(&rows, "this object is deleted with its data")?;
        // A claim may have been created while the user was asked.
        cluster = Cluster::read_all(kubectl)?;
        item = plan(&cluster, id)?;
    }
    if let Some(request) = Cluster::request(kubectl, item)? {
        let why = format!("{request} requests it; delete that first");
        return Err(kept(item.kind, id, &why));
    }
    Removal::new(kubectl, item)?.run(item.object).await?;
    Ok(Answer::Record(vec![
        ("deleted", Cell::Text(id.to_owned())),
        ("kind", Cell::Text(item.kind.noun().to_owned())),
        ("disk", Cell::Text(item.disk_name())),
    ]))
}

/// Returns the object with this ID if it may be removed.
pub(super) fn plan<'a>(cluster: &'a Cluster, id: &str) -> Result<Item<'a>, Failure> {
    let mut same = cluster.all().filter(|item| item.id() == id);
    let Some(item) = same.next() else {
        let why = "has no object; `belayctl local unclaimed` lists IDs";
        return Err(Failure::Absent(format!("{id}: {why}")));
    };
    let refuse = |why: &str| Err(kept(item.kind, id, why));
    if same.next().is_some() {
        return refuse("several objects have this ID; delete the one that has no file");
    }
    if item.is_newer() {
        return refuse("its object is from another release of Belay; upgrade belayctl");
    }
    if let Some(claim) = cluster.claim(item) {
        let (kind, delete) = match item.kind {
            Kind::Volume => ("PersistentVolume", "PersistentVolumeClaim"),
            Kind::Snapshot => ("VolumeSnapshotContent", "VolumeSnapshot"),
        };
        let (name, of) = (claim.name(), cluster.claim_name(item).unwrap_or_default());
        let why = format!("{kind} {name} has it; delete the {delete} instead ({of})");
        return refuse(&why);
    }
    let name = item.disk_name();
    let disk = cluster.disk(&name);
    if item.is_accepted() && disk.is_none() {
        return refuse(&format!(
            "its disk {name} has no LocalDisk; repair the node, or wait 20 minutes until the \
             controller deletes the object"
        ));
    }
    // An earlier command may have begun it.
    if item.is_removed() || item.phase() == "Removing" {
        return Ok(item);
    }
    if !["Ready", "Lost"].contains(&item.phase()) {
        let why = "its phase is not Ready or Lost; wait for the controller";
        return refuse(why);
    }
    if item.object.is_being_deleted() {
        return refuse("its object is being deleted, not the file; repeat the command later");
    }
    if item.remove().is_some_and(|number| number > item.refused()) {
        return refuse("it is already being removed; repeat the command later");
    }
    match (item.is_accepted(), item.phase()) {
        // No store has the file.
        (false, "Lost") => return Ok(item),
        (false, _) => return refuse("its store has not accepted it; repeat the command later"),
        (true, _) => {}
    }
    match disk.map(|disk| problem(cluster, disk)).as_deref() {
        None | Some("") => Ok(item),
        Some(problem) => refuse(&format!("disk {name} cannot delete it: {problem}")),
    }
}

fn kept(kind: Kind, id: &str, why: &str) -> Failure {
    Failure::Refused(format!("{} {id}: {why}", kind.noun()))
}

/// The next step of a removal.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// No file exists: delete the object.
    Delete,
    /// Write an attempt with this number.
    Begin(u64),
    /// Wait for the store.
    Wait,
    /// Wait for the store, which is deleting the file.
    Claimed,
    /// The removal has failed. Contains the reason.
    Failed(String),
}

/// Returns the next step. `own` is the number of the attempt that this command has written.
pub(super) fn step(item: Item<'_>, own: Option<u64>) -> Step {
    let failed = |why: &str| Step::Failed(why.to_owned());
    if item.is_newer() {
        return failed("its object is from another release of Belay; upgrade belayctl");
    }
    if item.is_removed() {
        return Step::Delete;
    }
    match (item.phase(), item.is_accepted()) {
        ("Removing", true) => return Step::Claimed,
        _ if item.object.is_being_deleted() => {
            return failed("its object was deleted, not the file; repeat the command later");
        }
        ("Lost", false) => return Step::Delete,
        ("Ready" | "Lost", true) => {}
        _ => return failed("its store has changed its phase; repeat the command"),
    }
    let refused = item.refused();
    match (own, item.remove()) {
        (Some(own), _) if own <= refused => Step::Failed(format!(
            "its store has refused the removal: {}",
            item.failure()
        )),
        (_, Some(number)) if number > refused => Step::Wait,
        (Some(_), _) => failed("another process has cancelled the removal; repeat the command"),
        // Each attempt increases the generation, so no earlier attempt has this number.
        (None, _) => {
            let generation = item.object.number("/metadata/generation");
            Step::Begin(generation.max(refused.saturating_add(1)))
        }
    }
}

/// A removal that has begun.
struct Removal<'a> {
    kubectl: &'a Kubectl,
    kind: Kind,
    id: String,
    path: String,
    disk: String,
    wait: Wait,
    /// The number of the attempt of this command.
    own: Option<u64>,
    /// Whether the API server has confirmed the attempt.
    is_written: bool,
    /// Whether the store was seen deleting the file.
    is_claimed: bool,
}

impl<'a> Removal<'a> {
    fn new(kubectl: &'a Kubectl, item: Item<'_>) -> Result<Self, Failure> {
        Ok(Self {
            kubectl,
            kind: item.kind,
            id: item.id().to_owned(),
            path: item.path(),
            disk: item.disk_name(),
            wait: Wait::new(kubectl.seconds)?,
            own: None,
            is_written: false,
            is_claimed: false,
        })
    }

    /// Removes the object. If that fails, cancels its attempt.
    async fn run(&mut self, object: Object<'_>) -> Result<(), Failure> {
        let removed = self.attempt(object.value().clone()).await;
        let (Err(failure), Some(own)) = (&removed, self.own) else {
            return removed;
        };
        let end = match self.cancel(own).await {
            Ok(end) => end,
            Err(error) => format!(
                "the removal cannot be cancelled ({error}), so the store may still execute it; \
                 cancel it: kubectl patch {}.belay.dev {} --type=merge --patch \
                 '{{\"spec\":{{\"remove\":null}}}}'",
                self.kind.plural(),
                object.name()
            ),
        };
        Err(Failure::Refused(format!("{failure}; {end}")))
    }

    /// Writes an attempt, and waits for its end.
    async fn attempt(&mut self, mut object: Value) -> Result<(), Failure> {
        loop {
            let item = self.item(&object);
            match step(item, self.own) {
                Step::Delete => match self.kubectl.delete(&self.path, item.object)? {
                    // No file exists, so another process may delete the object as well.
                    Reply::Done(_) | Reply::Missing => {
                        self.own = None;
                        return Ok(());
                    }
                    Reply::Conflict => self.pause("deleting the object").await?,
                },
                Step::Begin(number) => {
                    // Without a response, the attempt may have been written.
                    self.own = Some(number);
                    let spec = json!({"remove": number});
                    match self.kubectl.patch(self.kind.plural(), item.object, &spec)? {
                        Reply::Done(changed) => {
                            (object, self.is_written) = (changed, true);
                            continue;
                        }
                        Reply::Missing | Reply::Conflict => self.own = None,
                    }
                    // A change may be a claim's, so the conditions must be checked again.
                    return Err(self.failed("it was changed meanwhile; repeat the command"));
                }
                Step::Wait => {
                    let progress = format!("waiting for the store of {}", self.disk);
                    self.pause(&progress).await?;
                }
                Step::Claimed => {
                    self.is_claimed = true;
                    let progress = format!("the store of {} is deleting the data", self.disk);
                    self.pause(&progress).await?;
                }
                Step::Failed(why) => return Err(self.failed(&why)),
            }
            object = match self.kubectl.get(&self.path) {
                Ok(Some(object)) => object,
                Ok(None) if self.is_claimed => {
                    self.own = None;
                    return Ok(());
                }
                Ok(None) => {
                    self.own = None;
                    let why = "its object was deleted by another process; `belayctl local \
                               unlisted` shows whether its file exists";
                    return Err(self.failed(why));
                }
                // The next read may succeed; the wait has a limit.
                Err(failure) => {
                    self.pause(&failure.to_string()).await?;
                    object
                }
            };
        }
    }

    /// Waits until the object may have changed.
    async fn pause(&mut self, progress: &str) -> Result<(), Failure> {
        let next = self.wait.next(progress).await;
        next.map_err(|ended: Ended| self.failed(ended.why()))
    }

    /// Cancels the attempt `own`, unless the store has begun it. Returns the result as a phrase for
    /// the error message.
    async fn cancel(&self, own: u64) -> Result<String, Failure> {
        let mut last = self.failed("it changes too often");
        for _ in 0..CANCELS {
            match self.cancel_once(own) {
                Ok(Some(end)) => return Ok(end.to_owned()),
                Ok(None) => {}
                Err(failure) => last = failure,
            }
            tokio::time::sleep(CANCEL_PAUSE).await;
        }
        Err(last)
    }

    /// Returns `None` if the object has changed meanwhile, or if the attempt may still be written.
    fn cancel_once(&self, own: u64) -> Result<Option<&'static str>, Failure> {
        const CANCELLED: Option<&str> = Some("the removal is cancelled");
        const MISSING: Option<&str> = Some("its object no longer exists");
        let Some(object) = self.kubectl.get(&self.path)? else {
            return Ok(MISSING);
        };
        let item = self.item(&object);
        if item.is_removed() || item.phase() == "Removing" {
            return Ok(Some(
                "its store deletes the data, which cannot be cancelled; repeat the command to \
                 delete the object",
            ));
        }
        if item.remove() != Some(own) {
            return match self.is_written {
                true => Ok(CANCELLED),
                // kubectl has failed, but the server may still have its request.
                false => Err(self.failed("spec.remove is not set yet, but may still be set")),
            };
        }
        let spec = json!({"remove": null});
        Ok(
            match self.kubectl.patch(self.kind.plural(), item.object, &spec)? {
                Reply::Done(_) => CANCELLED,
                Reply::Missing => MISSING,
                Reply::Conflict => None,
            },
        )
    }

    fn item<'b>(&self, object: &'b Value) -> Item<'b> {
        Item {
            kind: self.kind,
            object: Object::new(object),
        }
    }

    fn failed(&self, why: &str) -> Failure {
        kept(self.kind, &self.id, why)
    }
}
