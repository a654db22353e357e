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
# What `make help` lists first.
FIRST := demo test cluster cluster-down
# Tests mount in a private mount namespace, which is removed with them.
ISOLATED := unshare --mount --propagation private

.PHONY: root help setup build check fmt generated clippy deny tidy \
	test long unit mistakes counted mounts matrices guest luks nfs arrivals openstack wire twins sanity standalone demo bench mutants fuzz nightly \
	images packages docs \
	release release-check monitoring chart manifests \
	e2e objects scale cluster cluster-down clean

# Targets are listed with those first that a newcomer needs.
help: ## list the targets
	@printf 'Start with these, as root:\n'
	@awk -F ':.*## ' -v first='$(FIRST)' ' \
	    BEGIN { count = split(first, order, " ") } \
	    /^[a-z0-9-]+:.*## / { text[$$1] = $$2; if (index(" " first " ", " " $$1 " ") == 0) rest[++more] = $$1 } \
	    function show(name) { printf "  %-13s %s\n", name, text[name] } \
	    END { for (i = 1; i <= count; i++) show(order[i]); \
	          print "\nAll others; root unless stated:"; \
	          for (i = 1; i <= more; i++) show(rest[i]) }' $(MAKEFILE_LIST)

setup: ## install the tools for check, test and demo
	@tests/setup/setup.sh check test demo

build: ## build static programs in target/bin (no root)
	@tests/setup/setup.sh demo
	tests/setup/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS)

check: ## format, lints, dependencies, house rules (no root)
	@tests/setup/setup.sh check
	@tests/steps.sh fmt generated clippy deny tidy

test: root ## units, real mounts, wire, chart, csi-sanity; VERBOSE=1
	@tests/setup/setup.sh test
	@tests/steps.sh build unit mounts wire chart sanity standalone mistakes

long: root ## what CI tests beyond `make test`: matrices, guests, ...
	@tests/setup/setup.sh test
	@tests/steps.sh build matrices counted guest twins

demo: root build ## volume lifecycles, with latencies; ROUNDS=n VERBOSE=1 KEEP=1
	@"$(BELAY_BIN_DIR)/belay-demo"

fmt: ## format check (no root)
	cargo fmt --all --check

generated: ## are generated files up to date? (no root)
	@deploy/monitoring/generate.sh | diff deploy/monitoring/prometheus-rule.yaml - || { \
	    echo 'old; please run: deploy/monitoring/generate.sh >deploy/monitoring/prometheus-rule.yaml' >&2; exit 1; }
	@for copy in rules.yaml dashboard.json; do \
	    diff deploy/monitoring/$$copy deploy/chart/monitoring/$$copy || { \
	        echo "differ; please run: make manifests" >&2; exit 1; }; done

clippy: ## lints (no root)
	cargo clippy $(CARGO_FLAGS) --workspace --all-targets -- -D warnings
	cargo clippy $(CARGO_FLAGS) --package belay-controller --test objects -- -D warnings

deny: ## bans, licences and sources of dependencies (no root)
	cargo deny --log-level warn check bans licenses sources

tidy: ## house rules: lengths, layers, words (no root)
	cargo test $(CARGO_FLAGS) -p belay-tests --test tidy

# Tests that drive programs mostly wait for them, so there are more threads than processors.
unit: export RUST_TEST_THREADS ?= $(shell echo $$((4 * $$(nproc))))
unit: ## unit tests (no root)
	cargo test $(CARGO_FLAGS) --workspace

counted: build ## instructions, allocations, memory; WRITE=1: new baseline
	@tests/setup/packages.sh foreign
	@tests/counted/run.sh '$(BELAY_BIN_DIR)' $(if $(WRITE),--write)
	@tests/counted/drivers.sh '$(BELAY_BIN_DIR)'

mounts: root ## tests that need root: devices, mounts, kills
	@tests/mounts.sh short $(CARGO_FLAGS)

matrices: root ## accidents, crashes and power losses at any moment
	@tests/mounts.sh long $(CARGO_FLAGS)

guest: root build ## User-mode Linux guests: kernels, hot-plugged disks, power cuts
	@tests/beds/guest/run.sh $(CARGO_FLAGS)

luks: root build ## encrypted volumes in guests
	@tests/beds/guest/run.sh $(CARGO_FLAGS) -- luks

nfs: root build ## NFS volumes in guests with a real server
	@tests/beds/guest/run.sh $(CARGO_FLAGS) -- nfs

arrivals: root build ## how soon a hot-plugged disk is opened; ROUNDS=n
	@tests/setup/setup.sh guest
	tests/beds/guest/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS)
	@ROUNDS='$(ROUNDS)' tests/beds/guest/arrivals.sh '$(BELAY_BIN_DIR)'

openstack: root build ## real Keystone, Cinder and Nova, with faults; SHORT=1
	@SHORT='$(SHORT)' tests/beds/openstack/run.sh $(CARGO_FLAGS)

wire: ## comparison with official Go modules (no root)
	cd tests/wire && go test -count=1 ./...

twins: ## twins of clouds, driven by the vendors' clients (no root)
	cargo build $(CARGO_FLAGS) -p belay-twins
	cd tests/twins/godo && BELAY_TWINS='$(CARGO_TARGET_DIR)/debug/belay-twins' go test -count=1 ./...

