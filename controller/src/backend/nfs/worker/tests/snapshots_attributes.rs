//! Tests extended attributes and holes in snapshots.

use super::super::tar::{self, Entry, Type};
use super::copied::order;
use super::snapshots::{cutting, of_this_user, restored};
use super::*;
use rustix::fs::XattrFlags;
use std::os::unix::fs::FileExt as _;

fn attribute(number: usize) -> String {
    format!("user.{number}{}", "=".repeat(100))
}

fn extend(path: &Path, count: usize) {
    for number in 0..count {
        let (name, value) = (attribute(number), vec![b'v'; 60_000]);
        rustix::fs::setxattr(path, name, &value, XattrFlags::empty()).unwrap();
    }
}

/// Returns the number of attributes that are unchanged.
fn extended(path: &Path, count: usize) -> usize {
    let mut value = vec![0; 1 << 16];
    let mut has = |number| {
        let length = rustix::fs::getxattr(path, attribute(number), &mut value[..]);
        matches!(length, Ok(60_000)) && value[..60_000].iter().all(|byte| *byte == b'v')
    };
    (0..count).filter(|number| has(*number)).count()
}

#[test]
fn more_attributes_than_other_programs_read_are_cloned_and_not_archived() {
    for path in ["a/b", "a/b/file"] {
        let share = Share::new();
        share.make_source();
        extend(&share.path("from").join(path), 8);
        share.cut(&cutting()).unwrap();
        share.restore(&restored()).unwrap();
        assert_eq!(extended(&share.path("ns/copy").join(path), 9), 8);
        let volume = old(&restored().volume, OnDelete::Delete);
        share.delete(&volume).unwrap();
        fs::remove_dir_all(share.path("cut")).unwrap();
        extend(&share.path("from").join(path), 9);
        let words = format!("\"from/{path}\" in the share: has more than 524288 bytes of extended");
        refused(share.cut(&cutting()), Kind::Precondition, &words);
        assert!(!share.path("cut").exists());
        assert_eq!(names(&share.path(".belay/snapshots")), [""; 0]);
        share.copy(&order()).unwrap();
        assert_eq!(extended(&share.path("ns/copy").join(path), 9), 9);
    }
}

#[test]
fn the_later_attribute_of_a_name_counts_and_one_that_linux_does_not_have_is_refused() {
    let share = Share::new();
    share.make_source();
    let with = |values: &[&[u8]]| {
        let values = values.iter();
        let entry = Entry {
            path: b"d/".to_vec(),
            kind: Type::Directory,
            mode: 0o755,
            attributes: values
                .map(|value| (b"user.x".to_vec(), value.to_vec()))
                .collect(),
            ..of_this_user()
        };
        fs::create_dir_all(share.path("cut")).unwrap();
        let archive = [tar::head(&entry), tar::END.to_vec()].concat();
        fs::write(share.path("cut/pvc-1.tar"), archive).unwrap();
        share.restore(&restored())
    };
    let words = "has an attribute of 65537 bytes, and Linux has at most 65536";
    refused(with(&[&[b'v'; 65_537]]), Kind::Precondition, words);
    with(&[b"first", b"last"]).unwrap();
    let mut value = [0; 8];
    let length = rustix::fs::getxattr(share.path("ns/copy/d"), "user.x", &mut value[..]);
    assert_eq!(&value[..length.unwrap()], b"last");
}

/// If a file has very many holes, some of its holes are archived as data.
#[test]
fn the_segments_of_a_file_are_not_more_than_other_programs_read() {
    let share = Share::new();
    share.make_source();
    let file = fs::File::create(share.path("from/sparse")).unwrap();
    for number in 0..60_000_u64 {
        file.write_all_at(b"x", (1 << 40) + (number << 13)).unwrap();
    }
    share.cut(&cutting()).unwrap();
    let archive = fs::File::open(share.archive()).unwrap();
    let mut reader = tar::Reader::new(flate2::read::MultiGzDecoder::new(archive));
    let segments = loop {
        let entry = reader.next().unwrap().unwrap();
        if entry.path == b"sparse" {
            assert!(tar::head(&entry).len() < 1 << 20);
            break entry.segments.unwrap();
        }
    };
    assert_eq!(segments.len(), 1 << 14);
    assert_eq!(segments.last().map(|last| last.offset >> 40), Some(1));
}
