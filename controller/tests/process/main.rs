//! Tests of the real program, through its socket.

#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod bed;
mod btrfs;
mod creating;
mod crowds;
mod full_disk;
mod health;
mod kills;
mod losses;
#[expect(dead_code, reason = "the tests of the library hide theirs")]
mod mounts;
mod openers;
mod pages;
mod profile;
mod reflink;
mod replaced;
mod restored;
mod service;
mod snapshots;
mod stopped;
mod torn;
mod unmounted;
mod unreadable;
