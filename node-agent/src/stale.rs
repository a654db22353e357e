//! Unstages volumes that are being deleted although the kubelet has not unstaged them, for example
//! after a crash of the kubelet. The controller sets an extended attribute on the file of such a
//! volume.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belay_server::inotify::AttributeWatch;
use belay_server::request::VolumeId;

use crate::kernel::linux::Linux;
use crate::rpc::NodeService;

/// The pause between two attempts to watch a directory. The agent receives no event when a watch
/// becomes possible.
const PAUSE: Duration = Duration::from_secs(60);

/// Watches the volumes' directory while the agent serves calls. When an attribute of a file
/// changes, reads the attribute, and unstages the volume if its deletion waits until it is
/// unstaged. Errors are only logged, because the controller repeatedly sets the attribute.
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
