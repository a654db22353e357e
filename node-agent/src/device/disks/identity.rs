//! Parses the identity that a disk reports, and compares it with the identity of a volume's disk.
//! The parsed bytes are from the disk, and can be arbitrary.

use belay_contract::disk::{DiskIdentity, NameTemplate};

use crate::kernel::{self, Disk, DiskFacts, Disks, NvmeFacts, ScsiFacts};

/// `VIRTIO_BLK_ID_BYTES` (include/uapi/linux/virtio_blk.h). A serial number with this length may be
/// truncated.
const VIRTIO_SERIAL_BYTES: usize = 20;

/// The lengths of fields in INQUIRY data, which are padded with spaces (SPC-6, 6.7.2).
const VENDOR_BYTES: usize = 8;
const MODEL_BYTES: usize = 16;

/// The identity of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Identity {
    /// The serial numbers; a virtio disk's serial number may be truncated.
    serials: Vec<String>,
    /// The worldwide names, formatted like udev's `ID_WWN`.
    wwns: Vec<String>,
    /// The names that udev creates in `/dev/disk/by-id`, or could create.
    names: Vec<String>,
    /// Whether the serial number may be truncated, so that the disk of another volume may report
    /// the same serial number.
    is_cut: bool,
}

/// Whether a disk matches the identity of a volume's disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Match {
    No,
    /// The disk matches, but its serial number may be truncated, so another disk or volume may
    /// match as well.
    Cut,
    Whole,
}

impl Identity {
    /// Reads the disk's identity; `None` if the disk was removed. Waits for the response of a
    /// virtio disk.
    ///
    /// # Errors
    /// Returns an error if the disk or sysfs cannot be read.
    pub(super) fn read<K: Disks>(kernel: &K, disk: &Disk) -> kernel::Result<Option<Self>> {
        match kernel.disk_facts(disk)? {
            None => Ok(None),
            Some(DiskFacts::Virtio) => Ok(kernel.disk_serial(disk)?.as_deref().map(Self::virtio)),
            Some(facts) => Ok(Self::of(&facts)),
        }
    }

    /// Returns the identity from memory; `None` for a virtio disk, which must be queried.
    pub(super) fn of(facts: &DiskFacts) -> Option<Self> {
        match facts {
            DiskFacts::Virtio => None,
            DiskFacts::Scsi(facts) => Some(Self::scsi(facts)),
            DiskFacts::Nvme(facts) => Some(Self::nvme(facts)),
        }
    }

    pub(super) fn virtio(serial: &str) -> Self {
        let serial = serial.trim();
        let mut identity = Identity::default();
        if !serial.is_empty() {
            identity.is_cut = serial.len() >= VIRTIO_SERIAL_BYTES;
            identity.serials.push(serial.to_owned());
            identity.names.push(format!("virtio-{}", encoded(serial)));
        }
        identity
    }

