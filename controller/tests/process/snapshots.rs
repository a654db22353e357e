//! Snapshots and clones through the socket: codes and responses.

use crate::bed::{
    Bed, Client, MIB, NODE, ROOMY, assert_refused, clone, create, created, cut, one_volume, place,
    range, ready, requisite, restore, snapshot,
};
use belay_bed::requests;
use belay_proto::csi::v1 as csi;
use csi::volume_content_source::Type as Source;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt as _;
use tonic::Code;

async fn get(client: &mut Client, id: &str) -> Result<csi::Snapshot, tonic::Status> {
    let request = csi::GetSnapshotRequest {
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    let answer = client.get_snapshot(request).await?;
    Ok(answer.into_inner().snapshot.unwrap())
}

async fn list(
    client: &mut Client,
    request: csi::ListSnapshotsRequest,
) -> Result<(Vec<String>, String), tonic::Status> {
    let page = client.list_snapshots(request).await?.into_inner();
    let ids = page
        .entries
        .into_iter()
        .map(|entry| entry.snapshot.unwrap().snapshot_id);
    Ok((ids.collect(), page.next_token))
}

#[tokio::test]
async fn a_snapshot_is_told_alike_by_every_call_and_its_instant_never_changes() {
    let bed = Bed::new(&ROOMY);
    let volume;
    let snapshot_id;
    let first;
    {
        let _controller = bed.start();
        let mut client = bed.client().await;
        volume = created(&mut client, create("pvc-1", 5 * MIB)).await;
        first = ready(&mut client, snapshot("snap", &volume.volume_id)).await;
        assert_eq!(first.size_bytes, 5 * MIB);
        assert_eq!(first.source_volume_id, volume.volume_id);
        snapshot_id = first.snapshot_id.clone();
    }
    let _controller = bed.start();
    let mut client = bed.client().await;
    let again = cut(&mut client, snapshot("snap", &volume.volume_id)).await;
    assert_eq!(again, first);
    assert_eq!(get(&mut client, &snapshot_id).await.unwrap(), first);
    for _ in 0..2 {
        client
            .delete_snapshot(requests::discard(&snapshot_id))
            .await
            .unwrap();
    }
    let gone = get(&mut client, &snapshot_id).await.unwrap_err();
    assert_refused(&gone, Code::NotFound, &[&snapshot_id]);
}

#[tokio::test]
async fn what_no_snapshot_can_be_is_refused() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let one = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    let other = created(&mut client, create("pvc-2", MIB)).await.volume_id;
    cut(&mut client, snapshot("snap", &one)).await;
    let strange = csi::CreateSnapshotRequest {
        parameters: [("speed".to_owned(), "fast".to_owned())].into(),
        ..snapshot("strange", &one)
    };
    for (request, code, name) in [
        (snapshot("snap", &other), Code::AlreadyExists, one.as_str()),
        (snapshot("new", "vol-0"), Code::NotFound, "vol-0"),
        (strange, Code::InvalidArgument, "\"speed\""),
    ] {
        let refused = client.create_snapshot(request).await.unwrap_err();
        assert_refused(&refused, code, &[name]);
    }
}

#[tokio::test]
async fn a_snapshot_is_where_its_volume_is_and_refused_elsewhere() {
    let bed = Bed::new(&["--overcommit", "1000", "--with-topology"]);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let volume = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    let of = |nodes: &[&str]| csi::CreateSnapshotRequest {
        accessibility_requirements: requisite(nodes),
        ..snapshot("snap", &volume)
    };
    let refused = client.create_snapshot(of(&["elsewhere"])).await;
    let code = Code::ResourceExhausted;
    assert_refused(&refused.unwrap_err(), code, &["requisite", NODE, &volume]);
    let made = cut(&mut client, of(&["elsewhere", NODE])).await;
    assert_eq!(made.accessible_topology, [place(NODE)]);
}

