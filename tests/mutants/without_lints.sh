#!/usr/bin/env bash
# without_lints.sh RUSTC ARGUMENT...: compiles a crate of the workspace without lints, which are for
# the sources, and not for the faults in them. Uses bash, since dash drops variables with a hyphen
# in their name, such as CARGO_BIN_EXE_belay-controller.
exec "$@" --cap-lints=allow
