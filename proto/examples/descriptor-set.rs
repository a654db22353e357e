//! Writes the encoded descriptor set to standard output, for the wire test and for tools such as
//! grpcurl (`-protoset`).

use std::io::{self, Write as _};

fn main() -> io::Result<()> {
    io::stdout()
        .lock()
        .write_all(belay_proto::FILE_DESCRIPTOR_SET)
}
