# Entry points; `make help` lists them. Recipes are short, the work is in scripts.
#
# `make demo` and `make test` work as the first command on a fresh Debian or Ubuntu machine: missing
# tools are installed first, and each installation is announced in one line.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# env.sh knows where downloaded tools are, for recipes and for scripts alike.
export PATH := $(shell . tests/setup/env.sh && printf '%s' "$$PATH")
export CARGO_TARGET_DIR := $(abspath $(or $(CARGO_TARGET_DIR),target))
export BELAY_BIN_DIR ?= $(CARGO_TARGET_DIR)/bin
export GOTOOLCHAIN ?= auto
export MAKE

# CI sets --locked: build with Cargo.lock as it is, or fail.
CARGO_FLAGS ?=
# Tests mount in a private mount namespace, which is removed with them.
ISOLATED := unshare --mount --propagation private

.PHONY: root help setup build check fmt generated clippy deny tidy \
	test long unit counted mounts guest nfs arrivals openstack wire twins sanity standalone demo bench mutants fuzz nightly \
	images packages \
	release release-check monitoring chart manifests \
	e2e cluster cluster-down clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## install the tools for check, test and demo
	@tests/setup/setup.sh check test demo

build: ## static programs in target/bin
	@tests/setup/setup.sh demo
	tests/setup/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS)

check: ## format, lints, dependencies, house rules
	@tests/setup/setup.sh check
	@tests/steps.sh fmt generated clippy deny tidy

test: root ## units, real mounts, wire, chart, csi-sanity (root); VERBOSE=1 shows all output
	@tests/setup/setup.sh test
	@tests/steps.sh build unit mounts wire chart sanity standalone

long: root ## what CI tests beyond that: counts, guests, twins of clouds (root)
	@tests/setup/setup.sh test
	@tests/steps.sh build counted guest twins

demo: root build ## run full volume lifecycles, with latencies (root); ROUNDS=n, VERBOSE=1, KEEP=1
	@"$(BELAY_BIN_DIR)/belay-demo"

fmt: ## format check only
	cargo fmt --all --check

generated: ## generated files are up to date (those of the chart: make chart)
	@deploy/monitoring/generate.sh | diff deploy/monitoring/prometheus-rule.yaml - || { \
	    echo 'old; please run: deploy/monitoring/generate.sh >deploy/monitoring/prometheus-rule.yaml' >&2; exit 1; }
	@for copy in rules.yaml dashboard.json; do \
	    diff deploy/monitoring/$$copy deploy/chart/monitoring/$$copy || { \
	        echo "differ; please run: make manifests" >&2; exit 1; }; done

clippy: ## lints only
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings

deny: ## bans, licences and sources of all dependencies
	cargo deny --log-level warn check bans licenses sources

tidy: ## house rules only: lengths, layers, words (see CONTRIBUTING.md)
	cargo test $(CARGO_FLAGS) -p belay-tests --test tidy

# Tests that drive programs mostly wait for them, so there are more threads than processors.
unit: export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
unit: ## unit tests and house rules; no root, no network
	cargo test $(CARGO_FLAGS) --workspace

counted: build ## count instructions, allocations, pages of code, memory of many drivers; WRITE=1 writes the baseline
	@tests/setup/packages.sh foreign
	@tests/counted/run.sh '$(BELAY_BIN_DIR)' $(if $(WRITE),--write)
	@tests/counted/drivers.sh '$(BELAY_BIN_DIR)'

mounts: root ## tests that need root: devices, mounts, black box, crashes (root)
	@tests/mounts.sh $(CARGO_FLAGS)

guest: root build ## run Belay in User-mode Linux guests: kernels, hot-plugged disks, power cuts (root)
	@tests/beds/guest/run.sh $(CARGO_FLAGS)

nfs: root build ## run NFS volumes in guests with a real server: versions, a server that does not answer (root)
	@tests/beds/guest/run.sh $(CARGO_FLAGS) -- nfs

arrivals: root build ## measure in a guest how soon after the kernel's event a disk is opened (root); ROUNDS=n
	@tests/setup/setup.sh guest
	tests/beds/guest/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS)
	@ROUNDS='$(ROUNDS)' tests/beds/guest/arrivals.sh '$(BELAY_BIN_DIR)'

openstack: root build ## run the real Keystone, Cinder and Nova on loopback, with faults (root); SHORT=1
	@SHORT='$(SHORT)' tests/beds/openstack/run.sh $(CARGO_FLAGS)

