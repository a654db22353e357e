//! Entry point for fuzzing the parsers of the identities that disks report.

use belay_contract::disk::DiskIdentity;

use super::identity::{Identity, Match};
use crate::kernel::{DiskFacts, NvmeFacts, ScsiFacts};

/// Parses the fields of a SCSI disk, an NVMe disk and a virtio disk. A byte 0xff ends each field.
pub(crate) fn identity(data: &[u8]) {
    let mut fields = data.split(|byte| *byte == 0xff).map(<[u8]>::to_vec);
    let mut bytes = || fields.next().unwrap_or_default();
    let scsi = ScsiFacts {
        vendor: text(&bytes()),
        model: text(&bytes()),
        serial_page: bytes(),
        id_page: bytes(),
    };
    let nvme = NvmeFacts {
        model: text(&bytes()),
        serial: text(&bytes()),
        wwid: text(&bytes()),
    };
    let virtio = Identity::virtio(&text(&bytes()));
    let [scsi, nvme] = [DiskFacts::Scsi(scsi), DiskFacts::Nvme(nvme)].map(|it| Identity::of(&it));
    for identity in [scsi, nvme, Some(virtio)].into_iter().flatten() {
        for name in identity.names() {
            assert!(
                !name.contains(['/', ' ', '\0']),
                "{name:?} is no name of a link"
            );
            let wanted = DiskIdentity::Names(vec![name.clone()]);
            assert_ne!(identity.matches(&wanted), Match::No, "{name:?}");
        }
        // A disk that reports no identity matches no volume.
        assert_eq!(
            identity.matches(&DiskIdentity::Serial(String::new())),
            Match::No
        );
    }
}

/// Converts the bytes to text, the type of the fields from sysfs.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
