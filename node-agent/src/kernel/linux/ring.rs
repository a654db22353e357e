//! Reads many ranges of a disk at once, by io_uring(7). A cloud's disk completes a read after about
//! a millisecond, no matter how many other reads are in flight.
//!
//! The rings are created before the agent enters its sandbox, which forbids the creation of rings,
//! and are restricted to reads: the sandbox's filter sees that io_uring_enter(2) is called, but not
//! the operations in the ring.

#![expect(
    unsafe_code,
    reason = "the kernel fills the buffers of a ring later than the call"
)]

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;

use super::files::path_of;
use crate::kernel::{AlignedBuf, Error, Reads, Result};

/// Maximum number of disks that are read by rings at a time; for other disks the caller uses
/// pread(2).
const RINGS: usize = 4;
/// Maximum number of reads in flight for one disk. A virtio disk has a queue of 128 or 256.
const ENTRIES: u32 = 64;
/// Memory for the reads of one disk, in bytes. At a millisecond per read, this memory is enough for
/// 2 GB/s.
const BUFFER_BYTES: usize = 2 << 20;

/// The rings of this process, which clones share.
#[derive(Clone, Default)]
pub(super) struct Rings(Arc<[Mutex<Option<IoUring>>]>);

impl fmt::Debug for Rings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rings({})", self.0.len())
    }
}

impl Rings {
    /// Creates the rings.
    ///
    /// # Errors
    /// Returns EPERM if `kernel.io_uring_disabled` or a seccomp filter forbids rings, ENOSYS if the
    /// kernel was built without io_uring.
    pub(super) fn open() -> Result<Self> {
        let ring = |_| Ok(Mutex::new(Some(reader()?)));
        let all: io::Result<Vec<_>> = (0..RINGS).map(ring).collect();
        let failed = |error| Error::new("io_uring_setup", "of this process", errno(&error));
        Ok(Rings(all.map_err(failed)?.into()))
    }

    /// Implements [`crate::kernel::Kernel::pread_at_once`].
    pub(super) fn read(&self, fd: &OwnedFd, longest: usize, reads: &mut dyn Reads) -> Result<bool> {
        let Some((mut place, ring)) = self.0.iter().find_map(free) else {
            return Ok(false);
        };
        let mut flight = Flight::new(ring, longest);
        let done = flight.run(fd, reads, |result| result);
        *place = flight.land();
        done
    }
}

type Place<'a> = MutexGuard<'a, Option<IoUring>>;

/// Takes a ring that is not in use. Returns the ring and its slot, to which the caller must return
/// the ring.
fn free(place: &Mutex<Option<IoUring>>) -> Option<(Place<'_>, IoUring)> {
    let mut place = match place.try_lock() {
        Ok(place) => place,
        Err(TryLockError::Poisoned(place)) => place.into_inner(),
        Err(TryLockError::WouldBlock) => return None,
    };
    let ring = place.take()?;
    Some((place, ring))
}

/// Creates a ring that is restricted to reads.
fn reader() -> io::Result<IoUring> {
    let ring = IoUring::builder()
        .dontfork()
        .setup_r_disabled()
        .build(ENTRIES)?;
    let submitter = ring.submitter();
    submitter.register_restrictions(&mut [Restriction::sqe_op(opcode::Read::CODE)])?;
    submitter.register_enable_rings()?;
    Ok(ring)
}

/// Reads in flight. The kernel writes into a buffer until its read has completed.
struct Flight {
    ring: Option<IoUring>,
    /// Buffers of equal length; each is used by one read at a time.
    buffers: Vec<AlignedBuf>,
    /// The range that is being read into each buffer: offset and length in bytes.
    ranges: Vec<Option<(u64, usize)>>,
}

impl Flight {
    fn new(ring: IoUring, longest: usize) -> Self {
        let count = (BUFFER_BYTES / longest.max(1)).clamp(1, ENTRIES as usize);
        Flight {
            ring: Some(ring),
            buffers: (0..count).map(|_| AlignedBuf::new(longest)).collect(),
            ranges: vec![None; count],
        }
    }