#[tokio::test]
async fn lists_filter_by_volume_and_by_snapshot_and_have_pages() {
    let bed = Bed::new(&ROOMY);
    let _controller = bed.start();
    let mut client = bed.client().await;
    let one = created(&mut client, create("pvc-1", MIB)).await.volume_id;
    let other = created(&mut client, create("pvc-2", MIB)).await.volume_id;
    let mut of_one = Vec::new();
    for n in 0..3 {
        let snapshot = ready(&mut client, snapshot(&format!("one-{n}"), &one)).await;
        of_one.push(snapshot.snapshot_id);
    }
    let of_other = ready(&mut client, snapshot("other", &other))
        .await
        .snapshot_id;
    of_one.sort();
    let request = |source: &str, id: &str| csi::ListSnapshotsRequest {
        source_volume_id: source.to_owned(),
        snapshot_id: id.to_owned(),
        ..Default::default()
    };
    let found = of_one[0].clone();
    for (source, id, expected) in [
        (one.as_str(), "", of_one.clone()),
        (other.as_str(), "", vec![of_other.clone()]),
        ("vol-0", "", vec![]),
        ("", found.as_str(), vec![found.clone()]),
        (one.as_str(), found.as_str(), vec![found.clone()]),
        (other.as_str(), found.as_str(), vec![]),
        ("", "snap-0", vec![]),
    ] {
        let listed = list(&mut client, request(source, id)).await.unwrap();
        assert_eq!(listed, (expected, String::new()), "{source} {id}");
    }
    let paged = |token: &str| csi::ListSnapshotsRequest {
        max_entries: 2,
        starting_token: token.to_owned(),
        ..request(&one, "")
    };
    let (first, token) = list(&mut client, paged("")).await.unwrap();
    assert_eq!(first, of_one[..2]);
    let (second, end) = list(&mut client, paged(&token)).await.unwrap();
    assert_eq!((second.as_slice(), end.as_str()), (&of_one[2..], ""));
    let with_id = csi::ListSnapshotsRequest {
        starting_token: token,
        ..request("", &found)
    };
    for request in [paged("nonsense"), with_id] {
        let refused = list(&mut client, request).await.unwrap_err();
        assert_refused(&refused, Code::Aborted, &["starting_token"]);
    }
}

#[tokio::test]
async fn a_copy_tells_its_source_and_is_as_large_or_larger() {
    let (bed, _controller, mut client, id) = one_volume(5 * MIB).await;
    let path = bed.volumes_dir().join(&id);
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(b"data", MIB.unsigned_abs()).unwrap();
    drop(file);
    bed.begin_use(&id);
    let snapshot = ready(&mut client, snapshot("snap", &id)).await.snapshot_id;
    let unsized_clone = csi::CreateVolumeRequest {
        capacity_range: None,
        ..clone("unsized", MIB, &id)
    };
    for (request, bytes) in [
        (restore("equal", 5 * MIB, &snapshot), 5 * MIB),
        (restore("larger", 9 * MIB, &snapshot), 9 * MIB),
        (clone("clone", 9 * MIB, &id), 9 * MIB),
        (unsized_clone, 5 * MIB),
    ] {
        let source = request.volume_content_source.clone();
        let made = created(&mut client, request.clone()).await;
        assert_eq!(
            (made.capacity_bytes, &made.content_source),
            (bytes, &source)
        );
        assert_eq!(created(&mut client, request).await, made);
        let file = std::fs::read(bed.volumes_dir().join(&made.volume_id)).unwrap();
        assert_eq!(file.len(), usize::try_from(bytes).unwrap());
        assert_eq!(&file[1 << 20..][..4], b"data");
        assert!(!bed.is_new(&made.volume_id));
    }
    let smaller = csi::CreateVolumeRequest {
        capacity_range: range(4 * MIB, 0),
        ..clone("smaller", MIB, &id)
    };
    for (request, code, name) in [
        (
            restore("small", 4 * MIB, &snapshot),
            Code::OutOfRange,
            "5 MiB",
        ),
        (smaller, Code::OutOfRange, "5 MiB"),
        (restore("lost", 5 * MIB, "snap-0"), Code::NotFound, "snap-0"),
        (clone("lost", 5 * MIB, "vol-0"), Code::NotFound, "vol-0"),
        (
            create("equal", 5 * MIB),
            Code::AlreadyExists,
            "created from",
        ),
        (
            clone("equal", 5 * MIB, &id),
            Code::AlreadyExists,
            "created from",
        ),
    ] {
        let refused = client.create_volume(request).await.unwrap_err();
        assert_refused(&refused, code, &[name]);
    }
}

