//! Unstages volumes that are being deleted although the kubelet has not unstaged them, as after the
//! crash of a kubelet. The controller marks the file of such a volume with an extended attribute.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belay_server::inotify::AttributeWatch;
use belay_server::request::VolumeId;

use crate::kernel::linux::Linux;
use crate::rpc::NodeService;

/// The pause between two attempts to watch a directory. No event reports when a watch becomes
/// possible.
const PAUSE: Duration = Duration::from_secs(60);

/// Watches the directory while the agent serves. Unstages a volume if an attribute of its file
/// changes and then says that a deletion waits for the unstage. Errors are only logged, since the
/// controller sets the attribute again.
pub(crate) async fn watch_deletions(
    folder: PathBuf,
    service: Arc<NodeService<Linux>>,
) -> Infallible {
    loop {
        let Err(error) = watch(&folder, &service).await;
        let folder = folder.display();
        tracing::warn!(
            "{folder}: cannot be watched ({error}): a volume that a killed kubelet left staged \
             stays staged; raise fs.inotify.max_user_instances"
        );
        tokio::time::sleep(PAUSE).await;
    }
}

async fn watch(
    folder: &std::path::Path,
    service: &Arc<NodeService<Linux>>,
) -> io::Result<Infallible> {
    let watch = AttributeWatch::new(folder)?;
    loop {
        for name in watch.changed().await? {
            let Ok(volume) = VolumeId::new(name) else {
                continue;
            };
            match service.is_wanted(&volume).await {
                Ok(true) => drop(tokio::spawn(release(Arc::clone(service), volume))),
                Ok(false) => {}
                Err(failure) => tracing::debug!("cannot check for a pending deletion: {failure}"),
            }
        }
    }
}

async fn release(service: Arc<NodeService<Linux>>, volume: VolumeId) {
    if let Err(failure) = service.release(volume.clone()).await {
        let id = volume.as_str();
        tracing::warn!(id, "the deletion of the volume waits: {failure}");
    }
}
