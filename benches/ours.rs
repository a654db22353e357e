//! A volume's lifecycle by RPCs to belay-node, each on a new connection, like the kubelet's.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::rpc::{Client, with_deadline};
use crate::side::{Call, Side};
use crate::volume::Volume;

/// Maximum number of attempts per call.
const ATTEMPTS: u32 = 1000;

/// belay-node and one volume.
pub struct Ours<'a> {
    client: &'a Client,
    volume: Volume,
    context: HashMap<String, String>,
    /// Calls that were ABORTED and retried, as the kubelet does. There are some on a machine where
    /// other processes open all loop devices, as losetup and udev do.
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
        Self {
            client,
            context: volume.context(content),
            volume,
            repeated: 0,
        }
    }

    fn once(&self, call: Call) -> io::Result<Duration> {
        let Volume {
            id,
            fs_type,
            staging,
            target,
            ..
        } = &self.volume;
        let capability = || requests::capability(fs_type, Mode::SingleNodeWriter);
        let context = || self.context.clone();
        match call {
            Call::Probe => self.client.probe(),
            Call::Stage => {
                let request = requests::stage(id, context(), staging, capability());
                self.timed(request, async |mut node, request| {
                    node.node_stage_volume(request).await
                })
            }
            Call::Publish => {
                let request = requests::publish(id, context(), staging, target, capability());
                self.timed(request, async |mut node, request| {
                    node.node_publish_volume(request).await
                })
            }
            Call::Stats => self.stats(),
            Call::Unpublish => {
                let request = requests::unpublish(id, target);
                self.timed(request, async |mut node, request| {
                    node.node_unpublish_volume(request).await
                })
            }
            Call::Unstage => {
                let request = requests::unstage(id, staging);
                self.timed(request, async |mut node, request| {
                    node.node_unstage_volume(request).await
                })
            }
        }
    }

    fn timed<R, T>(
        &self,
        request: R,
        call: impl AsyncFnOnce(NodeClient<Channel>, Request<R>) -> Result<Response<T>, Status>,
    ) -> io::Result<Duration> {
        self.ask(request, call).map(|(took, _)| took)
    }

    fn ask<R, T>(
        &self,
        request: R,
        call: impl AsyncFnOnce(NodeClient<Channel>, Request<R>) -> Result<Response<T>, Status>,
    ) -> io::Result<(Duration, T)> {
        let request = with_deadline(request);
        self.client
            .call(async |channel| call(NodeClient::new(channel), request).await)
    }

    fn stats(&self) -> io::Result<Duration> {
        let Volume { id, target, .. } = &self.volume;
        let request = requests::stats(id, target, Path::new(""));
        let (took, answer) = self.ask(request, async |mut node, request| {
            node.node_get_volume_stats(request).await
        })?;
        if answer.usage.iter().any(|usage| usage.total > 0) {
            return Ok(took);
        }
        Err(io::Error::other(format!(
            "volume {id}: stats without a size"
        )))
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
