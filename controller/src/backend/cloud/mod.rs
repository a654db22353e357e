//! What the backends of clouds share: IDs and times in answers, and reads that calls share.

pub(super) mod ids;
pub(super) mod rounds;
pub(super) mod time;
