# The two commands of this repository, and two more. Each does its own set-up (scripts/setup).
.PHONY: help build install uninstall deb schema-check image-check guest-check release release-check demo bench-peers test test-aarch64 static test-static check

help:
	@echo "make demo          build fatpath and measure it on this machine's own TCP (needs root)"
	@echo "make test          every test, as CI runs them"
	@echo "make test-aarch64  tests without a network, built for aarch64 and run by QEMU's emulation of that processor"
	@echo "make static        the gateway as one static program, without \`fatpath exec\`; make test-static tests it (needs root)"
	@echo "make install       install the programs built by \`make build\` (PREFIX=/usr/local, DESTDIR=, BINDIR=target/release);"
	@echo "                   make uninstall removes them"
	@echo "make deb           Debian packages of the built programs below target/package (OUT=, VERSION=)"
	@echo "make image-check   an image of these packages on a root by mmdebstrap, run by podman with the documented privileges (needs root)"
	@echo "make guest-check   a Debian system in QEMU, where the packages are installed, upgraded under traffic and purged (needs root)"
	@echo "make schema-check  the examples for Kubernetes and compose by their published schemas, from PyPI"
	@echo "make release       packages, tar file, SBOM and checksums of the last commit, in target/dist (OUT=); make release-check"
	@echo "                   builds them twice and compares"
	@echo "make check         fmt, clippy, doc and the tests that need no privilege"
	@echo "make bench-peers   the demo's stream through wireguard-go, boringtun and strongSwan, which it installs (needs root),"
	@echo "                   and through the kernel's ESP, if that is loaded; the switch demo with Open vSwitch, reassembly by smoltcp and gVisor,"
	@echo "                   and forwarding of small packets by DPDK's testpmd"

# Both programs and the library at once: what they share is built once.
BUILD = cargo build --locked --release --target-dir target -p fatpath -p fatpath-bench -p fatpath-preload -p fatpath-see -p fatpath-fleet

build:
	@scripts/setup build $(BUILD)

# Nothing is built here: root need not have a toolchain.
export PREFIX DESTDIR BINDIR SYSCONFDIR UNITDIR ZSHDIR
install uninstall:
	@scripts/install $@

# Makes packages of a release build, and installs nothing but what is needed to make them.
export OUT VERSION SOURCE_DATE_EPOCH COMPRESSION DEBFULLNAME DEBEMAIL SBOM
deb: build
	@scripts/setup package scripts/package

# Needs PyPI at its first run.
schema-check:
	@scripts/setup schema scripts/schema-check

# Needs Debian's mirror, and two minutes at its first run. Nothing is installed.
image-check: schema-check
	@scripts/image-check

# The same, with a system that is booted.
guest-check:
	@scripts/setup guest scripts/guest-check

# cargo-cyclonedx, which writes the SBOM, is installed below target/.
release:
	@scripts/setup release scripts/release

release-check:
	@scripts/setup release scripts/release check

demo:
	@scripts/setup demo $(BUILD)
	@scripts/setup demo target/release/fatpath demo

bench-peers:
	@scripts/setup peers $(BUILD)
	@scripts/setup peers target/release/fatpath demo --peers
	@scripts/setup peers target/release/fatpath demo --switch --peers
	@scripts/setup peers target/release/fatpath bench forward
	@scripts/setup peers cargo run --locked --release --manifest-path bench/peers/Cargo.toml --target-dir target

test:
	@scripts/setup test cargo xtask test

test-aarch64:
	@scripts/setup aarch64 cargo xtask test-aarch64

# The C library is musl's.
static:
	@scripts/setup static cargo build --locked --release --target-dir target --target x86_64-unknown-linux-musl -p fatpath
	@echo target/x86_64-unknown-linux-musl/release/fatpath

test-static:
	@scripts/setup static cargo xtask test-static

check:
	@scripts/setup build cargo xtask check
