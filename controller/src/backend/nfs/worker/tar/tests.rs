//! Tests that archives are read as they were written, and that garbage is refused.

use super::*;
use std::io::Read as _;

fn written(entries: &[(Entry, &[u8])]) -> Vec<u8> {
    let mut archive = Vec::new();
    for (entry, content) in entries {
        archive.extend_from_slice(&head(entry));
        archive.extend_from_slice(content);
        archive.resize(archive.len() + padding(content.len() as u64), 0);
    }
    archive.extend_from_slice(&END);
    archive
}

fn read(archive: &[u8]) -> Result<Vec<(Entry, Vec<u8>)>, Flaw> {
    let mut reader = Reader::new(archive);
    let mut found = Vec::new();
    while let Some(entry) = reader.next()? {
        let mut content = Vec::new();
        let mut buffer = [0; 100];
        loop {
            match reader.read(&mut buffer)? {
                0 => break,
                read => content.extend_from_slice(&buffer[..read]),
            }
        }
        found.push((entry, content));
    }
    reader.end()?;
    Ok(found)
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let long = b"directory/".repeat(30);
    let times = [(0, 0), (1, 5), (-1, 0), (-2, 500_000_000), (1 << 40, 1)];
    let mut entries: Vec<(Entry, &[u8])> = Vec::new();
    for (seconds, nanoseconds) in times {
        let time = Time {
            seconds,
            nanoseconds,
        };
        entries.push((
            Entry {
                path: b"file".to_vec(),
                mode: 0o4711,
                user: 4_000_000_000,
                group: 1234,
                modified: time,
                accessed: Some(time),
                size: 7,
                links: Some("1a.2-f".to_owned()),
                ..Entry::default()
            },
            b"content",
        ));
    }
    for (kind, target) in [
        (Type::Symlink, &long[..]),
        (Type::Symlink, b"not \xff utf-8"),
        (Type::Link, b"file"),
        (Type::Fifo, b""),
    ] {
        let path = [&long[..], b"\xff"].concat();
        let target = target.to_vec();
        let entry = Entry {
            path,
            kind,
            target,
            ..Entry::default()
        };
        entries.push((entry, b""));
    }
    check(&entries);
}

#[track_caller]
fn check(entries: &[(Entry, &[u8])]) {
    let found = read(&written(entries)).unwrap();
    assert_eq!(found.len(), entries.len());
    for ((entry, content), (expected, written)) in found.iter().zip(entries) {
        assert_eq!((entry, &content[..]), (expected, *written));
    }
}

#[test]
fn devices_attributes_and_holes_are_read_as_they_were_written() {
    let long = b"directory/".repeat(30);
    let device = Entry {
        path: b"device".to_vec(),
        kind: Type::Character,
        device: (8, 1 << 19),
        ..Entry::default()
    };
    let directory = Entry {
        path: long.clone(),
        kind: Type::Directory,
        attributes: vec![
            (b"user.a=b%c".to_vec(), b"\0\n=".to_vec()),
            (b"user.empty".to_vec(), Vec::new()),
        ],
        ..Entry::default()
    };
    let sparse = Entry {
        path: [&long[..], b"x"].concat(),
        size: 1 << 40,
        segments: Some(vec![
            Segment {
                offset: 5,
                length: 3,
            },
            Segment {
                offset: 1 << 39,
                length: 600,
            },
        ]),
        ..Entry::default()
    };
    let hole = Entry {
        path: b"hole".to_vec(),
        size: 9,
        segments: Some(Vec::new()),
        ..Entry::default()
    };
    check(&[
        (device, &b""[..]),
        (directory, b""),
        (sparse, &[b'x'; 603]),
        (hole, b""),
    ]);
}

#[test]
fn a_file_of_more_than_eight_gigabytes_has_its_size() {
    let entry = Entry {
        path: b"x".to_vec(),
        size: 1 << 40,
        ..Entry::default()
    };
    let archive = head(&entry);
    let found = Reader::new(&archive[..]).next().unwrap().unwrap();
    assert_eq!(found, entry);
}

#[test]
fn content_that_is_not_read_is_passed_over() {
    let file = |path: &[u8], size| Entry {
        path: path.to_vec(),
        size,
        ..Entry::default()
    };
    let archive = written(&[(file(b"a", 600), &[1; 600]), (file(b"b", 0), b"")]);
    let mut reader = Reader::new(&archive[..]);
    assert_eq!(reader.next().unwrap().unwrap().path, b"a");
    assert_eq!(reader.read(&mut [0; 7]).unwrap(), 7);
    assert_eq!(reader.next().unwrap().unwrap().path, b"b");
    assert!(reader.next().unwrap().is_none());
}

