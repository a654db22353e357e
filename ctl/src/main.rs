//! belayctl: calls any CSI socket by hand. What it does is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    belay_ctl::run()
}
