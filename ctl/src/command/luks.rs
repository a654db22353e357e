//! `belayctl luks`: shows the LUKS header of a volume, without a passphrase.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use super::locate;
use crate::failure::Failure;
use crate::machine::kubelet;
use crate::render::{Answer, Cell, Rows};
use crate::size;

/// The beginning of the first and the second copy of a header, and the possible offsets of the
/// second copy (LUKS2 On-Disk Format Specification 1.1, section 2.1).
const MAGICS: [&[u8]; 2] = [b"LUKS\xba\xbe", b"SKUL\xba\xbe"];
const SECOND_AT: [u64; 9] = [
    0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000,
];
/// The size in bytes of the binary part of a copy, behind which the JSON area begins.
const BINARY_BYTES: usize = 4096;
/// The offset of the size of a copy, with its JSON area.
const SIZE_AT: usize = 8;
/// Ranges of the binary part. The UUID is at the same place in both versions.
const LABEL: (usize, usize) = (24, 48);
const UUID: (usize, usize) = (168, 40);
const SUBSYSTEM: (usize, usize) = (208, 48);
/// The key slots of the first version: their offset, size and number, and the mark of a used one
/// (LUKS On-Disk Format Specification 1.2.3, figures 1 and 2).
const OLD_SLOTS: (usize, usize, usize) = (208, 48, 8);
const OLD_USED: [u8; 4] = [0x00, 0xac, 0x71, 0xf3];

#[derive(Args)]
pub(crate) struct Luks {
    /// Id of the volume, the name of its persistent volume, or the path of its file or disk
    volume: String,
    /// The kubelet's directory
    #[arg(long, value_name = "DIR", default_value = kubelet::DIRECTORY)]
    kubelet_dir: PathBuf,
}

impl Luks {
    /// Reads the header of the volume's device, or of the file.
    ///
    /// # Errors
    /// Fails if the volume has no device on this node, if the device cannot be read, or if it has
    /// no LUKS header.
    pub(crate) fn run(self) -> Result<Answer, Failure> {
        let path = match self.volume.contains('/') {
            true => PathBuf::from(&self.volume),
            false => locate::device_of(&self.volume, &self.kubelet_dir)?.ok_or_else(|| {
                Failure::Machine(format!(
                    "no device on this node belongs to a volume {}; give the path of its disk, or \
                     of its file, which `local` has in /var/lib/belay/volumes",
                    self.volume
                ))
            })?,
        };
        let shown = path.display();
        let failed = |error| Failure::Machine(format!("{shown}: {error}"));
        let file = File::open(&path).map_err(failed)?;
        let header = Header::read(&file).map_err(failed)?;
        let header = header
            .ok_or_else(|| Failure::Machine(format!("{shown}: neither copy of a LUKS header")))?;
        let mut rows = Rows::new("header", &["what", "value", "detail"], header.rows(&path));
        rows.notes = vec![
            String::new(),
            "Delete the pods of the volume first. If it is on a disk, whose name may change then, \
             find the disk"
                .to_owned(),
            "with this uuid again. Then:".to_owned(),
            format!("  cryptsetup open --type luks {shown} NAME   # asks for the passphrase"),
            "  mount /dev/mapper/NAME /mnt".to_owned(),
            "  umount /mnt && cryptsetup close NAME".to_owned(),
        ];
        Ok(Answer::Rows(rows))
    }
}

/// A copy of a LUKS header.
struct Header {
    /// Whether this is the second copy. The checksums are not verified.
    is_second: bool,
    binary: Vec<u8>,
    /// The JSON area; `None` in the first version, or if it is damaged.
    json: Option<Value>,
}

