//! Volumes that are to be detached and that nobody unstages: found by what their controller writes
//! at their files.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use belay_server::attributes::AttributeWatch;
use belay_server::request::VolumeId;

use crate::kernel::linux::Linux;
use crate::rpc::NodeService;

/// Between two tries to watch a folder. There is no event to wait for.
const PAUSE: Duration = Duration::from_secs(60);

/// Looks after each volume whose file gets another attribute, for as long as the agent serves. What
/// fails is tried again when the controller asks again, which it does.
pub(crate) async fn look_after(folder: PathBuf, service: Arc<NodeService<Linux>>) -> Infallible {
    loop {
        let Err(error) = watch(&folder, &service).await;
        let folder = folder.display();
        tracing::warn!(
            "{folder}: cannot be watched ({error}): a volume that a killed kubelet forgot stays \
             staged; raise fs.inotify.max_user_instances"
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
                Err(failure) => tracing::debug!("not asked whether to detach it: {failure}"),
            }
        }
    }
}

async fn release(service: Arc<NodeService<Linux>>, volume: VolumeId) {
    if let Err(failure) = service.release(volume.clone()).await {
        let id = volume.as_str();
        tracing::warn!(id, "to be detached, and stays staged: {failure}");
    }
}
