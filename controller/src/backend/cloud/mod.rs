//! Code shared by the backends of clouds: IDs and times in responses, and reads shared by calls.

pub(super) mod ids;
pub(super) mod rounds;
pub(super) mod time;
