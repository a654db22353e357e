//! Names that are not unique, and waiting: what the operations need wherever the storage answers
//! before it is done. Knows no cloud.

pub(super) mod by_name;
pub(super) mod wait;
