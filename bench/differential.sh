#!/usr/bin/env bash
# bench/differential.sh [OPERATIONS]: the differential test with a million operations (or as many as said): through the kernel (passthrough)
# and served, in turn and apart, over io_uring.
# A difference prints the seed and how to replay it.
set -euo pipefail
cd "$(dirname "$0")/.."
total=${1:-1000000}
run() { tests/differential/run.sh build/bin --first $((RANDOM * 32768 + RANDOM)) --ops $((total / 20)) "$@" || [[ $? -eq 77 ]]; }
# What the kernel reads and writes by itself (the default) keeps no set-uid bit that is set while a file is written; what is served does.
run --seeds 5 --no-set-id
run --seeds 5 --options passthrough=off
run --seeds 5 --apart --no-set-id
run --seeds 5 --io-uring --options passthrough=off
