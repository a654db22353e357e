//! Code shared by the benches: the directory of a run, the release binary in it, and two ways to
//! run the lifecycle of the same volume, by RPCs to belay-node and by bare system calls.
//!
//! The benches reach belay-node only through its socket, as the kubelet does; none of its code is
//! linked here.

mod bare;
mod bench_dir;
mod echo;
mod machine;
mod plot;
mod program;
mod rpc;
mod samples;
mod storage;
mod table;
mod verdict;
mod volume;

pub use bare::Bare;
pub use bench_dir::BenchDir;
pub use echo::Echo;
pub use machine::{Machine, load};
pub use plot::Plot;
pub use program::{Memory, Program, binary};
pub use rpc::{Client, Kept, with_deadline};
pub use samples::{SAMPLES_MIN, Samples, micros, ratio};
pub use storage::{Export, Pair, Storage};
pub use table::{Row, head};
pub use verdict::{Limited, Verdict, judge};
pub use volume::{Call, Ours, Side, VOLUME_BYTES, Volume, total};

/// Returns the exit code of a bench, after writing an error to stderr.
#[must_use]
pub fn exit_code(run: std::io::Result<()>) -> std::process::ExitCode {
    match run {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("belay-benches: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
