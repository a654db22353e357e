//! The name that a device is bound under (`lo_file_name`): identifies its driver and volume, even
//! after its file was renamed or moved.

use belay_server::identity::DriverName;
use belay_server::request::VolumeId;

use crate::device::digest::fnv_1a;
use crate::kernel::LoopStatus;

/// `LO_NAME_SIZE` of include/uapi/linux/loop.h, without the zero at its end.
const NAME_BYTES: usize = 63;

/// The name of one driver's volume: `<driver>/<volume>`. If that is too long, a digest and the end
/// of the volume's id, after a character that no driver's name contains.
#[derive(Clone, Debug)]
pub(super) struct Name(String);

/// The owner of a bound device's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bearer {
    /// The volume's.
    Ours,
    /// Another volume's.
    Another,
    /// No name, or a path, as losetup(8) and mount(8) set it.
    Nobody,
}

impl Name {
    pub(super) fn new(driver: &DriverName, volume: &VolumeId) -> Self {
        let whole = format!("{driver}/{volume}");
        Name(match whole.len() <= NAME_BYTES {
            true => whole,
            false => shortened(&whole),
        })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The owner of the name of a device with that status.
    pub(super) fn bearer(&self, status: &LoopStatus) -> Bearer {
        match status.name.as_str() {
            name if name == self.0 => Bearer::Ours,
            "" => Bearer::Nobody,
            name if name.starts_with('/') => Bearer::Nobody,
            _ => Bearer::Another,
        }
    }
}

/// Ids come from controllers and administrators, who gain nothing from two equal names, so the
/// digest need not resist attacks. To use a device, its file is compared as well.
fn shortened(whole: &str) -> String {
    let digest = fnv_1a(whole.as_bytes());
    let mut name = format!("~{digest:032x}/");
    let room = NAME_BYTES - name.len();
    let tail = (whole.len() - room..whole.len()).find_map(|at| whole.get(at..));
    name.push_str(tail.unwrap_or_default());
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Dev, LoopMode};

    fn name(driver: &str, volume: &str) -> Name {
        Name::new(&driver.parse().unwrap(), &VolumeId::new(volume).unwrap())
    }

    #[track_caller]
    fn expect(name: &Name, bound: &str, bearer: Bearer) {
        let status = LoopStatus {
            name: bound.to_owned(),
            backing_dev: Dev { major: 8, minor: 1 },
            backing_ino: 2,
            mode: LoopMode {
                read_only: false,
                autoclear: true,
            },
        };
        assert_eq!(name.bearer(&status), bearer, "{bound:?}");
    }

    #[test]
    fn a_name_is_read_where_it_has_room_and_is_told_from_all_others_where_not() {
        let driver = "local.csi.belay.dev";
        let volume = "vol-0123456789abcdef0123456789abcdef";
        let short = name(driver, volume);
        assert_eq!(short.as_str(), format!("{driver}/{volume}"));
        let [long, other] = ["a", "b"].map(|begin| {
            let id = format!("{begin}{}", "x".repeat(127));
            name(driver, &id)
        });
        let umlauts = name(driver, &"ü".repeat(64));
        for name in [&long, &other, &umlauts] {
            assert!(name.as_str().len() <= NAME_BYTES && name.as_str().starts_with('~'));
            expect(name, name.as_str(), Bearer::Ours);
        }
        assert!(long.as_str().ends_with("/xxxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
        expect(&long, other.as_str(), Bearer::Another);
    }

    #[test]
    fn whose_a_device_is_says_its_name_unless_a_tool_bound_it() {
        let ours = name("one", "vol");
        for (bound, bearer) in [
            ("one/vol", Bearer::Ours),
            ("two/vol", Bearer::Another),
            ("one/vol2", Bearer::Another),
            ("vol", Bearer::Another),
            ("vol2", Bearer::Another),
            ("", Bearer::Nobody),
            ("/volumes/vol", Bearer::Nobody),
        ] {
            expect(&ours, bound, bearer);
        }
    }
}
