//! Tests whether the probe finds the project quotas that mke2fs enables.

use super::*;
use crate::filesystem::probe::ext4_superblock;

#[test]
fn an_ext4_that_can_have_project_quotas_is_recognised() {
    let kernel = Linux::detect().unwrap();
    for (features, expected) in [("^project", false), ("project", true), ("quota", false)] {
        let image = Image::new(64 * MIB);
        image.make("mke2fs", &["-q", "-F", "-t", "ext4", "-O", features]);
        let device = image.hold(&kernel).device;
        let superblock = ext4_superblock(&kernel, &device, image.bytes).unwrap();
        assert_eq!(superblock.has_projects, expected, "{features}");
    }
}