    fn scsi(facts: &ScsiFacts) -> Self {
        let mut identity = Identity::default();
        let (vendor, model) = (&facts.vendor, &facts.model);
        let maker = format!("{vendor:<VENDOR_BYTES$}{model:<MODEL_BYTES$}");
        for designator in designators(&facts.id_page) {
            let id = match designator.code {
                Code::Ascii => text(designator.bytes),
                Code::Binary => hex(designator.bytes),
            };
            if id.is_empty() {
                continue;
            }
            // udev's scsi_id begins a name with the designator's type, followed by vendor and model
            // if the ID is vendor specific.
            let name = match designator.kind {
                Kind::VendorSpecific => format!("0{maker}{id}"),
                Kind::T10 => format!("1{id}"),
                Kind::Eui64 => format!("2{id}"),
                Kind::Naa => format!("3{id}"),
            };
            identity.names.push(format!("scsi-{}", encoded(&name)));
            match designator.kind {
                Kind::VendorSpecific => identity.serials.push(id),
                // The value of an NAA designator has only hex digits, even in text form. Ignore
                // other values.
                Kind::Naa if id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
                    identity.names.push(format!("wwn-0x{id}"));
                    identity.wwns.push(format!("0x{id}"));
                }
                Kind::Naa | Kind::T10 | Kind::Eui64 => {}
            }
        }
        let serial = serial_in(&facts.serial_page);
        if !serial.is_empty() {
            let name = encoded(&format!("S{maker}{serial}"));
            identity.names.push(format!("scsi-{name}"));
            identity.serials.push(serial);
        }
        identity
    }

    fn nvme(facts: &NvmeFacts) -> Self {
        let (model, serial) = (facts.model.trim(), facts.serial.trim());
        let mut identity = Identity::default();
        if !serial.is_empty() {
            let name = encoded(&format!("{model}_{serial}"));
            identity.names.push(format!("nvme-{name}"));
            identity.serials.push(serial.to_owned());
        }
        let wwid = facts.wwid.trim();
        if !wwid.is_empty() {
            identity.names.push(format!("nvme-{}", encoded(wwid)));
            identity.wwns.push(wwid.to_owned());
        }
        identity
    }

    /// Returns the names that match one of these templates, and thus may name a volume's disk.
    pub(super) fn names_like(&self, templates: &[NameTemplate]) -> Vec<String> {
        let is_like = |name: &&String| {
            let mut templates = templates.iter();
            templates.any(|template| name.starts_with(template.prefix))
        };
        self.names.iter().filter(is_like).cloned().collect()
    }

    /// Returns the names that udev creates in `/dev/disk/by-id`, or could create.
    #[cfg(any(test, feature = "fuzz"))]
    pub(super) fn names(&self) -> &[String] {
        &self.names
    }

    /// Whether the disk has the identity `wanted`.
    pub(super) fn matches(&self, wanted: &DiskIdentity) -> Match {
        let is_it = match wanted {
            DiskIdentity::Serial(wanted) => self.serials.iter().any(|serial| {
                serial == wanted || self.is_cut && wanted.starts_with(serial.as_str())
            }),
            DiskIdentity::Wwn(wanted) => {
                let mut wwns = self.wwns.iter();
                wwns.any(|wwn| wwn.eq_ignore_ascii_case(wanted))
            }
            DiskIdentity::Names(wanted) => self.names.iter().any(|name| wanted.contains(name)),
        };
        match (is_it, self.is_cut) {
            (false, _) => Match::No,
            (true, true) => Match::Cut,
            (true, false) => Match::Whole,
        }
    }

    /// Returns the worldwide name of the logical unit. A different disk with the same name is
    /// another path to the unit.
    pub(super) fn unit(&self) -> Option<&str> {
        self.wwns.first().map(String::as_str)
    }

    /// Whether the disk has neither a serial number nor another name.
    pub(super) fn is_nameless(&self) -> bool {
        self.names.is_empty() && self.serials.is_empty() && self.wwns.is_empty()
    }

    /// Returns the first name of the disk, for messages.
    pub(super) fn describe(&self) -> &str {
        self.names
            .first()
            .map_or("without a serial", String::as_str)
    }
}

/// The types of designators that identify a disk (SPC-6, 7.7.6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    VendorSpecific,
    T10,
    Eui64,
    Naa,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Code {
    Binary,
    Ascii,
}

struct Designator<'a> {
    kind: Kind,
    code: Code,
    bytes: &'a [u8],
}

/// Returns the designators of page 0x83 that identify the logical unit, and not its port or target.
fn designators(page: &[u8]) -> Vec<Designator<'_>> {
    let mut found = Vec::new();
    let mut rest = body(page, 0x83);
    while let [set, kind, _, length, after @ ..] = rest {
        let length = usize::from(*length);
        let Some((bytes, next)) = after.split_at_checked(length) else {
            break;
        };
        rest = next;
        let is_of_unit = kind >> 4 & 0x3 == 0;
        let code = match set & 0xf {
            1 => Some(Code::Binary),
            2 | 3 => Some(Code::Ascii),
            _ => None,
        };
        let kind = match kind & 0xf {
            0 => Some(Kind::VendorSpecific),
            1 => Some(Kind::T10),
            2 => Some(Kind::Eui64),
            3 => Some(Kind::Naa),
            _ => None,
        };
        if let (true, Some(code), Some(kind)) = (is_of_unit, code, kind) {
            found.push(Designator { kind, code, bytes });
        }
    }
    found
}

/// Returns the text of page 0x80.
fn serial_in(page: &[u8]) -> String {
    text(body(page, 0x80))
}

