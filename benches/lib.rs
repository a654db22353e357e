//! What the benches share: their own directory, the release binary in it, and the lifecycle of the
//! same volume in two ways, by RPCs to belay-node and by the bare system calls.
//!
//! It knows belay-node only by its socket, like the kubelet; no code of it is linked here.

mod bare;
mod bench_dir;
mod echo;
mod machine;
mod plot;
mod program;
mod rpc;
mod samples;
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
pub use table::{Row, head};
pub use verdict::{Limited, Verdict, judge};
pub use volume::{Call, Ours, Side, VOLUME_BYTES, Volume, total};

/// The exit code of a bench; the error goes to stderr.
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
