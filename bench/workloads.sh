#!/usr/bin/env bash
# bench/workloads.sh: the large form of tests/mounts/workloads.sh (with the writeback cache, without caches, over io_uring), and fifty rounds of
# killing the server under writers.
set -euo pipefail
cd "$(dirname "$0")/.."
tests/mounts/workloads.sh build/bin --full || [[ $? -eq 77 ]]
tests/mounts/kill_server.sh build/bin 50 || [[ $? -eq 77 ]]
