#!/usr/bin/env bash
# without_lints.sh RUSTC ARGUMENT...: compiles a crate of the workspace. The lints are for the sources,
# and not for the faults in them. For bash, since dash drops variables with a hyphen in their name,
# such as CARGO_BIN_EXE_belay-controller.
exec "$@" --cap-lints=allow
