# The front door; `make help` lists what there is. Recipes stay short, the work is in scripts.
#
# `make demo` and `make test` work as the first command on a fresh Debian or Ubuntu machine:
# what is missing is installed first, after one line that says what and why.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# One place knows where fetched tools live, for recipes and for scripts run by hand alike.
export PATH := $(shell . tests/setup/env.sh && printf '%s' "$$PATH")
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export BELAY_BIN_DIR ?= $(CARGO_TARGET_DIR)/bin
export GOTOOLCHAIN ?= auto
export MAKE

# CI says --locked here: it builds what Cargo.lock names, or fails.
CARGO_FLAGS ?=
# Mounts made by tests stay in a mount namespace of their own, and die with it.
ISOLATED := unshare --mount --propagation private

.PHONY: root help setup build check fmt clippy deny tidy \
	test unit mounts wire sanity demo bench mutants nightly images packages monitoring chart manifests \
	e2e cluster cluster-down clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install whatever check, test and demo need (nearly free when it is all there)
	@tests/setup/setup.sh check test demo

build: ## the programs, static, in target/bin
	@tests/setup/setup.sh demo
	tests/setup/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS)

check: ## what needs no root: format, lints, dependencies, house rules
	@tests/setup/setup.sh check
	@tests/steps.sh fmt clippy deny tidy

test: root ## everything: units, real mounts, wire, csi-sanity (root)
	@tests/setup/setup.sh test
	@tests/steps.sh build unit mounts wire chart sanity

demo: root build ## watch a volume live its life (root); ROUNDS=n rounds, KEEP=1 leaves it running
	@"$(BELAY_BIN_DIR)/belay-demo"

fmt: ## format check alone
	cargo fmt --all --check

clippy: ## lints alone
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

deny: ## bans, licences and sources of all dependencies
	cargo deny --log-level warn check bans licenses sources

tidy: ## house rules alone: lengths, layers, words (see CONTRIBUTING.md)
	cargo test $(CARGO_FLAGS) -p belay-tests --test tidy

unit: ## units and tidy alone; no root, no network
	cargo test $(CARGO_FLAGS) --workspace

mounts: root ## what is ignored without root: real devices and mounts, black box, crashes (root)
	$(ISOLATED) cargo test $(CARGO_FLAGS) --workspace --tests -- --ignored

wire: ## our proto beside the official Go module, descriptor by descriptor
	cd tests/wire && go test -count=1 ./...

chart: ## the Helm chart: lint, plain manifests, values, refusals; needs no cluster
	@tests/setup/go.sh
	@tests/setup/helm.sh
	cd tests/deploy && go test -count=1 ./...

manifests: ## write deploy/manifests anew from the chart
	@tests/setup/go.sh
	deploy/manifests/generate.sh

sanity: root ## csi-sanity against both binaries: mount and block, with and without topology (root)
	@tests/sanity/run.sh

bench: root build ## criterion: stage, publish and the way back beside the bare system calls (root)
	$(ISOLATED) cargo bench $(CARGO_FLAGS) -p belay-benches

e2e: root build ## in a real Kubernetes: chart, checks, storage suite (root); FULL=1, CHAOS=minutes, PARTS="name..."
	@tests/setup/setup.sh e2e
	@FULL='$(FULL)' CHAOS='$(CHAOS)' PARTS='$(PARTS)' tests/beds/kubernetes/e2e.sh '$(BELAY_BIN_DIR)'

cluster: root build ## a Kubernetes with Belay to play with, or the new build into it (root)
	@tests/setup/setup.sh e2e
	@tests/beds/kubernetes/up.sh '$(BELAY_BIN_DIR)'

cluster-down: root ## and away with it (root)
	@tests/beds/kubernetes/cluster.sh down

mutants: root ## small faults put into the code: does a test notice? (root); SAMPLE=n, SEED=n, FILES="glob..."
	@tests/setup/setup.sh test mutants
	@SAMPLE='$(SAMPLE)' SEED='$(SEED)' FILES='$(FILES)' tests/mutants/run.sh

nightly: root ## the long forms of the tests, part by part (root); resumes, PARTS="name..." for some
	@tests/setup/setup.sh test e2e mutants
	@tests/nightly.sh $(PARTS)

images: root build ## both container images in target/images, tried from the archives (root)
	deploy/images/build.sh '$(CARGO_TARGET_DIR)/images' '$(BELAY_BIN_DIR)'
	tests/images/check.sh '$(CARGO_TARGET_DIR)/images' '$(BELAY_BIN_DIR)'

packages: root build ## Debian packages in target/packages, tried beneath systemd and udev (root)
	deploy/packages/build.sh '$(CARGO_TARGET_DIR)/packages' '$(BELAY_BIN_DIR)'
	tests/systemd/check.sh '$(CARGO_TARGET_DIR)/packages'
	tests/udev/check.sh

monitoring: root build ## alerts, dashboard and runbook, by tests and on a real Prometheus (root)
	tests/monitoring/check.sh
	tests/monitoring/real.sh '$(BELAY_BIN_DIR)'

clean: ## remove what cargo built
	cargo clean

root:
	@[ "$$(id -u)" = 0 ] || { printf 'belay: this makes devices and mounts; please run: %s\n' \
		'sudo make $(MAKECMDGOALS)' >&2; exit 1; }
