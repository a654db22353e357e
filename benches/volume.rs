//! A volume for the benches, the calls of its lifecycle, and one of the two ways to make them: by
//! RPCs to belay-node, each on a new connection, as the kubelet makes them. The agent formats the
//! volumes of both sides, so that their filesystems have the same feature flags.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use belay_bed::requests;
use belay_contract::drivers::local::{IS_NEW, NEW};
use belay_proto::csi::v1 as csi;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use rustix::fs::XattrFlags;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use crate::bench_dir::BenchDir;
use crate::program::Program;
use crate::rpc::{Client, with_deadline};
use crate::storage::Storage;

/// Maximum number of attempts per call.
const ATTEMPTS: u32 = 1000;

/// The size of every volume: sparse, so that it takes only the space that its filesystem writes.
pub const VOLUME_BYTES: u64 = 1 << 30;

/// A volume and its paths.
#[derive(Clone, Debug)]
pub struct Volume {
    /// The volume ID, which is also the name of the file.
    pub id: String,
    /// The filesystem type, or `block` for a raw block volume.
    pub fs_type: &'static str,
    /// The storage behind the volume.
    pub storage: Storage,
    /// The staging path; the directory exists. Empty if the volume is not staged.
    pub staging: PathBuf,
    /// The target path; its parent exists.
    pub target: PathBuf,
}

impl Volume {
    /// Creates a volume on a new file that is formatted and not staged.
    ///
    /// # Errors
    /// Fails if the agent fails.
    pub fn formatted(
        bench_dir: &BenchDir,
        agent: &Program<'_>,
        id: &str,
        fs_type: &'static str,
    ) -> io::Result<Self> {
        let file = bench_dir.directory("volumes")?.join(id);
        let made = File::create_new(&file)?;
        made.set_len(VOLUME_BYTES)?;
        rustix::fs::fsetxattr(&made, NEW, IS_NEW, XattrFlags::empty())?;
        // The agent uses no file that another process has open.
        drop(made);
        Self::on(bench_dir, agent, id, fs_type, Storage::File(file))
    }

    /// Creates a volume on this storage that is formatted and not staged.
    ///
    /// # Errors
    /// Fails if the agent fails, for example because the storage contains data.
    pub fn on(
        bench_dir: &BenchDir,
        agent: &Program<'_>,
        id: &str,
        fs_type: &'static str,
        storage: Storage,
    ) -> io::Result<Self> {
        let _turn = bench_dir.turn();
        let mut volume = Self {
            id: id.to_owned(),
            fs_type,
            storage,
            staging: PathBuf::new(),
            target: bench_dir.directory(&format!("pods/{id}"))?.join("mount"),
        };
        if volume.has(Call::Stage) {
            volume.staging = bench_dir.directory(&format!("staging/{id}"))?;
            let mut life = Ours::new(&agent.client, volume.clone());
            life.run(Call::Stage)?;
            life.run(Call::Unstage)?;
        }
        Ok(volume)
    }

    /// Whether the call is part of the volume's lifecycle: a directory of a server is not staged.
    #[must_use]
    pub fn has(&self, call: Call) -> bool {
        let is_staged = !matches!(self.storage, Storage::Directory { .. });
        is_staged || !matches!(call, Call::Stage | Call::Unstage)
    }
}

/// One call of a volume's lifecycle, or a Probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Does nothing: the floor of every other call.
    Probe,
    /// Mounts the volume's filesystem, once per node.
    Stage,
    /// Mounts the volume at a pod's path.
    Publish,
    /// Reads the usage of the volume.
    Stats,
    /// Unmounts the volume from the pod's path.
    Unpublish,
    /// Unmounts the volume and frees its device.
    Unstage,
}

impl Call {
    /// All calls, in the order of a lifecycle.
    pub const ALL: [Call; 6] = [
        Call::Probe,
        Call::Stage,
        Call::Publish,
        Call::Stats,
        Call::Unpublish,
        Call::Unstage,
    ];

    /// Returns the call's name in the specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Call::Probe => "probe",
            Call::Stage => "stage",
            Call::Publish => "publish",
            Call::Stats => "stats",
            Call::Unpublish => "unpublish",
            Call::Unstage => "unstage",
        }
    }

    /// Returns the calls before this one, the calls that undo it before it is repeated, and the
    /// calls that end the lifecycle afterwards.
    fn surroundings(self) -> (&'static [Call], &'static [Call], &'static [Call]) {
        use Call::{Publish, Stage, Stats, Unpublish, Unstage};
        match self {
            Call::Probe => (&[], &[], &[]),
            Call::Stage => (&[], &[Unstage], &[]),
            Call::Publish => (&[Stage], &[Unpublish], &[Unstage]),
            // The first statistics after a publish are slower.
            Call::Stats => (&[Stage, Publish, Stats], &[], &[Unpublish, Unstage]),
            Call::Unpublish => (&[Stage, Publish], &[Publish], &[Unpublish, Unstage]),
            Call::Unstage => (&[Stage], &[Stage], &[Unstage]),
        }
    }
}

/// A side of a comparison: a way to make the calls, with its own volume.
pub trait Side {
    /// Makes the call and returns its duration, without its preparation.
    ///
    /// # Errors
    /// Fails if the call fails, which ends the run.
    fn run(&mut self, call: Call) -> io::Result<Duration>;
}

/// Makes one call `times` times, starting and ending with a volume that is not staged. Returns the
/// total time of these calls alone.
///
/// # Errors
/// Fails if a call fails.
pub fn total(side: &mut impl Side, call: Call, times: u64) -> io::Result<Duration> {
    let (before, between, after) = call.surroundings();
    let mut all = |calls: &[Call]| calls.iter().try_for_each(|c| side.run(*c).map(|_| ()));
    all(before)?;
    let mut sum = Duration::ZERO;
    for _ in 0..times {
        sum += side.run(call)?;
        between.iter().try_for_each(|c| side.run(*c).map(|_| ()))?;
    }
    after.iter().try_for_each(|c| side.run(*c).map(|_| ()))?;
    Ok(sum)
}

/// The side of the comparison that calls belay-node, with one volume.
pub struct Ours<'a> {
    client: &'a Client,
    volume: Volume,
    /// The number of calls that returned ABORTED and were retried, as the kubelet does. This
    /// happens if other processes open all loop devices, as losetup and udev do.
    pub repeated: usize,
}

impl<'a> Ours<'a> {
    /// Creates a side that calls belay-node for this volume.
    #[must_use]
    pub fn new(client: &'a Client, volume: Volume) -> Self {
        Self {
            client,
            volume,
            repeated: 0,
        }
    }

    fn once(&self, call: Call) -> io::Result<Duration> {
        let Volume {
            id,
            fs_type,
            storage,
            staging,
            target,
        } = &self.volume;
        let capability = || requests::capability(fs_type, Mode::SingleNodeWriter);
        let context = || storage.publish_context();
        match call {
            _ if !self.volume.has(call) => Ok(Duration::ZERO),
            Call::Probe => self.client.probe(),
            Call::Stage => {
                let request = requests::stage(id, context(), staging, capability());
                self.timed(request, async |mut node, request| {
                    node.node_stage_volume(request).await
                })
            }
            Call::Publish => {
                let request = csi::NodePublishVolumeRequest {
                    volume_context: storage.volume_context(),
                    ..requests::publish(id, context(), staging, target, capability())
                };
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
