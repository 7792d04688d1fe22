#!/usr/bin/env bash
# sdr bench over loopback beside a bare UDP blast (same packet size, segmentation offload, one copy of each payload), as ratios of rounds that
# alternate in one run. Goals: 0.7 with the checksum, 0.85 without.
set -euo pipefail
cd "$(dirname "$0")/.."
sdr=${SDR:-build/bin/sdr}
[[ -x $sdr ]] || { echo "bench: $sdr is not there: run \`make build\` first, or set SDR" >&2; exit 1; }
for checksum in on off; do
    for size in 64KiB 1MiB; do
        iterations=$([[ $size == 1MiB ]] && echo 4000 || echo 50000)
        echo "-- messages of $size, checksum $checksum"
        "$sdr" bench --local --blast --size "$size" --iters "$iterations" --tx-depth 16 --checksum "$checksum"
    done
done
