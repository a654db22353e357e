//! Tests archives that are damaged or hostile.

use super::super::tar::{self, Entry, Segment, Type};
use super::snapshots::{cutting, of_this_user, restoring};
use super::*;
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

fn order() -> super::super::super::call::Restoring {
    restoring(volume("copy", "pvc-2"))
}

fn entry(kind: Type, path: &[u8], target: &[u8]) -> Entry {
    Entry {
        path: path.to_vec(),
        kind,
        target: target.to_vec(),
        mode: 0o755,
        ..of_this_user()
    }
}

fn file(path: &[u8], size: u64) -> Entry {
    Entry {
        size,
        ..entry(Type::File, path, b"")
    }
}

/// Returns an archive of these entries. The content of each file is `x`.
fn archive(entries: &[Entry]) -> Vec<u8> {
    let mut archive = Vec::new();
    for entry in entries {
        archive.extend_from_slice(&tar::head(entry));
        let stored = if entry.kind == Type::File {
            entry.stored()
        } else {
            0
        };
        archive.resize(archive.len() + usize::try_from(stored).unwrap(), b'x');
        archive.resize(archive.len() + tar::padding(stored), 0);
    }
    archive.extend_from_slice(&tar::END);
    archive
}

/// Creates a share with a snapshot that another program has created.
fn with(archive: &[u8]) -> Share {
    let share = Share::new();
    share.make_source();
    fs::create_dir(share.path("cut")).unwrap();
    let file = fs::File::create(share.path("cut/pvc-1.tar.gz")).unwrap();
    let mut encoder = GzEncoder::new(file, Compression::fast());
    encoder.write_all(archive).unwrap();
    encoder.finish().unwrap();
    share
}

fn assert_nothing_made(share: &Share) {
    assert!(!share.path("copy").exists());
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    assert_eq!(names(&share.path("from")), ["a", "file", "link", "other"]);
    share.assert_outside();
}

#[test]
fn a_path_that_leads_out_of_the_volume_is_refused() {
    let link = |target: &[u8]| entry(Type::Symlink, b"way", target);
    for (entries, words) in [
        (vec![file(b"../x", 1)], "leads out of the volume"),
        (vec![file(b"a/../../x", 1)], "leads out of the volume"),
        (vec![file(b"..", 1)], "leads out of the volume"),
        (vec![file(b"/etc/x", 1)], "is an absolute path"),
        (vec![file(b".", 1)], "is the volume itself"),
        (vec![entry(Type::Directory, b"../x", b"")], "leads out"),
        (vec![entry(Type::Directory, b"/x", b"")], "absolute"),
        (vec![entry(Type::Symlink, b"../x", b"a")], "leads out"),
        (
            vec![link(b"../../../../outside"), file(b"way/x", 1)],
            "through a link or a file",
        ),
        (
            vec![link(b"."), entry(Type::Directory, b"way", b"")],
            "through a link or a file",
        ),
        (
            vec![file(b"way", 1), file(b"way/x", 1)],
            "through a link or a file",
        ),
    ] {
        refused_with(&entries, words);
    }
}

#[track_caller]
fn refused_with(entries: &[Entry], words: &str) {
    let share = with(&archive(entries));
    let result = share.restore(&order());
    refused(result, Kind::Precondition, words);
    assert_nothing_made(&share);
}

#[test]
fn a_link_that_leads_out_of_the_volume_and_what_cannot_be_made_are_refused() {
    let link = |target: &[u8]| entry(Type::Symlink, b"way", target);
    for (entries, words) in [
        (
            vec![entry(Type::Link, b"x", b"../../../../outside/precious")],
            "leads out of the volume",
        ),
        (vec![entry(Type::Link, b"x", b"/etc/passwd")], "absolute"),
        (
            vec![
                link(b"../../../../outside"),
                entry(Type::Link, b"x", b"way/precious"),
            ],
            "through a link or a file",
        ),
        (
            vec![entry(Type::Link, b"x", b"y")],
            "not in the archive before it",
        ),
        (
            vec![entry(Type::Link, b"x", b"y/z")],
            "not in the archive before it",
        ),
        (
            vec![
                entry(Type::Directory, b"d", b""),
                entry(Type::Link, b"x", b"d"),
            ],
            "link to a directory",
        ),
        (
            vec![entry(Type::Directory, b"d", b""), file(b"d", 1)],
            "replaces a directory",
        ),
        (
            vec![
                entry(Type::Directory, b"d", b""),
                entry(Type::Symlink, b"d", b"x"),
            ],
            "replaces a directory",
        ),
        (
            vec![file(&b"d/".repeat(258), 0)],
            "too many directories deep",
        ),
        (vec![file(&[b'n'; 256], 0)], "more than 255 bytes"),
    ] {
        refused_with(&entries, words);
    }
}

