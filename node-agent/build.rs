//! Places the functions that calls use next to each other in release builds (`order.ld`), so that
//! they share pages.

use std::path::PathBuf;

const ORDER: &str = "order.ld";

fn main() -> std::io::Result<()> {
    println!("cargo::rerun-if-changed={ORDER}");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release && let Some(directory) = std::env::var_os("OUT_DIR") {
        // A copy: cargo runs this once for all checkouts that share a target directory.
        let copy = PathBuf::from(directory).join(ORDER);
        std::fs::copy(ORDER, &copy)?;
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{}", copy.display());
    }
    Ok(())
}
