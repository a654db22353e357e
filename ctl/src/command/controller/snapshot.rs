//! Calls about snapshots: create, delete, list, get.

use belay_proto::csi::v1::{
    CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest,
    Snapshot,
};

use crate::access::{Pair, map};
use crate::command::controller::Call;
use crate::failure::Failure;
use crate::render::{Answer, Cell};

impl Call<'_> {
    pub(super) async fn snapshot_create(
        mut self,
        name: String,
        source_volume_id: String,
        parameters: Vec<Pair>,
    ) -> Result<Answer, Failure> {
        let request = CreateSnapshotRequest {
            name,
            source_volume_id,
            parameters: map(parameters),
            ..Default::default()
        };
        let made = self
            .target
            .wait_for(self.client.create_snapshot(request))
            .await?;
        Ok(snapshot(made.snapshot.unwrap_or_default()))
    }

    pub(super) async fn snapshot_delete(mut self, snapshot_id: String) -> Result<Answer, Failure> {
        let request = DeleteSnapshotRequest {
            snapshot_id,
            ..Default::default()
        };
        self.target
            .wait_for(self.client.delete_snapshot(request))
            .await?;
        Ok(Answer::Done)
    }

    pub(super) async fn snapshot_list(
        mut self,
        request: ListSnapshotsRequest,
    ) -> Result<Answer, Failure> {
        let page = self
            .target
            .wait_for(self.client.list_snapshots(request))
            .await?;
        let rows = page.entries.into_iter().map(|entry| {
            let fields = cells(entry.snapshot.unwrap_or_default());
            fields.into_iter().map(|(_, cell)| cell).collect()
        });
        Ok(Answer::Rows {
            name: "snapshots",
            columns: &COLUMNS,
            rows: rows.collect(),
            next_token: page.next_token,
        })
    }

    pub(super) async fn snapshot_get(mut self, snapshot_id: String) -> Result<Answer, Failure> {
        let request = GetSnapshotRequest {
            snapshot_id,
            ..Default::default()
        };
        let found = self
            .target
            .wait_for(self.client.get_snapshot(request))
            .await?;
        Ok(snapshot(found.snapshot.unwrap_or_default()))
    }
}

const COLUMNS: [&str; 5] = [
    "snapshot_id",
    "source_volume_id",
    "size_bytes",
    "creation_time",
    "ready_to_use",
];

fn snapshot(snapshot: Snapshot) -> Answer {
    Answer::Record(cells(snapshot))
}

/// In the order of [`COLUMNS`].
fn cells(snapshot: Snapshot) -> Vec<(&'static str, Cell)> {
    // RFC 3339, as in the type's JSON mapping.
    let created = snapshot.creation_time.map(|time| time.to_string());
    let cells = [
        Cell::Text(snapshot.snapshot_id),
        Cell::Text(snapshot.source_volume_id),
        Cell::Bytes(snapshot.size_bytes),
        Cell::Text(created.unwrap_or_default()),
        Cell::Flag(snapshot.ready_to_use),
    ];
    COLUMNS.into_iter().zip(cells).collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn the_time_of_a_snapshot_is_shown_in_rfc_3339() {
        let cut = UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let fields = cells(Snapshot {
            creation_time: Some(cut.into()),
            ..Default::default()
        });
        let shown = Cell::Text("2001-09-09T01:46:40Z".to_owned());
        assert_eq!(fields[3], ("creation_time", shown));
    }
}
