//! Tests of the check with the installed e2fsck, on images that debugfs has damaged.

use belay_server::call::Kind;

use super::*;
use crate::filesystem::Sound;
use crate::filesystem::check::{Checked, Unchecked, check};

const SOUND: Sound = Sound {
    fs: FsType::Ext4,
    wants_check: false,
    blocks_before_replay: None,
    has_projects: false,
    panics: false,
    refused_options: None,
};
const MARKED: Sound = Sound {
    fs: FsType::Ext4,
    wants_check: true,
    blocks_before_replay: None,
    has_projects: false,
    panics: false,
    refused_options: None,
};
const DATA: &[u8] = b"what a pod has written";
/// The block size of the ext4 in bytes. The size is passed to mke2fs, whose default depends on the
/// size of the device.
const BLOCK: u64 = 4096;

/// Returns an image of an ext4 with one file, on which these commands of debugfs were run.
fn damaged(commands: &[&str]) -> Image {
    let image = Image::new(256 * MIB);
    image.make("mke2fs", &["-q", "-b", &BLOCK.to_string(), "-t", "ext4"]);
    let source = image.dir.path().join("data");
    std::fs::write(&source, DATA).unwrap();
    let write = format!("write {} data", text(&source));
    for command in std::iter::once(&*write).chain(commands.iter().copied()) {
        image.make("debugfs", &["-w", "-R", command]);
    }
    image
}

impl Image {
    fn check_ext4(&self, deadline: Duration) -> Result<Checked, Unchecked> {
        let kernel = Linux::detect().unwrap();
        check(
            &kernel,
            &self.hold(&kernel).device(self.bytes, VOLUME),
            deadline,
            &|| (),
        )
    }

    /// Returns the filesystem that the probe finds. The image has no backing file here, and so no
    /// witness.
    fn sound(&self) -> Sound {
        let kernel = Linux::detect().unwrap();
        let held = self.hold(&kernel);
        let device = DeviceUnderTest {
            secrets: &[],
            backing: None,
            ..held.device(self.bytes, VOLUME)
        };
        match examine(&kernel, &device) {
            Probed::Known(sound) => sound,
            other => panic!("{other:?}"),
        }
    }

    fn assert_whole(&self) {
        assert_eq!(self.sound(), SOUND);
        self.make("e2fsck", &["-f", "-n"]);
        let printed = tool("debugfs", &["-R", "cat data", text(&self.path())]);
        assert_eq!(printed.as_bytes(), DATA);
    }
}

/// A superblock that a real tool has written requires a check only if it records errors or an
/// unclean state.
#[test]
fn a_superblock_asks_for_a_check_only_if_the_journal_does_not_suffice() {
    let replayed = |sound: Sound| Sound {
        blocks_before_replay: Some(256 * MIB / BLOCK),
        ..sound
    };
    for (commands, expected) in [
        (&[][..], SOUND),
        (&["feature needs_recovery"], replayed(SOUND)),
        (&["set_super_value state 3"], MARKED),
        (&["set_super_value state 0"], MARKED),
        (
            &["set_super_value state 3", "feature needs_recovery"],
            replayed(MARKED),
        ),
    ] {
        assert_eq!(damaged(commands).sound(), expected, "{commands:?}");
    }
}

#[test]
fn an_ext4_that_only_looks_damaged_is_found_clean() {
    let image = damaged(&["set_super_value state 3"]);
    assert_eq!(image.check_ext4(DEADLINE).unwrap(), Checked::Clean);
    image.assert_whole();
}

#[test]
fn damage_that_costs_no_data_is_repaired() {
    let image = damaged(&[
        "set_inode_field data links_count 7",
        "set_super_value free_blocks_count 5",
        "set_super_value state 3",
    ]);
    match image.check_ext4(DEADLINE) {
        Ok(Checked::Corrected(messages)) => {
            let named = messages.contains("ref count is 7, should be 1");
            assert!(named && !messages.contains("/proc"), "{messages}");
        }
        other => panic!("{other:?}"),
    }
    image.assert_whole();
}

#[test]
fn damage_that_may_cost_data_is_left_to_a_human() {
    let image = damaged(&["clri <2>", "set_super_value state 3"]);
    match image.check_ext4(DEADLINE) {
        Err(Unchecked::Damaged(messages)) => {
            assert!(messages.contains("RUN fsck MANUALLY"), "{messages}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(image.sound(), MARKED);
}

/// If e2fsck is killed between the replay of the journal and the end of a check, the filesystem has
/// errors that its superblock does not record.
#[test]
fn a_check_is_complete_whatever_the_superblock_says() {
    let image = damaged(&["set_inode_field data links_count 7"]);
    assert_eq!(image.sound(), SOUND);
    let checked = image.check_ext4(DEADLINE);
    assert!(matches!(checked, Ok(Checked::Corrected(_))), "{checked:?}");
    image.assert_whole();
}

/// Each deadline kills e2fsck at a random point, from before its start to after its end. The result
/// must not depend on this point.
#[test]
fn a_check_that_is_killed_can_be_tried_again() {
    let image = damaged(&[
        "set_inode_field data links_count 7",
        "set_super_value state 3",
    ]);
    for micros in [0, 500, 1000, 2000, 3000, 5000, 8000, 13_000] {
        match image.check_ext4(Duration::from_micros(micros)) {
            Err(Unchecked::Failed(failure)) => assert_eq!(failure.kind, Kind::Timeout, "{failure}"),
            Ok(Checked::Corrected(_)) => break,
            // e2fsck was killed after its last write.
            Ok(Checked::Clean) if image.sound() == SOUND => break,
            other => panic!("{other:?}"),
        }
    }
    if image.sound() == MARKED {
        image.check_ext4(DEADLINE).unwrap();
    }
    image.assert_whole();
}
