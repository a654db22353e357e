//! Where a file has data, so that an archive has no holes.

use super::super::copy::content::{BLOCK_BYTES, has_holes, refuse_endless, segment};
use super::super::copy::report::Report;
use super::super::copy::walk::Stop;
use super::super::tar::Segment;
use super::archive::read_at;
use rustix::fs::Stat;
use std::os::fd::OwnedFd;

/// The most segments; after that, all is data. An archive has them in lines of up to 40 bytes, and
/// Go reads at most 1 MiB of these (`maxSpecialFileSize` in its archive/tar), as csi-driver-nfs.
const SEGMENTS_MAX: usize = 1 << 14;

/// The segments of a file; none if it has no holes.
pub(super) fn segments(
    from: &OwnedFd,
    stat: &Stat,
    buffer: &mut [u8],
    report: &mut Report<'_>,
    shown: &str,
) -> Result<Option<Vec<Segment>>, Stop> {
    if !has_holes(stat) {
        return Ok(None);
    }
    let size = u64::try_from(stat.st_size).unwrap_or_default();
    let mut found = Found(Vec::new());
    let mut here = 0;
    while let Some((data, hole)) = segment(from, here, size, shown)? {
        if (data, hole) == (0, size) {
            // Before NFS 4.2, a server does not say where holes are.
            refuse_endless(stat, shown)?;
            return seen(from, size, buffer, report, shown).map(Some);
        }
        found.add(data, hole, size);
        here = hole;
        report.beat()?;
    }
    Ok(Some(found.0))
}

/// By the zeros in it.
fn seen(
    from: &OwnedFd,
    size: u64,
    buffer: &mut [u8],
    report: &mut Report<'_>,
    shown: &str,
) -> Result<Vec<Segment>, Stop> {
    let mut found = Found(Vec::new());
    let mut here = 0;
    while here < size {
        let rest = usize::try_from(size - here).unwrap_or(usize::MAX);
        let length = rest.min(buffer.len());
        let read = read_at(from, &mut buffer[..length], here, shown)?;
        if read == 0 {
            break;
        }
        for block in buffer[..read].chunks(BLOCK_BYTES) {
            let end = here + block.len() as u64;
            if block.iter().any(|byte| *byte != 0) {
                found.add(here, end, size);
            }
            here = end;
        }
        report.beat()?;
    }
    Ok(found.0)
}

struct Found(Vec<Segment>);

impl Found {
    fn add(&mut self, begin: u64, end: u64, size: u64) {
        let is_full = self.0.len() >= SEGMENTS_MAX;
        match self.0.last_mut() {
            Some(last) if is_full => last.length = size - last.offset,
            Some(last) if last.offset + last.length == begin => last.length = end - last.offset,
            _ => self.0.push(Segment {
                offset: begin,
                length: end - begin,
            }),
        }
    }
}
