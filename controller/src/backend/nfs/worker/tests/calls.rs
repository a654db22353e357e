//! Tests the system calls of [`super::super::tree`].

use super::super::error::Result as Done;
use super::super::tree::{self, Tree};
use super::*;
use rustix::io::{Errno, FdFlags, fcntl_getfd};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{PermissionsExt as _, symlink};

fn open(share: &Share) -> OwnedFd {
    fs::File::open(share.path("")).unwrap().into()
}

#[track_caller]
fn fails<T>(result: Done<T>, errno: Errno) {
    assert_eq!(result.err().map(|error| error.errno), Some(errno));
}

#[track_caller]
fn is_closed_by_exec(file: &OwnedFd) {
    assert_eq!(fcntl_getfd(file).unwrap(), FdFlags::CLOEXEC);
}

/// Creates a file, a directory, a link to each of them, a dead link, and a FIFO.
fn prepare() -> (Share, OwnedFd) {
    let share = Share::new();
    share.write("file");
    fs::create_dir(share.path("directory")).unwrap();
    for (to, link) in [
        ("file", "to-file"),
        ("directory", "to-directory"),
        ("../outside/new", "to-nothing"),
    ] {
        symlink(to, share.path(link)).unwrap();
    }
    let fifo = share.path("fifo");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    let root = open(&share);
    (share, root)
}

#[test]
fn only_a_directory_is_opened_as_one() {
    let (_share, root) = prepare();
    is_closed_by_exec(&tree::open(&root, "directory", "x").unwrap());
    for (name, errno) in [
        ("file", Errno::NOTDIR),
        ("fifo", Errno::NOTDIR),
        ("to-directory", Errno::NOTDIR),
        ("to-directory/x", Errno::LOOP),
        ("to-nothing", Errno::NOTDIR),
        ("missing", Errno::NOENT),
        ("..", Errno::XDEV),
    ] {
        fails(tree::open(&root, name, "x"), errno);
    }
    assert!(
        tree::open_existing(&root, "missing", "x")
            .unwrap()
            .is_none()
    );
    fails(tree::open_existing(&root, "file", "x"), Errno::NOTDIR);
    fails(
        tree::open_existing(&root, "to-directory/x", "x"),
        Errno::LOOP,
    );
}

#[test]
fn a_file_is_opened_without_waiting_and_without_following_a_link() {
    let (_share, root) = prepare();
    let file = tree::open_file(&root, "file", "x").unwrap().unwrap();
    is_closed_by_exec(&file);
    assert_eq!(tree::read(file, 4, "x").unwrap().unwrap(), b"file");
    // The FIFO has no writer, so a blocking open would wait.
    is_closed_by_exec(&tree::open_file(&root, "fifo", "x").unwrap().unwrap());
    assert!(tree::open_file(&root, "missing", "x").unwrap().is_none());
    for link in ["to-file", "to-nothing"] {
        fails(tree::open_file(&root, link, "x"), Errno::LOOP);
    }
}

#[test]
fn a_file_that_is_too_long_is_not_read() {
    let (_share, root) = prepare();
    for (bytes_max, is_read) in [(3, false), (4, true), (5, true)] {
        let file = tree::open_file(&root, "file", "x").unwrap().unwrap();
        let content = tree::read(file, bytes_max, "x").unwrap();
        assert_eq!(content.is_some(), is_read);
    }
}

#[test]
fn a_new_file_replaces_nothing_and_is_belays_alone() {
    let (share, root) = prepare();
    for name in ["file", "to-file", "to-nothing", "directory", "fifo"] {
        fails(tree::write_new(&root, name, b"x", "x"), Errno::EXIST);
    }
    tree::write_new(&root, "new", b"content", "x").unwrap();
    assert_eq!(fs::read(share.path("new")).unwrap(), b"content");
    for name in ["touched", "new"] {
        tree::touch(&root, name, "x").unwrap();
        let mode = fs::metadata(share.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o600);
    }
    assert_eq!(fs::read(share.path("new")).unwrap(), b"content");
    for link in ["to-file", "to-nothing"] {
        fails(tree::touch(&root, link, "x"), Errno::LOOP);
    }
    assert_eq!(fs::read(share.path("file")).unwrap(), b"file");
    share.assert_outside();
}