impl Header {
    fn read(file: &File) -> std::io::Result<Option<Self>> {
        let places = [(0, MAGICS[0])].into_iter();
        let places = places.chain(SECOND_AT.map(|at| (at, MAGICS[1])));
        for (number, (at, magic)) in places.enumerate() {
            let binary = read_at(file, at, BINARY_BYTES)?;
            if binary.starts_with(magic) {
                let area = bytes(&binary, SIZE_AT, 8).and_then(|it| it.try_into().ok());
                let area = area.map_or(0, u64::from_be_bytes);
                let json = match SECOND_AT.contains(&area) {
                    true => {
                        let length = usize::try_from(area).unwrap_or(0) - BINARY_BYTES;
                        read_at(file, at + BINARY_BYTES as u64, length)?
                    }
                    false => Vec::new(),
                };
                let end = json.iter().position(|byte| *byte == 0);
                let json = json.get(..end.unwrap_or(json.len())).unwrap_or_default();
                return Ok(Some(Header {
                    is_second: number > 0,
                    json: serde_json::from_slice(json).ok(),
                    binary,
                }));
            }
        }
        Ok(None)
    }

    fn version(&self) -> u8 {
        bytes(&self.binary, 7, 1).map_or(0, |it| it[0])
    }

    fn text(&self, (at, length): (usize, usize)) -> String {
        let text = bytes(&self.binary, at, length).unwrap_or_default();
        let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(text).into_owned()
    }

    fn rows(&self, path: &Path) -> Vec<Vec<Cell>> {
        let row = |what: &str, value: String, detail: String| {
            vec![
                Cell::Text(what.to_owned()),
                Cell::Text(value),
                Cell::Text(detail),
            ]
        };
        let damage = match self.is_second {
            true => "the second copy: the first is damaged, or has other content",
            false => "",
        };
        let version = format!("LUKS{}", self.version());
        let mut rows = vec![
            row("device", path.display().to_string(), String::new()),
            row("version", version, damage.to_owned()),
            row("uuid", self.text(UUID), String::new()),
        ];
        if self.version() == 1 {
            rows.extend(self.old_slots().map(|(number, iterations)| {
                row(
                    "slot",
                    number.to_string(),
                    format!("pbkdf2, {iterations} iterations"),
                )
            }));
            return rows;
        }
        let unfinished = match self.text(SUBSYSTEM).as_str() {
            "" => String::new(),
            "belay:unfinished" => "belay was formatting the volume".to_owned(),
            other => format!("subsystem {other}"),
        };
        rows.push(row("label", self.text(LABEL), unfinished));
        let Some(json) = &self.json else {
            rows.push(row(
                "slots",
                String::new(),
                "the JSON area of this copy is damaged".to_owned(),
            ));
            return rows;
        };
        let all = |key: &str| {
            json.get(key)
                .and_then(Value::as_object)
                .into_iter()
                .flatten()
        };
        rows.extend(all("keyslots").map(|(number, slot)| row("slot", number.clone(), cost(slot))));
        rows.extend(all("tokens").map(|(number, token)| {
            let kind = token
                .get("type")
                .and_then(Value::as_str)
                .unwrap_or_default();
            row(
                "token",
                number.clone(),
                format!("{kind}; belay does not use it"),
            )
        }));
        rows.extend(all("segments").map(|(number, segment)| {
            let cipher = segment.get("encryption").and_then(Value::as_str);
            row(
                "segment",
                number.clone(),
                cipher.unwrap_or_default().to_owned(),
            )
        }));
        rows
    }

    /// Returns the number and the iterations of each used key slot of the first version.
    fn old_slots(&self) -> impl Iterator<Item = (usize, u32)> {
        let (at, length, count) = OLD_SLOTS;
        (0..count).filter_map(move |number| {
            let slot = bytes(&self.binary, at + number * length, length)?;
            let iterations = slot.get(4..8)?.try_into().ok()?;
            slot.starts_with(&OLD_USED)
                .then(|| (number, u32::from_be_bytes(iterations)))
        })
    }
}

/// Returns the key derivation of a slot, and what it costs. The memory in a header is in KiB.
fn cost(slot: &Value) -> String {
    let text = |pointer: &str| slot.pointer(pointer).and_then(Value::as_str);
    let number = |pointer: &str| slot.pointer(pointer).and_then(Value::as_u64);
    let kind = text("/kdf/type").unwrap_or("unknown");
    match (
        number("/kdf/memory"),
        number("/kdf/time"),
        number("/kdf/iterations"),
    ) {
        (Some(kib), Some(time), _) => {
            let memory = size::show(kib.saturating_mul(1024));
            let threads = match number("/kdf/cpus") {
                Some(threads) if threads > 1 => format!(", {threads} threads"),
                _ => String::new(),
            };
            format!("{kind}, {memory}, {time} passes{threads}")
        }
        (_, _, Some(iterations)) => format!("{kind}, {iterations} iterations"),
        _ => kind.to_owned(),
    }
}