    /// Reads until there are no more ranges, or a read has failed, and then waits for all reads in
    /// flight, unless the ring itself fails. Returns `false` if the disk must be read without a
    /// ring.
    ///
    /// `answer` replaces results of the kernel, for tests.
    fn run(
        &mut self,
        fd: &OwnedFd,
        reads: &mut dyn Reads,
        answer: impl Fn(i32) -> i32,
    ) -> Result<bool> {
        let failed = |call, errno| Error::new(call, path_of(fd), errno);
        let mut done = Ok(true);
        loop {
            while matches!(done, Ok(true))
                && let Some(slot) = self.ranges.iter().position(Option::is_none)
                && let Some(range) = reads.next()
            {
                self.push(fd, slot, range);
            }
            if !self.is_flying() {
                return done;
            }
            if let Err(error) = self.wait() {
                // The reads remain in flight, and `drop` leaks their buffers, because the kernel
                // still writes into them.
                return Err(failed("io_uring_enter", errno(&error)));
            }
            while let Some((slot, result)) = self.landed() {
                let Some(range) = self.ranges[slot].take() else {
                    continue;
                };
                let result = answer(result);
                let valid = usize::try_from(result);
                match valid.map_err(|_| Errno::from_raw_os_error(-result)) {
                    Ok(valid) => reads.take(range, &self.buffers[slot][..valid]),
                    // The disk can only be read by blocking calls (some drivers before Linux 6.5),
                    // so repeating the read in the ring would fail in the same way.
                    Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP) => {
                        reads.take(range, &[]);
                        done = done.map(|_| false);
                    }
                    Err(errno) => done = done.and(Err(failed("io_uring read", errno))),
                }
            }
        }
    }

    fn push(&mut self, fd: &OwnedFd, slot: usize, (offset, length): (u64, usize)) {
        let buffer = &mut self.buffers[slot][..length];
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let fd = types::Fd(fd.as_raw_fd());
        let entry = opcode::Read::new(fd, buffer.as_mut_ptr(), length)
            .offset(offset)
            .build()
            .user_data(slot as u64);
        self.ranges[slot] = Some((offset, length as usize));
        let Some(ring) = &mut self.ring else { return };
        // SAFETY: the buffer has `length` bytes, and is neither moved, read nor written until this
        // read has completed: `ranges` has an entry for it until then, and `drop` leaks the buffers
        // of reads that have not completed. The descriptor is open while `run` borrows it, and the
        // kernel holds a reference to the file from the submission on.
        let pushed = unsafe { ring.submission().push(&entry) };
        // There are at most as many buffers as entries of the ring.
        debug_assert!(pushed.is_ok());
    }

    fn is_flying(&self) -> bool {
        self.ranges.iter().any(Option::is_some)
    }

    /// Submits the pushed reads, and waits until at least one read has completed.
    fn wait(&mut self) -> io::Result<()> {
        let Some(ring) = &mut self.ring else {
            return Ok(());
        };
        loop {
            match ring.submit_and_wait(1) {
                Err(error) if [Errno::INTR, Errno::AGAIN, Errno::BUSY].contains(&errno(&error)) => {
                }
                done => return done.map(drop),
            }
        }
    }

    /// Returns the next completed read: its buffer, and the number of valid bytes or the negative
    /// errno.
    fn landed(&mut self) -> Option<(usize, i32)> {
        let entry = self.ring.as_mut()?.completion().next()?;
        let slot = usize::try_from(entry.user_data()).ok()?;
        Some((slot, entry.result()))
    }

    /// Returns the ring if it can be used again, which requires that no read is in flight.
    fn land(mut self) -> Option<IoUring> {
        self.ring.take().filter(|_| !self.is_flying())
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.is_flying() {
            // Reads are in flight here only after a failure of the ring, or a panic.
            std::mem::forget(std::mem::take(&mut self.buffers));
        }
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    const BLOCK: usize = 4096;
    const BLOCKS: u64 = 1000;

    /// Creates a file in which every byte of a block is the block's number modulo 251.
    fn numbered() -> File {
        let mut file = tempfile::tempfile().unwrap();
        for block in 0..BLOCKS {
            file.write_all(&[value(block); BLOCK]).unwrap();
        }
        file
    }

    fn value(block: u64) -> u8 {
        u8::try_from(block % 251).unwrap()
    }

    /// Requests blocks, and records the blocks that were read.
    struct Blocks<F> {
        wanted: std::ops::Range<u64>,
        got: Vec<u64>,
        meanwhile: F,
    }

    impl<F: FnMut()> Reads for Blocks<F> {
        fn next(&mut self) -> Option<(u64, usize)> {
            self.wanted
                .next()
                .map(|block| (block * BLOCK as u64, BLOCK))
        }

        fn take(&mut self, (at, length): (u64, usize), bytes: &[u8]) {
            let block = at / BLOCK as u64;
            if block < BLOCKS {
                assert_eq!(bytes, vec![value(block); length]);
            } else {
                assert_eq!(bytes, b"", "past the end of the file");
            }
            self.got.push(block);
            (self.meanwhile)();
        }
    }

    fn read(rings: &Rings, file: &OwnedFd, meanwhile: impl FnMut()) -> Result<bool> {
        let wanted = 0..BLOCKS + 2;
        let mut blocks = Blocks {
            wanted: wanted.clone(),
            got: Vec::new(),
            meanwhile,
        };
        let is_read = rings.read(file, BLOCK, &mut blocks)?;
        blocks.got.sort_unstable();
        assert_eq!(blocks.got, if is_read { wanted.collect() } else { vec![] });
        Ok(is_read)
    }

    #[test]
    fn every_range_comes_once_with_its_bytes() {
        let rings = Rings::open().unwrap();
        let file = OwnedFd::from(numbered());
        for _ in 0..3 {
            assert!(read(&rings, &file, || ()).unwrap());
        }
        assert!(!read(&Rings::default(), &file, || ()).unwrap());
    }

    #[test]
    fn so_many_disks_are_read_at_once_and_no_more() {
        fn nested(rings: &Rings, file: &OwnedFd, left: usize) {
            let mut is_first = true;
            let meanwhile = || {
                if std::mem::take(&mut is_first) {
                    match left {
                        0 => assert!(!read(rings, file, || ()).unwrap()),
                        _ => nested(rings, file, left - 1),
                    }
                }
            };
            assert!(read(rings, file, meanwhile).unwrap());
        }
        nested(
            &Rings::open().unwrap(),
            &OwnedFd::from(numbered()),
            RINGS - 1,
        );
    }

    #[test]
    fn a_failed_read_is_an_error_and_the_ring_can_be_used_again() {
        let rings = Rings::open().unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let unreadable = File::options().write(true).open(file.path()).unwrap();
        for _ in 0..=RINGS {
            let error = read(
                &rings,
                &OwnedFd::from(unreadable.try_clone().unwrap()),
                || (),
            );
            let text = error.unwrap_err().to_string();
            assert!(text.starts_with("io_uring read "), "{text}");
            assert!(text.contains("EBADF"), "{text}");
        }
        assert!(read(&rings, &OwnedFd::from(numbered()), || ()).unwrap());
    }

    #[test]
    fn what_answers_only_those_who_wait_is_left_to_the_caller() {
        #[derive(Default)]
        struct Counts(usize, usize);
        impl Reads for Counts {
            fn next(&mut self) -> Option<(u64, usize)> {
                self.0 += 1;
                Some((0, BLOCK))
            }

            fn take(&mut self, range: (u64, usize), bytes: &[u8]) {
                assert_eq!((range, bytes), ((0, BLOCK), &b""[..]));
                self.1 += 1;
            }
        }
        let file = OwnedFd::from(numbered());
        for errno in [Errno::AGAIN, Errno::OPNOTSUPP] {
            let mut flight = Flight::new(reader().unwrap(), BLOCK);
            let mut counts = Counts::default();
            let done = flight.run(&file, &mut counts, |_| -errno.raw_os_error());
            assert!(!done.unwrap());
            assert_eq!((counts.0, counts.1), (ENTRIES as usize, ENTRIES as usize));
            assert!(flight.land().is_some());
        }
    }

    #[test]
    fn a_panic_costs_no_more_than_the_ring() {
        let rings = Rings::open().unwrap();
        let file = OwnedFd::from(numbered());
        let broken = AssertUnwindSafe(|| read(&rings, &file, || panic!("a bug")));
        assert!(catch_unwind(broken).is_err());
        for _ in 0..RINGS {
            assert!(read(&rings, &file, || ()).unwrap());
        }
    }

    #[test]
    fn a_ring_does_nothing_but_read() {
        let mut ring = reader().unwrap();
        let entry = opcode::Nop::new().build();
        // SAFETY: the operation accesses no memory.
        unsafe { ring.submission().push(&entry).unwrap() };
        ring.submit_and_wait(1).unwrap();
        let result = ring.completion().next().unwrap().result();
        assert_eq!(result, -Errno::ACCESS.raw_os_error());
        let registered = ring.submitter().register_files(&[0]).unwrap_err();
        assert_eq!(errno(&registered), Errno::ACCESS);
    }
}