chart: ## the Helm chart: lint, values, refusals (no root, no cluster)
	@tests/setup/go.sh
	@tests/setup/helm.sh
	cd tests/deploy && go test -count=1 ./...

manifests: ## regenerate deploy/manifests and the chart's README (no root)
	@tests/setup/go.sh
	deploy/chart/generate.sh
	deploy/manifests/generate.sh

sanity: root ## csi-sanity: mount and block, with and without topology
	@tests/sanity/run.sh

standalone: root ## run docs/standalone.md and docs/tools.md as written
	@tests/standalone/check.sh '$(BELAY_BIN_DIR)'

mistakes: root build ## messages of the programs for common mistakes
	@cargo build $(CARGO_FLAGS) --quiet -p belay-twins
	@tests/mistakes/run.sh '$(BELAY_BIN_DIR)' '$(CARGO_TARGET_DIR)/debug'

bench: root build ## benchmarks, compared with the bare system calls
	$(ISOLATED) cargo bench $(CARGO_FLAGS) -p belay-benches
	@benches/guest.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS)

e2e: WITH_GUESTS = $(GUESTS)$(filter guests,$(PARTS))
e2e: root build ## official storage suite; FULL=1 CHAOS=minutes GUESTS=2 CLOUD=name
	@tests/setup/setup.sh e2e $(if $(WITH_GUESTS),guest)
	$(if $(WITH_GUESTS),tests/beds/guest/build.sh '$(BELAY_BIN_DIR)' $(CARGO_FLAGS))
	@FULL='$(FULL)' CHAOS='$(CHAOS)' GUESTS='$(GUESTS)' CLOUD='$(CLOUD)' PARTS='$(PARTS)' \
	    tests/beds/kubernetes/e2e.sh '$(BELAY_BIN_DIR)'

objects: ## objects of `local` in an API server; STORE=program (no root)
	@tests/setup/setup.sh e2e
	@STORE='$(abspath $(STORE))' tests/beds/kubernetes/objects.sh $(CARGO_FLAGS)

scale: root build ## `local` on 50 nodes that are only objects: times, memory, a dead node
	@tests/setup/setup.sh e2e
	@tests/beds/kubernetes/scale_stores.sh '$(BELAY_BIN_DIR)'

cluster: root build ## start a Kubernetes with Belay, or update Belay in it
	@tests/setup/setup.sh e2e
	@tests/beds/kubernetes/up.sh '$(BELAY_BIN_DIR)'

cluster-down: root ## stop and remove that Kubernetes
	@tests/beds/kubernetes/cluster.sh down

mutants: root ## mutation tests; MINUTES=n SAMPLE=n SEED=n FILES=pattern
	@tests/setup/setup.sh test guest mutants
	@MINUTES='$(MINUTES)' SAMPLE='$(SAMPLE)' SEED='$(SEED)' FILES='$(FILES)' \
		tests/mutants/run.sh

fuzz: ## fuzz the parsers of disks and kernel files; MINUTES=n (no root)
	@MINUTES='$(or $(MINUTES),4)' tests/fuzz/run.sh

nightly: root ## long forms of all tests; resumes; PARTS="name..." selects
	@tests/setup/setup.sh test e2e guest mutants
	@tests/nightly.sh $(PARTS)

images: root build ## build and test container images in target/images
	deploy/images/build.sh '$(CARGO_TARGET_DIR)/images' '$(BELAY_BIN_DIR)'
	tests/images/check.sh '$(CARGO_TARGET_DIR)/images' '$(BELAY_BIN_DIR)'

packages: root build ## build and test Debian packages in target/packages
	deploy/packages/build.sh '$(CARGO_TARGET_DIR)/packages' '$(BELAY_BIN_DIR)'
	tests/systemd/check.sh '$(CARGO_TARGET_DIR)/packages'
	tests/udev/check.sh

docs: ## the documentation as a site with search in target/site (no root)
	@venv=$$(tests/setup/venv.sh mkdocs docs/site/requirements.txt 'MkDocs (make docs runs it)') && \
	    NO_MKDOCS_2_WARNING=1 PYTHONDONTWRITEBYTECODE=1 "$$venv/bin/mkdocs" build --strict \
	    --config-file docs/site/mkdocs.yml --site-dir '$(CARGO_TARGET_DIR)/site'

release: ## build a release for amd64 and arm64 in target/dist (no root)
	@rm -rf '$(CARGO_TARGET_DIR)/dist'
	@deploy/release/build.sh '$(CARGO_TARGET_DIR)/dist'

release-check: root release ## build it again, compare, and try it
	@tests/release/check.sh '$(CARGO_TARGET_DIR)/dist'

monitoring: root build ## alerts, dashboard and runbook with a real Prometheus
	tests/monitoring/check.sh
	tests/monitoring/real.sh '$(BELAY_BIN_DIR)'

clean: ## remove what cargo built (no root)
	cargo clean

root:
	@[ "$$(id -u)" = 0 ] || { printf 'belay: this target creates devices and mounts; please run: %s\n' \
		'sudo make $(MAKECMDGOALS)' >&2; exit 1; }