fn read_at(file: &File, at: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    let mut done = 0;
    while done < length {
        match file.read_at(&mut buffer[done..], at + done as u64)? {
            0 => break,
            read => done += read,
        }
    }
    buffer.truncate(done);
    Ok(buffer)
}

fn bytes(of: &[u8], at: usize, length: usize) -> Option<&[u8]> {
    of.get(at..at + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rows of a file with these blocks, joined by `|`.
    fn shown(blocks: &[(u64, Vec<u8>)]) -> Option<Vec<String>> {
        let file = tempfile::tempfile().unwrap();
        for (at, block) in blocks {
            file.write_all_at(block, *at).unwrap();
        }
        let header = Header::read(&file).unwrap()?;
        let rows = header.rows(Path::new("/v"));
        let line = |row: Vec<Cell>| row.iter().map(|cell| cell.shown(false)).collect::<Vec<_>>();
        Some(rows.into_iter().map(|row| line(row).join("|")).collect())
    }

    fn copy(magic: &[u8], version: u8) -> Vec<u8> {
        let mut block = vec![0; BINARY_BYTES];
        block[..6].copy_from_slice(magic);
        block[7] = version;
        block[SIZE_AT..SIZE_AT + 8].copy_from_slice(&0x4000_u64.to_be_bytes());
        block[UUID.0..UUID.0 + 3].copy_from_slice(b"abc");
        block
    }

    #[test]
    fn slots_costs_and_tokens_of_a_header_are_shown() {
        let json = r#"{"keyslots": {
            "0": {"kdf": {"type": "argon2id", "memory": 32768, "time": 4, "cpus": 2}},
            "3": {"kdf": {"type": "pbkdf2", "iterations": 1000}}},
            "tokens": {"0": {"type": "systemd-tpm2"}},
            "segments": {"0": {"encryption": "aes-xts-plain64"}}}"#;
        let mut first = copy(MAGICS[0], 2);
        first[LABEL.0..LABEL.0 + 7].copy_from_slice(b"belay-1");
        first[SUBSYSTEM.0..SUBSYSTEM.0 + 16].copy_from_slice(b"belay:unfinished");
        let rows = shown(&[(0, first), (4096, json.into())]).unwrap();
        let expected = [
            "device|/v|-",
            "version|LUKS2|-",
            "uuid|abc|-",
            "label|belay-1|belay was formatting the volume",
            "slot|0|argon2id, 32MiB, 4 passes, 2 threads",
            "slot|3|pbkdf2, 1000 iterations",
            "token|0|systemd-tpm2; belay does not use it",
            "segment|0|aes-xts-plain64",
        ];
        assert_eq!(rows.len(), expected.len(), "{rows:?}");
        for (row, expected) in rows.iter().zip(expected) {
            assert_eq!(row, expected);
        }
    }

    #[test]
    fn a_damaged_header_and_one_of_the_first_version_are_shown() {
        let rows = shown(&[(0x4000, copy(MAGICS[1], 2)), (0x5000, vec![b'{'])]).unwrap();
        assert!(rows[1].contains("the first is damaged"), "{rows:?}");
        assert!(rows[4].contains("the JSON area of this copy"), "{rows:?}");

        let mut old = copy(MAGICS[0], 1);
        let at = OLD_SLOTS.0 + 2 * OLD_SLOTS.1;
        old[at..at + 4].copy_from_slice(&OLD_USED);
        old[at + 4..at + 8].copy_from_slice(&5000_u32.to_be_bytes());
        let rows = shown(&[(0, old)]).unwrap();
        assert_eq!(rows.last().unwrap(), "slot|2|pbkdf2, 5000 iterations");

        assert_eq!(shown(&[(0, vec![1; 8192])]), None);
    }
}
