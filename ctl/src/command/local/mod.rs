//! `belayctl local`: shows and repairs the volumes and disks of the driver `local` of all nodes,
//! by the objects in the API server. Needs kubectl and no socket of a driver.

mod adopt;
mod cluster;
mod console;
mod doctor;
mod forget;
mod kubectl;
mod list;
mod rehome;
mod remove;
mod reset;
#[cfg(test)]
mod tests;

use clap::{Args, Subcommand};

use crate::failure::Failure;
use crate::render::Answer;
use crate::target::Target;
use cluster::{Cluster, Kind};
use kubectl::Kubectl;

const EXAMPLES: &str = "\
Examples:
  belayctl local doctor                          # what is wrong, and what to do
  belayctl local nodes                           # places and free space
  belayctl local disks                           # free space and problems
  belayctl local volumes --node node1            # with their claims
  belayctl local unclaimed                       # what no claim has
  belayctl local remove vol-0123456789abcdef0123456789abcdef
  belayctl local forget node2                    # node2 never returns
  belayctl local rehome node2 node3              # node3 has the disks of node2
  belayctl local reset node1 default             # the state of the disk is lost

The commands run kubectl, with your kubeconfig: no command needs a socket.";

/// The flags of `belayctl local`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Local {
    #[command(flatten)]
    kubectl: Kubectl,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Check the controller, the disks, the volumes and the snapshots
    #[command(after_help = DOCTOR)]
    Doctor,
    /// List the nodes: their places, the totals of their disks
    #[command(after_help = NODES)]
    Nodes,
    /// List the disks: free space, age of the report, problems
    #[command(after_help = DISKS)]
    Disks,
    /// List the volumes and their claims
    #[command(after_help = OBJECTS)]
    Volumes {
        /// Only on this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// List the snapshots and their claims
    #[command(after_help = OBJECTS)]
    Snapshots {
        /// Only on this node
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
    },
    /// List volumes and snapshots that no PersistentVolume or VolumeSnapshotContent has
    #[command(after_help = UNCLAIMED)]
    Unclaimed,
    /// List the files on the disks that have no object
    #[command(after_help = UNLISTED)]
    Unlisted,
    /// Declare that a node never returns, so that its volumes can be deleted without it
    #[command(after_help = FORGET)]
    Forget {
        /// Name of the Node
        node: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Give the volumes of a renamed node, or of moved disks, to the node that now has the disks
    #[command(after_help = REHOME)]
    Rehome {
        /// Topology value of the volumes: the node that had the disks first
        place: String,
        /// Name of the Node that has the disks now
        node: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Delete an unclaimed volume or snapshot, or a file without an object
    #[command(after_help = REMOVE)]
    Remove {
        /// ID of the volume or snapshot
        id: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Let a disk be used again whose state cannot be recovered; all its volumes are then lost
    #[command(after_help = RESET)]
    Reset {
        /// Name of the Node
        node: String,
        /// Name of the disk
        disk: String,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
}

const DOCTOR: &str = "\
Prints each problem with its remedy. The exit code is 2 if something is wrong.

Examples:
  belayctl local doctor --context production
  belayctl local doctor -o name                  # only what is wrong";

const NODES: &str = "\
PLACE is the topology value of the volumes: the first name of the Node that had
the disks. SIZE, PROMISED and FREE are the totals of `belayctl local disks`.

Examples:
  belayctl local nodes
  belayctl local nodes -o json";

const DISKS: &str = "\
PROMISED is the total size of all volumes and snapshots of the disk, and FREE is
the size that new ones may have. A disk with volumes but without a LocalDisk is
gone, as after `belayctl local forget`.

Examples:
  belayctl local disks --context production
  belayctl local disks -o json";

const UNCLAIMED: &str = "\
Lists volumes and snapshots that are Ready or Lost and older than 10 minutes.
The controller deletes only those of gone disks. To use one again, create a
PersistentVolume or VolumeSnapshotContent with its ID; to delete it with its
data, use `belayctl local remove`.

Examples:
  belayctl local unclaimed -o json";

const UNLISTED: &str = "\
A file with a NAME is adopted within 11 minutes after a PersistentVolume has its
ID (volumeHandle), the place (nodeAffinity) and the disk; a snapshot, after a
VolumeSnapshotContent has its ID. `belayctl local remove ID` deletes it. A file
without a NAME has no readable record in state.redb: remove it by hand.

Examples:
  belayctl local unlisted";

const FORGET: &str = "\
Only for a node that is switched off permanently: pods that still run there keep
writing to its volumes. Deletes the LocalDisks of the node. Three minutes later,
the node's volumes can be deleted without it, and new volumes are created on
other nodes. Refused while a store of the node reports. If the node returns, its
files still exist.

Examples:
  belayctl local forget node2
  belayctl local forget node2 --yes --output json";

const REHOME: &str = "\
PersistentVolumes keep their place, and the node gets its label. All disks of
the place must be in the node, which must have no other volumes.
First forget the node that had the disks. Then run the commands that this
command prints.

Examples:
  belayctl local forget node2
  belayctl local rehome node2 node2-new";

const REMOVE: &str = "\
Refused if a PersistentVolume, a VolumeSnapshotContent or a request has the ID.
Otherwise calls the driver's controller, in its pod (kubectl exec). After an
error, the data is kept unless the message says that its store deletes the data.
A file without an object (see unlisted) gets one first, which may remain after
an error. The data of a snapshot whose copy has failed is deleted in any case.
An interrupted command may still delete the data.

Examples:
  belayctl local remove snap-0123456789abcdef0123456789abcdef --yes";

const RESET: &str = "\
Only for a disk whose store reports that the state is missing. First try to
mount the old disk. Deletes the LocalDisk, waits until the store creates it
again, and permits the store to begin a new state. An interrupted reset
continues when the command is repeated.

Examples:
  belayctl local reset node1 default";

const OBJECTS: &str = "\
CLAIM is the namespace and name of the PersistentVolumeClaim or VolumeSnapshot.
Objects that are still being created have no claim, either.

Examples:
  belayctl local volumes --node node1
  belayctl local snapshots -o json";

impl Local {
    /// Runs the command.
    ///
    /// # Errors
    /// Fails if kubectl is missing or fails, or if the command is unsafe now.
    pub(crate) async fn run(self, target: &Target) -> Result<Answer, Failure> {
        let kubectl = &self.kubectl.with_timeout(target.timeout);
        let rows = match &self.verb {
            Verb::Doctor => return doctor::run(kubectl),
            Verb::Nodes => list::nodes(&Cluster::read(kubectl)?),
            Verb::Disks => list::disks(&Cluster::read(kubectl)?),
            Verb::Volumes { node } => {
                list::of_kind(&Cluster::read_all(kubectl)?, Kind::Volume, node)
            }
            Verb::Snapshots { node } => {
                list::of_kind(&Cluster::read_all(kubectl)?, Kind::Snapshot, node)
            }
            Verb::Unclaimed => list::of_unclaimed(&Cluster::read_all(kubectl)?),
            Verb::Unlisted => list::unlisted(&Cluster::read(kubectl)?),
            Verb::Forget { node, yes } => forget::run(kubectl, node, *yes)?,
            Verb::Rehome { place, node, yes } => rehome::run(kubectl, [place, node], *yes).await?,
            Verb::Remove { id, yes } => return remove::run(kubectl, id, *yes).await,
            Verb::Reset { node, disk, yes } => {
                return reset::run(kubectl, [node, disk], *yes).await;
            }
        };
        Ok(Answer::Rows(rows))
    }
}
