//! A volume's life by RPCs to belay-node, each on a new connection as the kubelet makes them.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use belay_proto::csi::v1 as csi;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, MountVolume};

use crate::rpc::{Client, with_deadline};
use crate::side::{Call, Side};
use crate::volume::{VOLUME_BYTES, Volume};

/// How often a call may be made until it is done.
const ATTEMPTS: u32 = 1000;

/// belay-node and one volume.
pub struct Ours<'a> {
    client: &'a Client,
    volume: Volume,
    context: HashMap<String, String>,
    /// Calls that were answered ABORTED and made again, as the kubelet does. On a machine where
    /// somebody looks into all loop devices, as losetup and udev do, there are some.
    pub repeated: usize,
}

impl<'a> Ours<'a> {
    /// A volume that was staged before.
    #[must_use]
    pub fn new(client: &'a Client, volume: Volume) -> Self {
        Self::with_content(client, volume, "used")
    }

    /// A volume that may be formatted.
    pub(crate) fn on_new(client: &'a Client, volume: Volume) -> Self {
        Self::with_content(client, volume, "new")
    }

    fn with_content(client: &'a Client, volume: Volume, content: &str) -> Self {
        let bytes = VOLUME_BYTES.to_string();
        let context = [
            ("transport", "loop"),
            ("file", &volume.id),
            ("bytes", &bytes),
            ("content", content),
        ];
        let context = context
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        Self {
            client,
            volume,
            context,
            repeated: 0,
        }
    }

    fn once(&self, call: Call) -> io::Result<Duration> {
        match call {
            Call::Probe => self.client.probe(),
            Call::Stage => self.stage(),
            Call::Publish => self.publish(),
            Call::Stats => self.stats(),
            Call::Unpublish => self.unpublish(),
            Call::Unstage => self.unstage(),
        }
    }

    fn capability(&self) -> Option<csi::VolumeCapability> {
        let mount = MountVolume {
            fs_type: self.volume.fs_type.to_owned(),
            ..Default::default()
        };
        Some(csi::VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            access_mode: Some(AccessMode {
                mode: Mode::SingleNodeWriter.into(),
            }),
        })
    }

    fn stage(&self) -> io::Result<Duration> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.volume.id.clone(),
            publish_context: self.context.clone(),
            staging_target_path: self.volume.staging.to_string_lossy().into_owned(),
            volume_capability: self.capability(),
            ..Default::default()
        };
        let call = async |channel| {
            NodeClient::new(channel)
                .node_stage_volume(with_deadline(request))
                .await
        };
        Ok(self.client.call(call)?.0)
    }

    fn publish(&self) -> io::Result<Duration> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.volume.id.clone(),
            publish_context: self.context.clone(),
            staging_target_path: self.volume.staging.to_string_lossy().into_owned(),
            target_path: self.volume.target.to_string_lossy().into_owned(),
            volume_capability: self.capability(),
            ..Default::default()
        };
        let call = async |channel| {
            NodeClient::new(channel)
                .node_publish_volume(with_deadline(request))
                .await
        };
        Ok(self.client.call(call)?.0)
    }

    fn stats(&self) -> io::Result<Duration> {
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: self.volume.id.clone(),
            volume_path: self.volume.target.to_string_lossy().into_owned(),
            ..Default::default()
        };
        let call = async |channel| {
            NodeClient::new(channel)
                .node_get_volume_stats(with_deadline(request))
                .await
        };
        let (took, answer) = self.client.call(call)?;
        if answer.usage.iter().any(|usage| usage.total > 0) {
            return Ok(took);
        }
        Err(io::Error::other(format!(
            "volume {}: stats without a size",
            self.volume.id
        )))
    }

    fn unpublish(&self) -> io::Result<Duration> {
        let request = csi::NodeUnpublishVolumeRequest {
            volume_id: self.volume.id.clone(),
            target_path: self.volume.target.to_string_lossy().into_owned(),
        };
        let call = async |channel| {
            NodeClient::new(channel)
                .node_unpublish_volume(with_deadline(request))
                .await
        };
        Ok(self.client.call(call)?.0)
    }

    fn unstage(&self) -> io::Result<Duration> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: self.volume.id.clone(),
            staging_target_path: self.volume.staging.to_string_lossy().into_owned(),
        };
        let call = async |channel| {
            NodeClient::new(channel)
                .node_unstage_volume(with_deadline(request))
                .await
        };
        Ok(self.client.call(call)?.0)
    }
}

impl Side for Ours<'_> {
    fn run(&mut self, call: Call) -> io::Result<Duration> {
        let mut took = Duration::ZERO;
        for attempt in 1.. {
            let start = Instant::now();
            match self.once(call) {
                Ok(time) => return Ok(took + time),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && attempt < ATTEMPTS => {
                    self.repeated += 1;
                    took += start.elapsed();
                }
                Err(error) => {
                    let why = format!("{} of {}: {error}", call.name(), self.volume.id);
                    return Err(io::Error::other(why));
                }
            }
        }
        Ok(took)
    }
}