/// Returns the bytes after the page header, up to the length in the header.
fn body(page: &[u8], number: u8) -> &[u8] {
    match page {
        [_, code, high, low, body @ ..] if *code == number => {
            let length = usize::from(u16::from_be_bytes([*high, *low]));
            body.get(..length).unwrap_or(body)
        }
        _ => &[],
    }
}

/// Decodes text without its padding. Bytes that are not UTF-8 are replaced, because no volume's
/// identity contains any.
fn text(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.trim_matches(|c: char| c == '\0' || c.is_ascii_whitespace())
        .to_owned()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Encodes text as udev does in a name: a run of spaces, or a character that is not allowed in
/// names, becomes one underscore (systemd, `util_replace_whitespace` and `encode_devnode_name`).
fn encoded(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let plain = |c: char| c.is_ascii_alphanumeric() || "#+-.:=@_".contains(c);
    words
        .join("_")
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .collect()
}

#[cfg(test)]
pub(super) mod samples {
    use super::*;

    /// Builds page 0x83 from designators: code set, type and bytes of each.
    pub(in crate::device::disks) fn page83(designators: &[(u8, u8, &[u8])]) -> Vec<u8> {
        let mut body = Vec::new();
        for (set, kind, bytes) in designators {
            body.extend([*set, *kind, 0, u8::try_from(bytes.len()).unwrap()]);
            body.extend(*bytes);
        }
        let [high, low] = u16::try_from(body.len()).unwrap().to_be_bytes();
        [&[0, 0x83, high, low], &body[..]].concat()
    }

    /// Returns the facts of a disk like QEMU's SCSI disk, which reports its `device_id` as a
    /// vendor-specific ID.
    pub(in crate::device::disks) fn scsi(vendor: &str, model: &str, id: &str) -> DiskFacts {
        DiskFacts::Scsi(ScsiFacts {
            vendor: format!("{vendor:<8}"),
            model: format!("{model:<16}"),
            serial_page: Vec::new(),
            id_page: page83(&[(2, 0, id.as_bytes())]),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::samples::{page83, scsi};
    use super::*;

    fn names(list: &[&str]) -> DiskIdentity {
        DiskIdentity::Names(list.iter().map(|name| (*name).to_owned()).collect())
    }

    fn serial(text: &str) -> DiskIdentity {
        DiskIdentity::Serial(text.to_owned())
    }

    #[test]
    fn a_virtio_disk_shows_the_first_twenty_bytes_of_a_serial() {
        let id = "7f8b1c2d-1111-4222-8333-444455556666";
        let disk = Identity::virtio(&id[..20]);
        assert_eq!(disk.matches(&serial(id)), Match::Cut);
        assert_eq!(disk.matches(&serial(&id[..20])), Match::Cut);
        assert_eq!(disk.matches(&serial(&id[..19])), Match::No);
        let name = format!("virtio-{}", &id[..20]);
        assert_eq!(disk.matches(&names(&["virtio-x", &name])), Match::Cut);
        let short = Identity::virtio("vol-1");
        assert_eq!(short.matches(&serial("vol-1")), Match::Whole);
        assert_eq!(short.matches(&serial("vol-12")), Match::No);
        let none = Identity::virtio("");
        for wanted in [serial("x"), names(&["virtio-"])] {
            assert_eq!(none.matches(&wanted), Match::No);
        }
    }

    #[test]
    fn a_scsi_disk_has_the_names_that_udev_gives_it() {
        for (facts, name, id) in [
            (
                scsi("DO", "Volume", "pvc-1"),
                "scsi-0DO_Volume_pvc-1",
                "pvc-1",
            ),
            (
                scsi(
                    "QEMU",
                    "QEMU HARDDISK",
                    "7f8b1c2d-1111-4222-8333-444455556666",
                ),
                "scsi-0QEMU_QEMU_HARDDISK_7f8b1c2d-1111-4222-8333-444455556666",
                "7f8b1c2d-1111-4222-8333-444455556666",
            ),
        ] {
            let disk = Identity::of(&facts).unwrap();
            assert_eq!(disk.matches(&names(&[name])), Match::Whole, "{disk:?}");
            assert_eq!(disk.matches(&serial(id)), Match::Whole);
            assert_eq!(disk.matches(&serial(&id[..4])), Match::No);
            assert_eq!(disk.describe(), name);
        }
    }

    #[test]
    fn a_name_begins_with_the_type_of_its_designator() {
        let facts = ScsiFacts {
            id_page: page83(&[(2, 1, b"ACME v-1"), (1, 2, &[0xab, 0xcd])]),
            ..ScsiFacts::default()
        };
        let disk = Identity::of(&DiskFacts::Scsi(facts)).unwrap();
        for name in ["scsi-1ACME_v-1", "scsi-2abcd"] {
            assert_eq!(disk.matches(&names(&[name])), Match::Whole, "{disk:?}");
        }
        // Neither designator is a serial number.
        assert!(!disk.is_nameless());
        assert!(Identity::virtio("").is_nameless());
    }

    #[test]
    fn a_world_wide_name_is_that_of_the_unit_and_not_of_its_port() {
        let naa: &[u8] = &[0x50, 0x01, 0x40, 0x5a, 0xbc, 0xde, 0xf0, 0x12];
        let port: &[u8] = &[0x50, 0, 0, 0, 0, 0, 0, 1];
        let facts = ScsiFacts {
            id_page: page83(&[(1, 0x13, port), (1, 3, naa), (1, 5, b"xx")]),
            serial_page: [&[0, 0x80, 0, 6][..], b" s-1  "].concat(),
            ..ScsiFacts::default()
        };
        let disk = Identity::of(&DiskFacts::Scsi(facts)).unwrap();
        let wwn = |text: &str| DiskIdentity::Wwn(text.to_owned());
        assert_eq!(disk.matches(&wwn("0x5001405ABCDEF012")), Match::Whole);
        assert_eq!(disk.matches(&wwn("0x5000000000000001")), Match::No);
        let names = names(&["wwn-0x5001405abcdef012"]);
        assert_eq!(disk.matches(&names), Match::Whole);
        assert_eq!(disk.matches(&serial("s-1")), Match::Whole);
    }

    #[test]
    fn an_nvme_disk_has_its_model_and_serial_and_the_id_of_its_namespace() {
        let disk = Identity::of(&DiskFacts::Nvme(NvmeFacts {
            model: "QEMU NVMe Ctrl   ".to_owned(),
            serial: "vol-1   ".to_owned(),
            wwid: "eui.0011".to_owned(),
        }));
        let disk = disk.unwrap();
        let both = ["nvme-QEMU_NVMe_Ctrl_vol-1", "nvme-eui.0011"];
        assert_eq!(disk.names(), both);
        for wanted in [
            serial("vol-1"),
            DiskIdentity::Wwn("eui.0011".to_owned()),
            names(&["nvme-QEMU_NVMe_Ctrl_vol-1"]),
            names(&["nvme-eui.0011"]),
        ] {
            assert_eq!(disk.matches(&wanted), Match::Whole, "{wanted:?}");
        }
    }

    #[test]
    fn a_page_that_says_more_than_there_is_gives_what_is_whole() {
        let whole = page83(&[(2, 0, b"id-1"), (1, 3, &[1, 2])]);
        let cut = &whole[..whole.len() - 1];
        let found: Vec<_> = designators(cut).iter().map(|it| it.kind).collect();
        assert_eq!(found, [Kind::VendorSpecific]);
        assert_eq!(serial_in(&[0, 0x80, 0xff, 0xff, b'a']), "a");
        assert_eq!(serial_in(&[0, 0x83, 0, 1, b'a']), "");
    }

    proptest! {
        #[test]
        fn no_page_makes_it_panic(page in proptest::collection::vec(any::<u8>(), 0..300)) {
            for number in [0x80, 0x83] {
                let mut page = page.clone();
                if page.len() > 1 {
                    page[1] = number;
                }
                let facts = ScsiFacts {
                    serial_page: page.clone(),
                    id_page: page,
                    ..ScsiFacts::default()
                };
                let disk = Identity::of(&DiskFacts::Scsi(facts)).unwrap();
                prop_assert!(disk.names.iter().all(|name| name.is_ascii()));
            }
        }

        #[test]
        fn a_name_has_no_character_that_leads_elsewhere(serial in "\\PC{0,40}") {
            let disk = Identity::virtio(&serial);
            prop_assert!(disk.names.iter().all(|name| !name.contains(['/', ',', ' '])));
        }
    }
}
