//! Code shared by the backends of clouds: credentials that change, IDs and times in responses, and
//! reads shared by calls.

pub(super) mod account;
pub(super) mod ids;
pub(super) mod rounds;
pub(super) mod time;
