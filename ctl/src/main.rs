//! belayctl: calls any CSI socket from the command line. The code is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    belay_ctl::run()
}
