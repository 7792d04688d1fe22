#!/usr/bin/env bash
# bench/differential.sh [OPERATIONS]: the differential test with a million operations (or as many as said): in turn, apart, over io_uring.
# A difference prints the seed and how to replay it.
set -euo pipefail
cd "$(dirname "$0")/.."
total=${1:-1000000}
run() { tests/differential/run.sh build/bin --first $((RANDOM * 32768 + RANDOM)) --ops $((total / 20)) "$@" || [[ $? -eq 77 ]]; }
run --seeds 10
run --seeds 5 --apart
run --seeds 5 --io-uring