/// Like other programs, Belay uses the later entry. A link is replaced and not followed.
#[test]
fn a_file_in_the_place_of_a_link_is_a_file() {
    let share = with(&archive(&[
        entry(Type::Symlink, b"x", b"../../../../outside/precious"),
        file(b"./x", 3),
        file(b"y", 1),
        entry(Type::Link, b"z", b"./y"),
        entry(Type::Link, b"y", b"z"),
        entry(Type::Symlink, b"y", b"x"),
    ]));
    share.restore(&order()).unwrap();
    // The archive has no entry for the directory of the volume.
    let mode = fs::metadata(share.path("copy")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o755);
    assert_eq!(fs::read(share.path("copy/x")).unwrap(), b"xxx");
    assert_eq!(fs::read(share.path("copy/z")).unwrap(), b"x");
    assert_eq!(fs::read_link(share.path("copy/y")).unwrap(), Path::new("x"));
    share.assert_outside();
}

#[test]
fn an_archive_with_a_hole_in_the_place_of_a_head_is_damaged() {
    let mut archive = archive(&[file(b"x", 3), file(b"y", 1)]);
    let second = 1024;
    archive[second..second + 512].fill(0);
    let share = with(&archive);
    let words = "something follows after its end";
    refused(share.restore(&order()), Kind::Precondition, words);
    assert_nothing_made(&share);
    refused(share.cut(&cutting()), Kind::Precondition, words);
}

#[test]
fn names_of_attributes_that_are_no_text_are_kept() {
    let mut named = file(b"x", 1);
    named.attributes = vec![
        (b"user.\xff".to_vec(), b"1".to_vec()),
        (b"user.\xfe".to_vec(), b"2".to_vec()),
    ];
    let mut reader = tar::Reader::new(&*archive(&[named.clone()]).leak());
    let found = reader.next().ok().flatten().unwrap();
    assert_eq!(found.attributes, named.attributes);
}

#[test]
fn an_archive_that_is_larger_than_the_server_is_refused_before_it_fills_it() {
    let large = |segments| Entry {
        segments,
        ..file(b"large", 1 << 50)
    };
    let all = Segment {
        offset: 0,
        length: 1 << 50,
    };
    let mut archive = tar::head(&large(Some(vec![all])));
    archive.resize(archive.len() + (1 << 20), b'x');
    let share = with(&archive);
    let words = "has 1 PiB, and the server's filesystem has";
    refused(share.restore(&order()), Kind::Quota, words);
    assert_nothing_made(&share);
    // A file that may contain only zeros takes up no space, so it is not refused; but the archive
    // is not complete.
    let share = with(&tar::head(&large(None)));
    refused(share.restore(&order()), Kind::Precondition, "not complete");
    assert_nothing_made(&share);
}

#[test]
fn an_archive_of_belay_that_is_cut_or_changed_is_not_restored() {
    let share = Share::new();
    share.make_source();
    fs::write(share.path("from/large"), vec![7; 300 << 10]).unwrap();
    share.cut(&cutting()).unwrap();
    let path = share.path("cut/pvc-1.tar.gz");
    let whole = fs::read(&path).unwrap();
    let step = whole.len() / 40;
    for length in (0..whole.len()).step_by(step).chain([whole.len() - 1]) {
        fs::write(&path, &whole[..length]).unwrap();
        let result = share.restore(&order());
        assert_eq!(result.unwrap_err().kind, Kind::Precondition, "{length}");
        assert!(!share.path("copy").exists());
    }
    let mut refusals = 0;
    // Changes bytes after the header, which has the ID of the volume.
    for at in (80..whole.len()).step_by(step) {
        let mut changed = whole.clone();
        changed[at] ^= 0x55;
        fs::write(&path, &changed).unwrap();
        match share.restore(&order()) {
            // The times in the headers of the gzip members are not checked.
            Ok(_) => {
                assert_eq!(
                    fs::read(share.path("copy/large")).unwrap(),
                    vec![7; 300 << 10]
                );
                share
                    .delete(&old(&order().volume, OnDelete::Delete))
                    .unwrap();
            }
            Err(failure) => {
                assert_eq!(failure.kind, Kind::Precondition, "{at}: {failure}");
                refusals += 1;
            }
        }
        assert!(!share.path("copy").exists());
    }
    assert!(refusals > 20, "{refusals}");
    fs::write(&path, &whole).unwrap();
    share.restore(&order()).unwrap();
    assert_eq!(
        fs::read(share.path("copy/large")).unwrap(),
        vec![7; 300 << 10]
    );
}
