//! The simulated machine has no device-mapper: tests in guests use the real driver.

use super::{Fake, Fd};
use crate::kernel::{Dev, Mapper, Mappers, Result};

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
