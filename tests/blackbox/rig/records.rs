//! The data of a volume's user: distinguishable records, each of which is on disk once it was
//! written.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::Chance;

/// The size of a record, in bytes.
const RECORD: usize = 4096;
/// Maximum number of records; the smallest volume has space for many times as many.
const RECORDS_MAX: usize = 256;

/// The records of one volume, in order; each is derived from its seed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Records {
    seeds: Vec<u64>,
}

impl Records {
    /// Writes another record, unless there are enough; it is on disk when this returns.
    pub(crate) fn write(&mut self, kind: &str, target: &Path, chance: &mut Chance) {
        if self.seeds.len() == RECORDS_MAX {
            return;
        }
        let seed = chance.bits();
        let file = File::options()
            .write(true)
            .create(kind != "block")
            .open(records_path(kind, target));
        let file = file.expect("open the records for writing");
        file.write_all_at(&record(seed), at(self.seeds.len()))
            .and_then(|()| file.sync_all())
            .expect("write a record");
        self.seeds.push(seed);
    }

    /// Returns the end of the records on a raw device, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        at(self.seeds.len())
    }

    /// Returns the first wrong record; `None` if all are correct.
    pub(crate) fn damage(&self, kind: &str, target: &Path) -> Option<String> {
        if self.seeds.is_empty() {
            return None;
        }
        let path = records_path(kind, target);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) => return Some(format!("{}: {error}", path.display())),
        };
        for (n, seed) in self.seeds.iter().enumerate() {
            let mut found = vec![0; RECORD];
            if let Err(error) = file.read_exact_at(&mut found, at(n)) {
                return Some(format!("{}: record {n}: {error}", path.display()));
            }
            if found != record(*seed) {
                let count = self.seeds.len();
                return Some(format!(
                    "{}: record {n} of {count} is not what was written: it begins with {:x?}",
                    path.display(),
                    &found[..16]
                ));
            }
        }
        None
    }
}

fn records_path(kind: &str, target: &Path) -> PathBuf {
    match kind {
        "block" => target.to_owned(),
        _ => target.join("records"),
    }
}

fn at(n: usize) -> u64 {
    u64::try_from(n * RECORD).expect("an offset")
}

fn record(seed: u64) -> Vec<u8> {
    Chance::seeded(seed).bytes(RECORD)
}