/// After any change of an archive, reading ends without a panic and without much memory.
#[test]
fn any_change_of_an_archive_is_read_or_refused() {
    let entry = Entry {
        path: b"some/".repeat(40),
        size: 700,
        segments: Some(vec![Segment {
            offset: 100,
            length: 600,
        }]),
        attributes: vec![(b"user.x".to_vec(), b"value".to_vec())],
        ..Entry::default()
    };
    let archive = written(&[(entry, &[9; 600])]);
    let mut refused = 0;
    for at in 0..archive.len() {
        for change in [0x01, 0x20, 0x80, 0xff] {
            let mut changed = archive.clone();
            changed[at] ^= change;
            refused += usize::from(read(&changed).is_err());
        }
        let length = archive.len() - 1 - at;
        if length <= archive.len() - 2 * BLOCK {
            assert!(read(&archive[..length]).is_err(), "{length}");
        }
    }
    assert!(refused > 2000, "{refused}");
}

fn block(flag: u8, size: u64) -> Vec<u8> {
    let header = block::Header {
        name: b"x".to_vec(),
        flag,
        size,
        ..block::Header::default()
    };
    header.block().to_vec()
}

#[test]
fn sizes_that_are_too_large_are_refused_before_they_are_read() {
    for flag in [b'x', b'L', b'K', b'g'] {
        let archive = block(flag, 1 << 32);
        let wrong = read(&archive).unwrap_err();
        assert!(matches!(wrong, Flaw::Refused(_)), "{flag} {wrong:?}");
    }
    let records = b"31 size=9223372036854775808000\n";
    for records in [&records[..], b"28 size=9223372036854775808\n"] {
        let mut archive = block(b'x', records.len() as u64);
        archive.extend_from_slice(records);
        archive.resize(2 * BLOCK, 0);
        archive.extend(block(b'0', 0));
        let wrong = read(&archive).unwrap_err();
        assert!(matches!(wrong, Flaw::Damaged(_)), "{wrong:?}");
    }
    for (flag, words) in [(b'S', "type 'S'"), (b'M', "type 'M'"), (b'Z', "type 'Z'")] {
        let wrong = read(&block(flag, 0)).unwrap_err();
        assert!(
            matches!(&wrong, Flaw::Refused(why) if why.contains(words)),
            "{wrong:?}"
        );
    }
    let mut io = std::io::repeat(1).take(5000);
    assert!(matches!(Reader::new(&mut io).next(), Err(Flaw::Damaged(_))));
}

fn described(flag: u8, content: &[u8]) -> Vec<u8> {
    let mut all = block(flag, content.len() as u64);
    all.extend_from_slice(content);
    all.resize(all.len().next_multiple_of(BLOCK), 0);
    all
}

#[track_caller]
fn is_refused(archive: &[u8], words: &str) {
    let wrong = read(archive).unwrap_err();
    assert!(
        matches!(&wrong, Flaw::Refused(why) if why.contains(words)),
        "{wrong:?}"
    );
}

/// Without a limit, the reader would read any number of headers before a file, which compress well.
#[test]
fn a_file_that_many_headers_describe_is_refused() {
    for (flag, content) in [
        (b'x', &b"6 a=b\n"[..]),
        (b'g', b""),
        (b'L', b"x"),
        (b'K', b"x"),
    ] {
        let header = described(flag, content);
        let file = [block(b'0', 0), END.to_vec()].concat();
        let with = |count| [header.repeat(count), file.clone()].concat();
        assert_eq!(read(&with(8)).unwrap().len(), 1);
        is_refused(&with(9), "more than 8 headers");
    }
}

#[test]
fn records_are_not_longer_than_those_that_go_reads() {
    let with = |length: usize| {
        let mut records = pax::Records::default();
        records.attribute(b"user.x", &vec![b'v'; length]);
        let described = described(b'x', &records.into_bytes());
        [described, block(b'0', 0), END.to_vec()].concat()
    };
    assert_eq!(read(&with((1 << 20) - 100)).unwrap().len(), 1);
    is_refused(&with(1 << 20), "at most 1048576 are read");
}

#[test]
fn what_follows_the_end_of_an_archive_is_not_read_for_long() {
    let archive = written(&[]);
    let rest = |bytes| std::io::repeat(0).take(bytes);
    let mut reader = Reader::new((&archive[..]).chain(rest(15 << 20)));
    assert!(reader.next().unwrap().is_none());
    reader.end().unwrap();
    let mut reader = Reader::new((&archive[..]).chain(std::io::repeat(0)));
    assert!(reader.next().unwrap().is_none());
    let wrong = reader.end().unwrap_err();
    assert!(matches!(&wrong, Flaw::Refused(why) if why.contains("after its end")));
}

#[test]
fn paths_in_records_are_not_longer_than_others() {
    for key in [pax::PATH, pax::TARGET, pax::SPARSE_NAME] {
        let with = |length: usize| {
            let mut records = pax::Records::default();
            records.add(key.as_bytes(), &vec![b'n'; length]);
            let described = described(b'x', &records.into_bytes());
            [described, block(b'0', 0), END.to_vec()].concat()
        };
        is_refused(&with((128 << 10) + 1), "a path has 131073 bytes");
        if key != pax::SPARSE_NAME {
            assert_eq!(read(&with(128 << 10)).unwrap().len(), 1, "{key}");
        }
    }
}
