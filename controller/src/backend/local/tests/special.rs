//! Tests of FIFOs, directories, sockets and devices that have the name of a file of the state
//! directory.

use super::{Bed, opened};
use belay_server::call::Kind;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

fn mkfifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
}

/// Opens a FIFO for writing. If the check were missing, the start would wait for a writer of the
/// FIFO. With this writer, the failing test ends.
fn writer_of(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn a_start_refuses_anything_but_a_file_at_once_and_says_what_it_is() {
    for name in ["state.redb", "state.redb.new", "lock"] {
        for (what, is_linked) in [
            ("a FIFO", false),
            ("a FIFO", true),
            ("a directory", false),
            ("a socket", false),
            ("a device", true),
        ] {
            let bed = Bed::new();
            let path = bed.config().state_dir.join(name);
            let place = match is_linked {
                true => bed.dir.path().join("elsewhere"),
                false => path.clone(),
            };
            let mut held = None;
            match what {
                "a FIFO" => {
                    mkfifo(&place);
                    held = Some(writer_of(&place));
                }
                "a directory" => fs::create_dir(&place).unwrap(),
                "a socket" => drop(UnixListener::bind(&place).unwrap()),
                _ => symlink("/dev/null", &place).unwrap(),
            }
            if is_linked {
                symlink(&place, &path).unwrap();
            }
            let failure = opened(&bed.config()).unwrap_err();
            drop(held);
            assert_eq!(
                failure.kind,
                Kind::Precondition,
                "{name}, {what}: {failure}"
            );
            let begin = format!("{}: is {what}, not a regular file; ", path.display());
            assert!(failure.message.starts_with(&begin), "{name}: {failure}");
        }
    }
}

#[test]
fn a_start_refuses_a_fifo_in_the_place_of_a_directory_at_once() {
    for name in ["volumes", "snapshots"] {
        let bed = Bed::new();
        let path = bed.config().state_dir.join(name);
        mkfifo(&path);
        let _held = writer_of(&path);
        let failure = opened(&bed.config()).unwrap_err();
        let begin = format!("open {}: ENOTDIR; ", path.display());
        assert!(failure.message.starts_with(&begin), "{failure}");
    }
}

/// An operator may replace the file with such a link to keep the file on a different disk.
#[test]
fn a_link_to_a_file_is_followed() {
    let bed = Bed::new();
    drop(bed.open());
    let path = bed.config().state_dir.join("state.redb");
    let elsewhere = bed.dir.path().join("elsewhere");
    fs::rename(&path, &elsewhere).unwrap();
    symlink(&elsewhere, &path).unwrap();
    drop(bed.open());
}
