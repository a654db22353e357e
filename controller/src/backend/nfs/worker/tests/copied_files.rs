//! Tests the content of copies.

use super::copied::copying;
use super::snapshots::{cutting, restoring};
use super::*;
use rustix::fs::{CWD, FileType, Mode, SeekFrom, XattrFlags};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};

/// Copies a volume of csi-driver-nfs, and restores it from a snapshot. Checks both copies.
fn copied(prepare: impl Fn(&Path), check: impl Fn(&Share)) {
    for is_restored in [false, true] {
        let share = Share::new();
        let from = share.path("from");
        fs::create_dir(&from).unwrap();
        prepare(&from);
        match is_restored {
            false => share.copy(&copying(volume("copy", "pvc-2"))).map(drop),
            true => share.cut(&cutting()).and_then(|_| {
                let restored = share.restore(&restoring(volume("copy", "pvc-2")));
                restored.map(drop)
            }),
        }
        .unwrap();
        check(&share);
        assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
    }
}

fn stat(path: &Path) -> fs::Metadata {
    fs::symlink_metadata(path).unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Asserts that a file and its copy are identical, except for the inode number and ctime.
#[track_caller]
fn assert_alike(share: &Share, below: &str) {
    let (from, to) = (
        share.path("from").join(below),
        share.path("copy").join(below),
    );
    let of = |path: &Path| {
        let it = stat(path);
        let times = (it.mtime(), it.mtime_nsec());
        (it.mode(), it.uid(), it.gid(), it.nlink(), it.rdev(), times)
    };
    assert_eq!(of(&from), of(&to), "{below}");
    assert_ne!(stat(&from).ino(), stat(&to).ino(), "{below}");
}

fn set_time(path: &Path, seconds: i64) {
    use rustix::fs::{AtFlags, Timespec, Timestamps};
    let time = |tv_nsec| Timespec {
        tv_sec: seconds,
        tv_nsec,
    };
    let times = Timestamps {
        last_access: time(5),
        last_modification: time(123_456_789),
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn modes_times_and_types_are_those_of_the_source() {
    let strange = OsStr::from_bytes(b"not \xff utf-8\n");
    copied(
        |from| {
            fs::create_dir(from.join("sub")).unwrap();
            for (name, mode) in [("plain", 0o640), ("special", 0o6755), ("least", 0o400)] {
                fs::write(from.join(name), name).unwrap();
                set_mode(&from.join(name), mode);
            }
            fs::write(from.join(strange), "strange").unwrap();
            symlink("../outside/precious", from.join("link")).unwrap();
            symlink("sub", from.join("dangling")).unwrap();
            rustix::fs::mknodat(CWD, from.join("fifo"), FileType::Fifo, Mode::empty(), 0).unwrap();
            set_mode(&from.join("fifo"), 0o666);
            drop(std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap());
            for name in ["plain", "special", "link", "fifo", "socket"] {
                set_time(&from.join(name), 1_000_000_000);
            }
            set_mode(&from.join("sub"), 0o3770);
            set_mode(from, 0o1777);
            set_time(&from.join("sub"), -5);
            set_time(from, 2_000_000_000);
        },
        |share| {
            for name in [
                "", "plain", "special", "least", "link", "dangling", "fifo", "sub",
            ] {
                assert_alike(share, name);
            }
            let copy = share.path("copy");
            assert_eq!(fs::read(copy.join(strange)).unwrap(), b"strange");
            assert_eq!(fs::read(copy.join("special")).unwrap(), b"special");
            assert_eq!(
                fs::read_link(copy.join("link")).unwrap(),
                Path::new("../outside/precious")
            );
            assert!(stat(&copy.join("fifo")).file_type().is_fifo());
            // Sockets are not archived.
            if copy.join("socket").exists() {
                assert_alike(share, "socket");
                assert!(stat(&copy.join("socket")).file_type().is_socket());
            }
            share.assert_outside();
        },
    );
}

#[test]
fn a_class_chooses_the_mode_of_the_directory_itself() {
    let share = Share::new();
    share.write("from/sub/file");
    set_mode(&share.path("from"), 0o700);
    let order = copying(NewVolume {
        permissions: Some(0o2775),
        ..volume("copy", "pvc-2")
    });
    share.copy(&order).unwrap();
    assert_eq!(stat(&share.path("copy")).mode() & 0o7777, 0o2775);
}

#[test]
fn hard_links_are_links_of_one_file() {
    copied(
        |from| {
            fs::create_dir_all(from.join("a/b")).unwrap();
            fs::write(from.join("one"), "content").unwrap();
            for name in ["two", "a/three", "a/b/four"] {
                fs::hard_link(from.join("one"), from.join(name)).unwrap();
            }
            symlink("one", from.join("link")).unwrap();
            rustix::fs::linkat(
                CWD,
                from.join("link"),
                CWD,
                from.join("a/link"),
                rustix::fs::AtFlags::empty(),
            )
            .unwrap();
            fs::write(from.join("same"), "content").unwrap();
        },
        |share| {
            let copy = share.path("copy");
            let number = |name: &str| stat(&copy.join(name)).ino();
            for name in ["two", "a/three", "a/b/four"] {
                assert_eq!(number(name), number("one"), "{name}");
                assert_alike(share, name);
            }
            assert_eq!(number("link"), number("a/link"));
            assert_ne!(number("same"), number("one"));
            assert_alike(share, "same");
        },
    );
}

#[test]
fn extended_attributes_of_users_and_lists_are_copied() {
    const LIST: &str = "system.posix_acl_access";
    // The access control list, in version 2: user rw, user 1234 r, group r, mask r, others none.
    let list: Vec<u8> = [
        &2_u32.to_le_bytes()[..],
        &[1, 0, 6, 0, 255, 255, 255, 255],
        &[2, 0, 4, 0, 210, 4, 0, 0],
        &[4, 0, 4, 0, 255, 255, 255, 255],
        &[16, 0, 4, 0, 255, 255, 255, 255],
        &[32, 0, 0, 0, 255, 255, 255, 255],
    ]
    .concat();
    copied(
        |from| {
            fs::write(from.join("file"), "content").unwrap();
            let set = |name, value: &[u8]| {
                rustix::fs::setxattr(from.join("file"), name, value, XattrFlags::empty()).unwrap();
            };
            set("user.origin", b"here\0there");
            set(LIST, &list);
            rustix::fs::setxattr(from, "user.of-directory", b"", XattrFlags::empty()).unwrap();
        },
        |share| {
            let get = |below: &str, name: &str| {
                let mut value = vec![0; 128];
                let length = rustix::fs::getxattr(share.path(below), name, &mut value[..]).unwrap();
                value.truncate(length);
                value
            };
            assert_eq!(get("copy/file", "user.origin"), b"here\0there");
            assert_eq!(get("copy/file", LIST), list);
            assert_eq!(get("copy", "user.of-directory"), b"");
            assert_alike(share, "file");
        },
    );
}

#[test]
fn holes_stay_holes_and_content_is_that_of_the_source() {
    const MIB: u64 = 1 << 20;
    copied(
        |from| {
            let file = fs::File::create(from.join("sparse")).unwrap();
            for at in [3 * MIB, 70 * MIB, 100 * MIB - 1] {
                std::os::unix::fs::FileExt::write_all_at(&file, b"data", at).unwrap();
            }
            file.set_len(200 * MIB).unwrap();
            fs::File::create(from.join("hole"))
                .unwrap()
                .set_len(5 * MIB)
                .unwrap();
            let noise: Vec<u8> = (0..3 * MIB + 17)
                .flat_map(|n| (n * n).to_le_bytes())
                .collect();
            fs::write(from.join("noise"), noise).unwrap();
        },
        |share| {
            for name in ["sparse", "hole", "noise"] {
                assert_alike(share, name);
                let [from, to] =
                    ["from", "copy"].map(|it| fs::read(share.path(it).join(name)).unwrap());
                assert!(from == to, "{name}");
            }
            let blocks = |name: &str| stat(&share.path("copy").join(name)).blocks();
            assert!(blocks("sparse") * 512 < 2 * MIB, "{}", blocks("sparse"));
            assert_eq!(blocks("hole"), 0);
            let file = fs::File::open(share.path("copy/hole")).unwrap();
            let data = rustix::fs::seek(&file, SeekFrom::Data(0));
            assert_eq!(data, Err(rustix::io::Errno::NXIO));
        },
    );
}

#[test]
fn a_directory_with_more_names_than_are_held_at_once_is_copied() {
    const COUNT: usize = 5000;
    copied(
        |from| {
            for n in 0..COUNT {
                fs::write(from.join(n.to_string()), "").unwrap();
            }
        },
        |share| {
            assert_eq!(names(&share.path("copy")).len(), COUNT);
        },
    );
}

#[test]
fn what_is_too_deep_is_refused_by_its_path() {
    let share = Share::new();
    let deep = "d/".repeat(256);
    fs::create_dir_all(share.path("from").join(&deep)).unwrap();
    let order = copying(volume("copy", "pvc-2"));
    share.copy(&order).unwrap();
    assert!(share.path("copy").join(&deep).is_dir());
    share.delete(&old(&order.volume, OnDelete::Delete)).unwrap();
    fs::create_dir(share.path("from").join(deep + "d")).unwrap();
    let words = "is more than 256 directories deep";
    refused(share.copy(&order), Kind::Precondition, words);
    assert!(!share.path("copy").exists());
    assert_eq!(names(&share.path(".belay/trash")), [""; 0]);
}
