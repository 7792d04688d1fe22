# The front door. Everything here is a short way to say something to CMake, Ninja and the scripts in scripts/.
#
# SETUP=0      do not look for Debian packages, and install none
# SANITIZE=    which sanitizer builds `make test` adds: asan (the default), tsan, "asan tsan", or 0 for none
# FILTER=RE    run only the tests whose name matches
# JOBS=N       processes at a time
# QUICK=1      `make experiments` in two minutes; EFFORT=10 scales the runs of its tables (100)
# PREFIX=, DESTDIR=  where `make install` puts things
SETUP ?= 1
SANITIZE ?= asan
FILTER ?=
JOBS ?= $(shell nproc)
PREFIX ?= /usr/local
DESTDIR ?=
FUZZ_SECONDS ?= 60
EFFORT ?= 100
QUICK ?= 0
export SETUP SANITIZE FILTER JOBS FUZZ_SECONDS

.DEFAULT_GOAL := build
.PHONY: build demo test bench experiments lint format install fuzz asan tsan clean help

build: ## the programs, in build/bin/
	@scripts/setup build
	@scripts/build release programs

demo: ## a file crosses an emulated 3,750 km lossy link, by every scheme and by TCP
	@scripts/setup build demo
	@scripts/build release programs
	@scripts/demo

test: ## all tests: release and ASan+UBSan builds (SANITIZE="asan tsan" adds TSan, 0: release only)
	@scripts/test release $(filter-out 0,$(SANITIZE))

asan: ## the tests under AddressSanitizer and UndefinedBehaviorSanitizer only
	@scripts/test asan

tsan: ## the tests under ThreadSanitizer only
	@scripts/test tsan

bench: ## the benchmarks
	@scripts/setup build bench
	@scripts/build bench benches
	@scripts/bench

experiments: ## every published figure beside ours, in experiments/report.html: half an hour; QUICK=1: two minutes
	@scripts/setup build experiments
	@scripts/build release experiments
	@scripts/experiments $(if $(filter-out 0,$(QUICK)),--quick) --effort $(EFFORT)

fuzz: ## every fuzz target for FUZZ_SECONDS (60) seconds
	@scripts/setup build clang
	@scripts/build fuzz fuzzers
	@scripts/fuzz

lint: ## clang-format and clang-tidy; changes nothing
	@scripts/setup build lint
	@scripts/lint

format: ## clang-format on every source file
	@scripts/setup format
	@scripts/sources | xargs clang-format-19 -i

install: ## programs, library, headers, man pages: PREFIX (/usr/local), DESTDIR
	@scripts/setup build
	@scripts/build release programs -DCMAKE_INSTALL_PREFIX=$(abspath $(PREFIX))
	@DESTDIR='$(DESTDIR)' cmake --install build

clean: ## remove every build folder
	rm -rf build build-asan build-tsan build-fuzz build-lint

help: ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20
	@sed -nE 's/^# ([A-Z][A-Z_]*=.*)/  \1/p' $(firstword $(MAKEFILE_LIST))
