//! Places the functions that calls use next to each other in release builds (`order.ld`), so that
//! they share pages.

fn main() {
    println!("cargo::rerun-if-changed=order.ld");
    let is_release = std::env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if is_release && let Ok(directory) = std::env::var("CARGO_MANIFEST_DIR") {
        println!("cargo::rustc-link-arg-bins=-Wl,-T,{directory}/order.ld");
    }
}
