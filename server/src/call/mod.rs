//! The handling of a call: the layer around the call, the response, the failure and its code. This
//! module does not depend on individual calls or on sockets.

mod answer;
mod callers;
mod codes;
mod failure;
mod layer;
mod refusals;
mod rpc;
mod subject;

pub(crate) use answer::{Record, start_of, status};
pub use answer::{answer, in_cloud};
pub use callers::Callers;
pub(crate) use callers::ForbiddenCaller;
pub use codes::code;
pub use failure::{Certainty, Failure, Kind, shortened};
pub(crate) use layer::DURATION;
pub use layer::{CallLayer, CallService};
#[cfg(test)]
pub(crate) use refusals::Refusal;
pub(crate) use refusals::Refusals;
pub use rpc::Rpc;
pub use subject::Subject;
