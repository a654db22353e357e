//! One call: the layer around it, its handler's answer, its failure and the code of that. Knows no
//! single call's meaning, and nothing of sockets.

mod answer;
mod codes;
mod failure;
mod layer;
mod rpc;
mod subject;

pub use answer::answer;
pub(crate) use answer::{Record, start_of, status};
pub use codes::code;
pub use failure::{Certainty, Failure, Kind};
pub(crate) use layer::DURATION;
pub use layer::{CallLayer, CallService};
pub use rpc::Rpc;
pub use subject::Subject;