#[test]
fn a_directory_of_belays_own_is_made_only_where_there_is_nothing() {
    let (share, root) = prepare();
    for name in ["file", "to-directory"] {
        let made = killed::until(0, || tree::own(&root, name, "x"));
        fails(made.expect("no change"), Errno::NOTDIR);
    }
    for _ in 0..2 {
        is_closed_by_exec(&tree::own(&root, "own", "x").unwrap());
    }
    let mode = fs::metadata(share.path("own"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o7777, 0o700);
    // Another call creates the directory between the lookup and the change.
    let path = share.path("other");
    let own = slow::during(
        move |_| drop(fs::create_dir(&path)),
        || tree::own(&root, "other", "x"),
    );
    own.unwrap();
}

#[test]
fn the_mode_is_set_where_it_differs() {
    let (share, root) = prepare();
    let directory = tree::open(&root, "directory", "x").unwrap();
    for mode in [0o2770, 0o1777, 0o700, 0] {
        tree::chmod(&directory, mode, "x").unwrap();
        let now = fs::metadata(share.path("directory")).unwrap();
        assert_eq!(now.permissions().mode() & 0o7777, mode);
        killed::until(0, || tree::chmod(&directory, mode, "x"))
            .expect("no change")
            .unwrap();
    }
}

#[test]
fn what_has_a_name_is_found_whatever_it_is() {
    let (share, _root) = prepare();
    let tree: Tree = share.tree();
    let dir = |path: &str| Dir::read(path).unwrap().unwrap();
    for (path, exists, is_directory) in [
        ("file", true, false),
        ("directory", true, true),
        ("to-directory", true, false),
        ("to-nothing", true, false),
        ("missing", false, false),
        ("missing/x", false, false),
    ] {
        assert_eq!(tree.exists(&dir(path)).unwrap(), exists, "{path}");
        assert_eq!(
            tree.is_directory(&dir(path)).unwrap(),
            is_directory,
            "{path}"
        );
    }
    fails(tree.exists(&dir("file/x")), Errno::NOTDIR);
    fails(tree.exists(&dir("to-directory/x")), Errno::NOTDIR);
    fails(tree.exists(&dir("to-directory/x/y")), Errno::LOOP);
    fails(tree.open_directory(&dir("file")), Errno::NOTDIR);
    assert!(tree.open_directory(&dir("missing/x")).unwrap().is_none());
}

#[test]
fn a_probe_says_who_and_when_and_leaves_nothing() {
    let (share, root) = prepare();
    let before = names(&share.path(""));
    let (user, time) = tree::probe(&root, "probe", "x").unwrap();
    assert_eq!(user, rustix::process::geteuid().as_raw());
    let age = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    assert!(age.unwrap().as_secs().abs_diff(time.cast_unsigned()) < 3600);
    assert_eq!(names(&share.path("")), before);
    assert_eq!(tree::modified(&root, "probe", "x").unwrap(), None);
}

#[test]
fn only_what_is_empty_is_removed_as_a_directory() {
    let (share, root) = prepare();
    share.write("directory/file");
    assert!(!tree::rmdir_if_empty(&root, "directory", "x").unwrap());
    fails(tree::rmdir(&root, "directory", "x"), Errno::NOTEMPTY);
    fails(tree::rmdir_if_empty(&root, "file", "x"), Errno::NOTDIR);
    fails(tree::unlink(&root, "directory", "x"), Errno::ISDIR);
    fs::remove_file(share.path("directory/file")).unwrap();
    assert!(tree::rmdir_if_empty(&root, "directory", "x").unwrap());
    assert!(tree::rmdir_if_empty(&root, "directory", "x").unwrap());
    assert!(tree::unlink_existing(&root, "to-file", "x").unwrap());
    assert!(!tree::unlink_existing(&root, "to-file", "x").unwrap());
    assert!(share.path("file").exists());
}

#[test]
fn a_file_that_the_server_does_not_write_to_its_disk_is_a_failure() {
    let (share, root) = prepare();
    for name in ["file", "directory"] {
        tree::sync(&fs::File::open(share.path(name)).unwrap().into(), "x").unwrap();
    }
    // A FIFO has no data that could be synced to a disk.
    let fifo = tree::open_file(&root, "fifo", "x").unwrap().unwrap();
    fails(tree::sync(&fifo, "x"), Errno::INVAL);
}
