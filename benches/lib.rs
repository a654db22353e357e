//! What the benches share: a place of their own, the release binary in it, and the same volume's
//! life in two ways, by RPCs to belay-node and by the bare system calls.
//!
//! It knows belay-node as the kubelet does, by its socket; nothing from inside it is linked here.

mod agent;
mod bare;
mod echo;
mod ours;
mod place;
mod rpc;
mod samples;
mod side;
mod table;
mod volume;

pub use agent::{Agent, Memory, binary};
pub use bare::Bare;
pub use echo::Echo;
pub use ours::Ours;
pub use place::Place;
pub use rpc::{Client, Kept};
pub use samples::{SAMPLES_MIN, Samples, micros, ratio};
pub use side::{Call, Side, total};
pub use table::{Row, head};
pub use volume::{VOLUME_BYTES, Volume};

/// What a bench ends with; why it failed goes to stderr.
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
