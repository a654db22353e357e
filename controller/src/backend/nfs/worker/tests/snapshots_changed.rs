//! Tests snapshots of volumes that change while they are archived.

use super::super::tar::{self, Entry, Type};
use super::killed::fail_look;
use super::slow::{Step, during};
use super::snapshots::{cutting, of_this_user, restored};
use super::*;
use rustix::io::Errno;
use std::cell::Cell;
use std::os::unix::fs::{FileTypeExt as _, symlink};
use std::rc::Rc;

/// Replaces a directory.
type Replace = fn(&Path);

const REPLACEMENTS: [Replace; 5] = [
    |_| {},
    |path| symlink("v2", path).unwrap(),
    |path| fs::write(path, "file").unwrap(),
    |path| {
        fs::create_dir(path).unwrap();
        fs::write(path.join("new"), "new").unwrap();
    },
    |path| {
        fs::create_dir(path).unwrap();
        symlink("v2", path.join("sub")).unwrap();
    },
];

/// Returns the paths in the archive, without the slash of a directory.
fn paths(share: &Share) -> Vec<String> {
    let file = fs::File::open(share.archive()).unwrap();
    let mut reader = tar::Reader::new(flate2::read::MultiGzDecoder::new(file));
    let mut paths = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        let path = String::from_utf8(entry.path).unwrap();
        paths.push(path.trim_end_matches('/').to_owned());
    }
    paths
}

/// Either an old directory or its replacement is archived and restored unchanged.
#[test]
fn a_directory_that_is_replaced_while_it_is_archived_is_the_old_or_the_new_one() {
    for replace in REPLACEMENTS {
        let mut counts = [0; 2];
        for at in 0.. {
            let share = Share::new();
            share.make_source();
            share.write("from/d/sub/a");
            share.write("from/d/b");
            let replaced = share.path("from/d");
            let looks = Rc::new(Cell::new(0));
            let counted = Rc::clone(&looks);
            let change = move |step| {
                if step == Step::Look && counted.replace(counted.get() + 1) == at {
                    fs::remove_dir_all(&replaced).unwrap();
                    replace(&replaced);
                    // With NFS, accesses to a file that is removed while it is open fail with
                    // ESTALE.
                    fail_look(0, Errno::STALE);
                }
            };
            if let Err(failure) = during(change, || share.cut(&cutting())) {
                // The failed lookup was for the volume's directory, so the server seems to have
                // removed the volume.
                assert_eq!(failure.kind, Kind::Unreachable, "{failure}");
                share.cut(&cutting()).unwrap();
            }
            if looks.get() <= at {
                break;
            }
            let mut all = paths(&share);
            all.sort();
            let count = all.len();
            all.dedup();
            assert_eq!(all.len(), count, "{all:?}");
            let is_old = all.iter().any(|path| path == "d/b");
            let is_mixed = is_old && all.iter().any(|path| path == "d/new");
            assert!(!is_mixed, "{all:?}");
            counts[usize::from(is_old)] += 1;
            share.restore(&restored()).unwrap();
        }
        assert!(counts[0] > 5 && counts[1] > 5, "{counts:?}");
    }
}

/// Returns more content than one read returns. The content contains no zeros, and is not
/// compressible.
fn large() -> Vec<u8> {
    let mut state = 1_u32;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0] | 1
    };
    (0..5 << 18).map(next).collect()
}

/// Changes the size of a file each time the worker writes to the archive. Returns the restored
/// file.
fn cut_while(mut change: impl FnMut(&fs::File) + 'static) -> Vec<u8> {
    let share = Share::new();
    share.make_source();
    let path = share.path("from/large");
    fs::write(&path, large()).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    let change = move |step| {
        if step == Step::Change {
            change(&file);
        }
    };
    during(change, || share.cut(&cutting())).unwrap();
    share.restore(&restored()).unwrap();
    fs::read(share.path("ns/copy/large")).unwrap()
}

#[test]
fn a_large_file_that_gets_shorter_is_archived_with_the_size_that_it_has_then() {
    let (whole, short) = (large(), 300 << 10);
    let mut counts = [0; 2];
    for at in (0..).step_by(5) {
        let steps = Rc::new(Cell::new(0));
        let counted = Rc::clone(&steps);
        let found = cut_while(move |file| {
            if counted.replace(counted.get() + 1) == at {
                file.set_len(short as u64).unwrap();
            }
        });
        if steps.get() <= at {
            break;
        }
        let is_whole = found.len() == whole.len();
        assert!(found == whole[..if is_whole { whole.len() } else { short }]);
        counts[usize::from(is_whole)] += 1;
    }
    assert!(counts[0] > 2, "{counts:?}");
}

#[test]
fn a_file_that_gets_shorter_all_the_time_is_archived_nevertheless() {
    let whole = large();
    let length = Cell::new(whole.len());
    let found = cut_while(move |file| {
        length.set(length.get() - 1);
        file.set_len(length.get() as u64).unwrap();
    });
    let data = found.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    assert!(found.len() < whole.len() && data < found.len(), "{data}");
    assert!(found[..data] == whole[..data]);
}

/// An archive contains a name twice if a file is replaced while its directory is read.
#[test]
fn of_a_name_that_an_archive_of_belay_has_twice_the_later_one_counts() {
    let share = Share::new();
    share.make_source();
    share.cut(&cutting()).unwrap();
    let entry = |kind, path: &str| Entry {
        path: path.as_bytes().to_vec(),
        kind,
        target: b"v2".to_vec(),
        mode: 0o755,
        ..of_this_user()
    };
    let all = [
        entry(Type::Directory, "d/"),
        entry(Type::File, "d/a"),
        entry(Type::Symlink, "d"),
        entry(Type::Directory, "e/"),
        entry(Type::File, "e/a"),
        entry(Type::Fifo, "e"),
        entry(Type::Symlink, "f"),
        entry(Type::Directory, "f/"),
        entry(Type::File, "f/a"),
        entry(Type::Directory, "g/"),
        entry(Type::File, "g"),
    ];
    let mut content: Vec<u8> = all.iter().flat_map(tar::head).collect();
    content.extend_from_slice(&tar::END);
    write_marked(&share, &content);
    share.restore(&restored()).unwrap();
    let copy = share.path("ns/copy");
    assert_eq!(names(&copy), ["d", "e", "f", "g"]);
    assert_eq!(fs::read_link(copy.join("d")).unwrap(), Path::new("v2"));
    let kind = fs::symlink_metadata(copy.join("e")).unwrap().file_type();
    assert!(kind.is_fifo());
    assert_eq!(names(&copy.join("f")), ["a"]);
    assert!(copy.join("g").is_file());
    // Belay never writes a path that leads through a link.
    let hostile = [entry(Type::Symlink, "d"), entry(Type::File, "d/a")];
    let content: Vec<u8> = hostile.iter().flat_map(tar::head).collect();
    write_marked(&share, &content);
    let volume = old(&restored().volume, OnDelete::Delete);
    share.delete(&volume).unwrap();
    let words = "through a link or a file";
    refused(share.restore(&restored()), Kind::Precondition, words);
    share.assert_outside();
}

/// Replaces the content of the archive, but keeps the mark in its header.
fn write_marked(share: &Share, content: &[u8]) {
    let comment = format!("Belay snapshot of {}", super::snapshots::VOLUME);
    let file = fs::File::create(share.archive()).unwrap();
    let builder = flate2::GzBuilder::new().comment(comment.into_bytes());
    let mut encoder = builder.write(file, flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, content).unwrap();
    encoder.finish().unwrap();
}
