#!/usr/bin/env bash
# The property tests over ten times as many seeds as `make test` runs (BENCH_SEEDS to choose).
set -euo pipefail
cd "$(dirname "$0")/.."
export FARHAUL_SEEDS=${BENCH_SEEDS:-100000}
for test in sdr_test properties_test reliable_test; do
    program=build/bin/$test
    [[ -x $program ]] || { echo "bench: $program is not there: run \`make test SANITIZE=0\` first" >&2; exit 1; }
    echo "-- $test, $FARHAUL_SEEDS seeds"
    "$program" --gtest_filter='*Propert*' --gtest_brief=1
done
