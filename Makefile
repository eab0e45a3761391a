# The two commands of this repository, and a short one. Each does its own set-up (scripts/setup).
.PHONY: help demo test check

help:
	@echo "make demo    build fatpath and measure it on this machine's own TCP (needs root)"
	@echo "make test    every test, as CI runs them"
	@echo "make check   fmt, clippy, doc and the tests that need no privilege"

demo:
	@scripts/setup demo cargo run --locked --release -p fatpath -- demo

test:
	@scripts/setup test cargo xtask test

check:
	@scripts/setup build cargo xtask check
