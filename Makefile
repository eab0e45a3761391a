# The two commands of this repository. Each does its own set-up (scripts/setup).
.PHONY: help demo test check

help:
	@echo "make demo    build fatpath and measure it on this machine's own TCP (needs root)"
	@echo "make test    every test, as CI runs them"
	@echo "make check   fmt, clippy, doc and the tests that need no privilege"

demo:
	@scripts/setup demo
	cargo build --locked --release -p fatpath
	$${CARGO_TARGET_DIR:-target}/release/fatpath demo

test:
	@scripts/setup test
	@cargo xtask test

check:
	@cargo xtask check
