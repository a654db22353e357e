//! The simulated machine has no device-mapper: tests in guests use the real driver. Of cryptsetup,
//! it has only the command that removes the label of a LUKS2 header.

use super::mkfs::end;
use super::{Fake, Fd};
use crate::kernel::{Child, ChildEnd, Dev, Kernel, Mapper, Mappers, Result};

/// The offsets of the label and of the subsystem in a copy of the header, and their size in bytes.
const TEXTS_AT: [usize; 2] = [24, 208];
const TEXT_BYTES: usize = 48;

impl Mappers for Fake {
    fn is_mapper(&self, _: Dev) -> bool {
        false
    }

    fn mapper(&self, _: Dev) -> Result<Option<Mapper>> {
        Ok(None)
    }

    fn mappers_over(&self, _: Dev) -> Result<Vec<Mapper>> {
        Ok(Vec::new())
    }

    fn mappers(&self) -> Result<Vec<Mapper>> {
        Ok(Vec::new())
    }

    fn sealed_file(&self, _: &[u8]) -> Result<Fd> {
        Err(crate::kernel::Error::new(
            "memfd_create",
            "of a key",
            rustix::io::Errno::NOSYS,
        ))
    }
}

/// Runs `cryptsetup config`, which writes both copies of the header, of 16 KiB each.
pub(super) fn run(fake: &Fake, child: &Child<'_, Fd>) -> Result<ChildEnd> {
    let line = format!("cryptsetup {}", child.args.join(" "));
    fake.call("spawn", line, &[], |_| Ok(()))?;
    assert!(
        child.args.iter().any(|arg| arg == "config"),
        "{:?}",
        child.args
    );
    let Some(device) = child.device else {
        return Ok(end(1, "no device".to_owned()));
    };
    for at in [0, 0x4000] {
        let mut block = vec![0; 4096];
        fake.pread(device, &mut block, at)?;
        for text in TEXTS_AT {
            block[text..text + TEXT_BYTES].fill(0);
        }
        fake.pwrite(device, &block, at)?;
    }
    Ok(end(0, String::new()))
}