#[tokio::test]
async fn copies_outlive_what_they_were_made_from() {
    let (_bed, _controller, mut client, id) = one_volume(MIB).await;
    let cut = ready(&mut client, snapshot("snap", &id)).await.snapshot_id;
    created(&mut client, clone("clone", MIB, &id)).await;
    let request = requests::delete(&id);
    client.delete_volume(request).await.unwrap();
    let restored = created(&mut client, restore("restored", MIB, &cut)).await;
    client
        .delete_snapshot(requests::discard(&cut))
        .await
        .unwrap();
    let request = requests::get(&restored.volume_id);
    let found = client.controller_get_volume(request).await.unwrap();
    let found = found.into_inner().volume.unwrap();
    let source = found
        .content_source
        .as_ref()
        .unwrap()
        .r#type
        .as_ref()
        .unwrap();
    assert!(matches!(source, Source::Snapshot(from) if from.snapshot_id == cut));
    assert_eq!(
        created(&mut client, restore("restored", MIB, &cut)).await,
        restored
    );
}

/// The size of a volume in bytes, large enough that a kill interrupts a copy if files cannot share
/// blocks.
const COPIED_BYTES: i64 = 96 << 20;

#[tokio::test]
async fn a_copy_cut_short_by_a_kill_is_whole_in_the_end() {
    let (bed, mut controller, _, id) = one_volume(COPIED_BYTES).await;
    let data: Vec<u8> = (0..COPIED_BYTES / 8)
        .flat_map(|n| {
            n.wrapping_mul(0x9e37_79b9_7f4a_7c15_u64.cast_signed())
                .to_le_bytes()
        })
        .collect();
    std::fs::write(bed.volumes_dir().join(&id), &data).unwrap();
    for round in 0..6_u64 {
        let (snap, copy) = (format!("snap-{round}"), format!("copy-{round}"));
        let mut work = tokio::task::JoinSet::new();
        let (mut cutting, mut cloning) = (bed.client().await, bed.client().await);
        let (cut, clone) = (snapshot(&snap, &id), clone(&copy, COPIED_BYTES, &id));
        let (cut_again, clone_again) = (cut.clone(), clone.clone());
        work.spawn(async move { drop(cutting.create_snapshot(cut).await) });
        work.spawn(async move { drop(cloning.create_volume(clone).await) });
        tokio::time::sleep(std::time::Duration::from_millis(7 * round)).await;
        controller.kill();
        work.join_all().await;
        controller = bed.start();
        let mut client = bed.client().await;
        let cut = ready(&mut client, cut_again).await.snapshot_id;
        let made = loop {
            match client.create_volume(clone_again.clone()).await {
                // The copier still has the volume for a moment.
                Err(status) if status.code() == Code::Aborted => {}
                made => break made.unwrap().into_inner().volume.unwrap().volume_id,
            }
        };
        for path in [
            bed.snapshots_dir().join(&cut),
            bed.volumes_dir().join(&made),
        ] {
            assert!(
                std::fs::read(&path).unwrap() == data,
                "round {round}: {path:?}"
            );
        }
        client
            .delete_snapshot(requests::discard(&cut))
            .await
            .unwrap();
        let remove = requests::delete(&made);
        client.delete_volume(remove).await.unwrap();
    }
    assert_eq!(std::fs::read_dir(bed.volumes_dir()).unwrap().count(), 1);
    assert_eq!(std::fs::read_dir(bed.snapshots_dir()).unwrap().count(), 0);
}
