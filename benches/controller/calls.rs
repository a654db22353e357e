//! The sidecars' calls to one controller, on a connection that is kept open, as sidecars do.

use std::io;
use std::time::Duration;

use belay_bed::requests;
use belay_benches::{Kept, with_deadline};
use belay_proto::csi::v1 as csi;
use csi::controller_client::ControllerClient;
use csi::volume_capability::access_mode::Mode;
use tonic::transport::Channel;

const MIB: i64 = 1 << 20;
/// The number of entries of a page of ListVolumes.
const PAGE: i32 = 100;

fn capability() -> csi::VolumeCapability {
    requests::capability("ext4", Mode::SingleNodeWriter)
}

fn create(name: &str) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        capacity_range: requests::range(MIB, 0),
        ..requests::create(name, capability(), None)
    }
}

/// Creates `count` volumes, `width` of them concurrently, and returns the time of each call.
///
/// # Errors
/// Fails if a call fails.
pub(crate) fn fill(
    kept: &Kept<'_>,
    name: &str,
    width: usize,
    count: usize,
) -> io::Result<Vec<Duration>> {
    kept.at_once(width, 0..count, |channel, number| {
        let request = with_deadline(create(&format!("{name}-{number}")));
        async move {
            let mut controller = ControllerClient::new(channel);
            controller.create_volume(request).await.map(drop)
        }
    })
}

/// The lifecycle of one volume, with queries about all volumes.
pub(crate) struct Life<'a> {
    pub(crate) kept: &'a Kept<'a>,
    /// The ID of the volume, once it was created.
    pub(crate) id: String,
}

/// The calls of a lifecycle, in order.
pub(crate) const CALLS: [&str; 4] = ["create", "capacity", "list 100", "delete"];

impl Life<'_> {
    /// Makes a call for the volume with this name, and returns its time.
    ///
    /// # Errors
    /// Fails if the call fails.
    pub(crate) fn run(&mut self, call: &str, name: &str) -> io::Result<Duration> {
        let (kept, id) = (self.kept, self.id.as_str());
        let client = |channel: Channel| ControllerClient::new(channel);
        let took = |(took, _): (Duration, ())| took;
        match call {
            "create" => {
                let (took, created) = kept.call(create(name), async |channel, request| {
                    client(channel).create_volume(request).await
                })?;
                self.id = created.volume.unwrap_or_default().volume_id;
                Ok(took)
            }
            "delete" => kept
                .call(requests::delete(id), async |channel, request| {
                    client(channel).delete_volume(request).await.map(nothing)
                })
                .map(took),
            "capacity" => kept
                .call(
                    csi::GetCapacityRequest::default(),
                    async |channel, request| {
                        client(channel).get_capacity(request).await.map(nothing)
                    },
                )
                .map(took),
            _ => self.list(),
        }
    }

    fn list(&self) -> io::Result<Duration> {
        let request = csi::ListVolumesRequest {
            max_entries: PAGE,
            ..Default::default()
        };
        let (took, page) = self.kept.call(request, async |channel, request| {
            ControllerClient::new(channel).list_volumes(request).await
        })?;
        match page.entries.len() == usize::try_from(PAGE).unwrap_or(0) {
            true => Ok(took),
            false => Err(io::Error::other("a page of ListVolumes is not full")),
        }
    }
}

fn nothing<T>(answer: tonic::Response<T>) -> tonic::Response<()> {
    answer.map(drop)
}