wire: ## compare with official Go modules: protobuf descriptors, NO_PROXY, cloud.conf
	cd tests/wire && go test -count=1 ./...

twins: ## drive the twins of clouds with the vendors' own clients
	cargo build $(CARGO_FLAGS) -p belay-twins
	cd tests/twins/godo && BELAY_TWINS='$(CARGO_TARGET_DIR)/debug/belay-twins' go test -count=1 ./...

chart: ## test the Helm chart: lint, manifests, values, refusals; no cluster
	@tests/setup/go.sh
	@tests/setup/helm.sh
	cd tests/deploy && go test -count=1 ./...

manifests: ## regenerate deploy/manifests from the chart, and the chart's README
	@tests/setup/go.sh
	deploy/chart/generate.sh
	deploy/manifests/generate.sh

sanity: root ## csi-sanity: mount and block, with and without topology (root)
	@tests/sanity/run.sh

standalone: root ## run docs/standalone.md and docs/tools.md as written, after make build (root)
	@tests/standalone/check.sh '$(BELAY_BIN_DIR)'

bench: root build ## benchmarks, compared with the bare system calls (root)
	$(ISOLATED) cargo bench $(CARGO_FLAGS) -p belay-benches

e2e: WITH_GUESTS = $(GUESTS)$(filter guests,$(PARTS))
e2e: root build ## Kubernetes: chart, checks, storage suite (root); FULL=1, CHAOS=minutes, GUESTS=2, CLOUD=openstack, digitalocean, civo or nfs, PARTS="name..."
	@tests/setup/setup.sh e2e $(if $(WITH_GUESTS),guest)
	$(if $(WITH_GUESTS),tests/beds/guest/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS))
	@FULL='$(FULL)' CHAOS='$(CHAOS)' GUESTS='$(GUESTS)' CLOUD='$(CLOUD)' PARTS='$(PARTS)' \
	    tests/beds/kubernetes/e2e.sh '$(BELAY_BIN_DIR)'

cluster: root build ## start a Kubernetes with Belay, or install a new build in it (root)
	@tests/setup/setup.sh e2e
	@tests/beds/kubernetes/up.sh '$(BELAY_BIN_DIR)'

cluster-down: root ## stop and remove that Kubernetes (root)
	@tests/beds/kubernetes/cluster.sh down

mutants: root ## mutation tests (root); MINUTES=n, SAMPLE=n, SEED=n, FILES=pattern
	@tests/setup/setup.sh test guest mutants
	@MINUTES='$(MINUTES)' SAMPLE='$(SAMPLE)' SEED='$(SEED)' FILES='$(FILES)' \
		tests/mutants/run.sh

fuzz: ## fuzz the parsers of what disks and the kernel say; MINUTES=n
	@MINUTES='$(or $(MINUTES),4)' tests/fuzz/run.sh

nightly: root ## long forms of all tests (root); resumes; PARTS="name..." selects
	@tests/setup/setup.sh test e2e guest mutants
	@tests/nightly.sh $(PARTS)

images: root build ## build and test the container images in target/images (root)
	deploy/images/build.sh '$(CARGO_TARGET_DIR)/images' '$(BELAY_BIN_DIR)'
	tests/images/check.sh '$(CARGO_TARGET_DIR)/images' '$(BELAY_BIN_DIR)'

packages: root build ## build and test Debian packages in target/packages (root)
	deploy/packages/build.sh '$(CARGO_TARGET_DIR)/packages' '$(BELAY_BIN_DIR)'
	tests/systemd/check.sh '$(CARGO_TARGET_DIR)/packages'
	tests/udev/check.sh

release: ## build everything of a release for amd64 and arm64 into target/dist
	@rm -rf '$(CARGO_TARGET_DIR)/dist'
	@deploy/release/build.sh '$(CARGO_TARGET_DIR)/dist'

release-check: root release ## build it again, compare, and try it; arm64 in an emulator (root)
	@tests/release/check.sh '$(CARGO_TARGET_DIR)/dist'

monitoring: root build ## test alerts, dashboard and runbook with a real Prometheus (root)
	tests/monitoring/check.sh
	tests/monitoring/real.sh '$(BELAY_BIN_DIR)'

clean: ## remove what cargo built
	cargo clean

root:
	@[ "$$(id -u)" = 0 ] || { printf 'belay: this target creates devices and mounts; please run: %s\n' \
		'sudo make $(MAKECMDGOALS)' >&2; exit 1; }
