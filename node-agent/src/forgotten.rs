//! Volumes that are to be detached and that nobody unstages: found by what their controller writes
//! at their files.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;

use belay_server::attributes::AttributeWatch;
use belay_server::request::VolumeId;

use crate::kernel::linux::Linux;
use crate::rpc::NodeService;

/// Looks after each volume whose file gets another attribute, for as long as the agent serves. What
/// fails is tried again when the controller asks again, which it does.
pub(crate) async fn look_after(folder: &Path, service: Arc<NodeService<Linux>>) -> Infallible {
    let watch = match AttributeWatch::new(folder) {
        Ok(watch) => watch,
        Err(error) => return blind(folder, &error).await,
    };
    loop {
        let names = match watch.changed().await {
            Ok(names) => names,
            Err(error) => return blind(folder, &error).await,
        };
        for volume in names
            .into_iter()
            .filter_map(|name| VolumeId::new(name).ok())
        {
            let service = Arc::clone(&service);
            tokio::spawn(async move {
                if let Err(failure) = service.release(volume.clone()).await {
                    let id = volume.as_str();
                    tracing::warn!(id, "to be detached, and stays staged: {failure}");
                }
            });
        }
    }
}

async fn blind(folder: &Path, error: &std::io::Error) -> Infallible {
    let folder = folder.display();
    tracing::warn!(
        "{folder}: cannot be watched ({error}): a volume that a killed kubelet forgot stays \
         staged; raise fs.inotify.max_user_instances"
    );
    std::future::pending().await
}
