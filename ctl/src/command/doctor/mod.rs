//! `belayctl doctor`: checks whether this node has what Belay needs, or with `--switch` whether a
//! cluster is ready for Belay, and prints remedies. Changes nothing.

mod host;
mod programs;
mod switch;

pub(crate) use self::host::UdevRules;

use clap::Args;

use crate::drivers::Search;
use crate::failure::Failure;
use crate::machine::mounts;
use crate::render::Answer;
use crate::report::Report;

const EXAMPLES: &str = "\
Examples:
  belayctl doctor                                  # this node
  {
    kubectl get -A -o json csidriver,csinode,node,lease,pv,volumeattachment
    kubectl get -A -o json storageclass,deployment,statefulset,daemonset,pod,pvc
    kubectl get -A -o json volumesnapshotclass,volumesnapshotcontent
  } >objects.json
  belayctl doctor --switch cinder --objects objects.json

The last kubectl fails in a cluster without snapshots; the objects of the others
suffice there.";

/// The flags of `belayctl doctor`.
#[derive(Args, Clone)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Doctor {
    #[command(flatten)]
    search: Search,
    #[command(flatten)]
    switch: switch::Switch,
}

impl Doctor {
    /// Checks this node, or with `--switch` the objects of a cluster.
    ///
    /// # Errors
    /// Fails if /proc or the objects cannot be read.
    pub(crate) async fn run(&self) -> Result<Answer, Failure> {
        match self.switch.run()? {
            Some(answer) => Ok(answer),
            None => node(&self.search).await,
        }
    }
}

async fn node(search: &Search) -> Result<Answer, Failure> {
    let mut report = Report::default();
    host::kernel(&mut report);
    host::mount_calls(&mut report);
    host::loop_devices(&mut report);
    host::filesystems(&mut report);
    host::tools(&mut report);
    host::propagation(&mut report, &mounts::all()?, &search.kubelet_dir);
    host::udev(&mut report);
    host::space(&mut report, &search.kubelet_dir);
    programs::check(&mut report, &search.look().await);
    Ok(Answer::Report(report))
}
