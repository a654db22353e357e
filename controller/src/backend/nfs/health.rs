//! The health of a volume: whether the server shows its directory, and has space for files. Each
//! query is a call of a worker process. Volumes are not listed, since the controller does not know
//! a server until a call contains the server's name.

use super::call::{Done, Free, Work};
use super::id::Place;
use super::measured::{Verb, measured};
use super::{Answer, Nfs, about, mixed_up};
use crate::backend::{Health, UnhealthyPage};
use belay_contract::reason::volume;
use belay_server::call::{Failure, Kind};
use belay_server::health::Conditions;
use belay_server::request::{Secrets, VolumeId};
use std::time::Duration;

/// Deadline of a worker process, which is shorter than the deadline of a read-only RPC.
const INSPECT_MAX: Duration = Duration::from_secs(8);

impl Health for Nfs {
    fn health(&self, id: VolumeId, secrets: Secrets) -> Answer<'_, Option<Conditions>> {
        measured(
            Verb::Health,
            async move { self.inspected(id, &secrets).await },
        )
    }

    fn conditions(&self, volumes: Vec<(VolumeId, u64)>) -> Answer<'_, Vec<Conditions>> {
        measured(Verb::Conditions, async move {
            let mut all = Vec::new();
            for (id, _) in volumes {
                let found = self.inspected(id, &Secrets::default()).await?;
                all.push(found.unwrap_or_default());
            }
            Ok(all)
        })
    }

    fn list_unhealthy(&self, _: Option<String>, _: usize, _: Secrets) -> Answer<'_, UnhealthyPage> {
        Box::pin(async { Err(Failure::unsupported("volumes are not listed")) })
    }
}

impl Nfs {
    async fn inspected(
        &self,
        id: VolumeId,
        secrets: &Secrets,
    ) -> Result<Option<Conditions>, Failure> {
        let Some(place) = Place::of(&id)? else {
            return Ok(None);
        };
        let mount = place.mount(self.config.options(secrets)?);
        let work = Work::Inspect(place.owned(self.config.adopts));
        match self.processes.ask(mount, work, INSPECT_MAX).await {
            Ok(Done::Inspected(free)) => Ok(free.map(judge)),
            Ok(_) => Err(mixed_up()),
            Err(failure) => unanswered(failure)
                .map(Some)
                .map_err(|failure| about(&id, failure)),
        }
    }
}

/// Returns the health of a volume whose directory exists.
fn judge(free: Free) -> Conditions {
    let mut conditions = Conditions::default();
    let lack = match (free.bytes, free.files) {
        (0, _) => "no space",
        (_, Some(0)) => "no inodes",
        _ => return conditions,
    };
    let message = format!(
        "{lack} left for the volume's directory on the server: writes fail with ENOSPC or EDQUOT; \
         delete files, or enlarge the filesystem or the quota"
    );
    conditions.add(volume::SHARE_FULL, message);
    conditions
}

/// Returns the health of a volume whose server does not respond, or refuses the share.
///
/// # Errors
/// Returns the failure if the server was not the cause.
fn unanswered(failure: Failure) -> Result<Conditions, Failure> {
    let of_server = [Kind::Unreachable, Kind::Timeout, Kind::Precondition];
    if !of_server.contains(&failure.kind) {
        return Err(failure);
    }
    let mut conditions = Conditions::default();
    conditions.add(volume::SERVER_UNREACHABLE, failure.message);
    Ok(conditions)
}

#[cfg(test)]
mod tests {
    use super::super::tests::nfs;
    use super::*;
    use belay_server::health::Reason;

    fn reasons(conditions: &Conditions) -> Vec<Reason> {
        conditions.iter().map(|it| it.reason).collect()
    }

    #[test]
    fn a_directory_without_bytes_or_inodes_is_full() {
        for (bytes, files, expected) in [
            (4096, Some(1), &[][..]),
            (4096, None, &[]),
            (0, Some(1), &[volume::SHARE_FULL]),
            (0, None, &[volume::SHARE_FULL]),
            (4096, Some(0), &[volume::SHARE_FULL]),
        ] {
            let found = judge(Free { bytes, files });
            assert_eq!(reasons(&found), expected, "{bytes} {files:?}");
        }
    }

    #[test]
    fn only_a_failure_of_the_server_is_a_condition() {
        let failed = |kind| unanswered(Failure::new(kind, "why"));
        for kind in [Kind::Unreachable, Kind::Timeout, Kind::Precondition] {
            let conditions = failed(kind).unwrap();
            assert_eq!(reasons(&conditions), [volume::SERVER_UNREACHABLE]);
        }
        for kind in [Kind::Busy, Kind::Invalid, Kind::System, Kind::Bug] {
            assert_eq!(failed(kind).unwrap_err().kind, kind);
        }
    }

    #[tokio::test]
    async fn an_id_of_no_driver_does_not_exist_and_volumes_are_not_listed() {
        let nfs = nfs();
        let health: &dyn Health = &nfs;
        let unknown = VolumeId::new("x").unwrap();
        let found = health.health(unknown, Secrets::default()).await;
        assert_eq!(found, Ok(None));
        let listed = health.list_unhealthy(None, 1, Secrets::default()).await;
        assert_eq!(listed.unwrap_err().kind, Kind::Unsupported);
    }
}
