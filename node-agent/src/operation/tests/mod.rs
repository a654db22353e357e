//! Tests of the operations on the simulated kernel, which can fail and crash at any system call. If
//! the user is root, some of these tests also run on the real kernel, to compare both kernels.

/// Defines a test on the simulated kernel and a test on the real kernel for each of these
/// functions, whose parameter is a test world.
macro_rules! on_both {
    ($($name:ident)+) => {
        mod simulated {
            use super::super::simulated::Simulated;

            $(#[test]
            fn $name() {
                super::$name(&Simulated::new());
            })+
        }
        mod real {
            use super::super::real::in_real_world;

            $(#[test]
            #[ignore = "needs root: make test"]
            fn $name() {
                in_real_world(|world| super::$name(world));
            })+
        }
    };
}

pub(crate) mod bench;
mod came_back;
mod certainty;
mod civo;
mod claimed;
mod cost;
mod counted;
mod covered;
mod disks;
mod encrypted;
mod errnos;
mod flat;
mod foreign_disk;
mod halting;
mod health;
mod in_place;
mod kernels;
mod kubelet_dir;
mod labelled;
mod leftovers;
mod limit;
mod linked;
mod lives;
mod matrix;
mod meanwhile;
pub(crate) mod model;
mod named;
mod new_disk;
mod orphans;
mod power;
mod real;
mod refused;
mod removed;
mod repaired;
mod replaced;
mod replayed;
mod restarted;
mod reused;
pub(crate) mod simulated;
mod storage;
mod suite;
mod sweep;
mod targets;
mod two_disks;
mod unmounted;
mod unread;

/// Whether the long forms of the tests are enabled.
pub(crate) fn is_nightly() -> bool {
    std::env::var_os("BELAY_NIGHTLY").is_some()
}
