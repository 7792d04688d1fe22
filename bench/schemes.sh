#!/usr/bin/env bash
# Times of single writes, one after the other on an established connection, over an emulated link of 1 Gbit/s and 25 ms between two network
# namespaces: every scheme and kernel TCP, over the bound (every 1,500-byte packet once, the lost ones again, and a round trip). Goal for `auto`: a
# median of at most 1.05 and a worst of 20 of at most 1.25. Needs root. About a quarter of an hour.
#
# SIZES="1 16 256" in MiB   LOSSES="0 1e-3 1e-2"   SCHEMES="auto sr-nack sr ec:32,8 tcp-bbr"   COUNT=20 writes, after one that does not count
set -euo pipefail
cd "$(dirname "$0")/.."
sdr=${SDR:-build/bin/sdr}
sizes=${SIZES:-1 16 256} losses=${LOSSES:-0 1e-3 1e-2} schemes=${SCHEMES:-auto sr-nack sr ec:32,8 tcp-bbr} count=${COUNT:-20}
[[ -x $sdr ]] || { echo "bench: $sdr is not there: run \`make build\` first, or set SDR" >&2; exit 1; }
if [[ $EUID -ne 0 || ! -e /dev/net/tun ]] || ! command -v ip >/dev/null; then
    echo "SKIPPED: the comparison of schemes over an emulated link needs root, /dev/net/tun and the ip program"
    exit 0
fi
a=farhaul-bench-$$-a b=farhaul-bench-$$-b
pids=()
work=$(mktemp -d)
cleanup() {
    trap - EXIT INT TERM HUP
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    ip netns del $a 2>/dev/null || true
    ip netns del $b 2>/dev/null || true
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP
for space in $a $b; do
    ip netns add $space
    ip -n $space link set lo up
    # The default buffers cap TCP below 1 Gbit/s over 25 ms.
    ip netns exec $space sh -c 'echo "4096 1048576 134217728" >/proc/sys/net/ipv4/tcp_rmem; echo "4096 1048576 134217728" >/proc/sys/net/ipv4/tcp_wmem'
done
# start LOG PATTERN COMMAND...: in the background, until a line of its output matches.
start() {
    local log=$1 pattern=$2
    shift 2
    "$@" >"$log" 2>&1 &
    pids+=($!)
    for ((i = 0; i < 200; ++i)); do
        grep -q "$pattern" "$log" && return 0
        sleep 0.05
    done
    echo "bench: '$*' did not start:" >&2
    cat "$log" >&2
    exit 1
}
field() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p"; }
available=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
uname -srm
grep -m 1 "model name" /proc/cpuinfo | sed 's/.*: //'
echo "1 Gbit/s, 25 ms, packets of 1,500 bytes; $count writes after a first one; times over the bound"
echo
printf '%-9s %-9s %-10s %9s %9s %9s %10s\n' size loss scheme best median worst resent
for loss in $losses; do
    start "$work/link" "^ready" "$sdr" link --tun --ns-a $a --ns-b $b --addr-a 10.77.0.1/24 --addr-b 10.77.0.2/24 --mtu 1500 --rate 1G --rtt 25ms --loss "$loss" --seed 1
    start "$work/server" "^waiting" ip netns exec $b "$sdr" bench -p 18515
    for size in $sizes; do
        for scheme in $schemes; do
            [[ $scheme == tcp-* && " $available " != *" ${scheme#tcp-} "* ]] && continue
            json=$(ip netns exec $a "$sdr" bench 10.77.0.2 -p 18515 --scheme "$scheme" -s "${size}MiB" -n $((count + 1)) -t 1 -m 1448 --rate 1G --timeout 100s --json) || continue
            awk -v size="$size" -v loss="$loss" -v scheme="$scheme" -v best="$(field message_min_s <<<"$json")" -v median="$(field message_median_s <<<"$json")" \
                -v worst="$(field message_max_s <<<"$json")" -v resent="$(field packets_resent <<<"$json")" 'BEGIN {
                packets = int((size * 1048576 + 1447) / 1448)
                bound = packets * 1500 * 8 / 1e9 / (1 - loss) + 0.025
                printf "%-9s %-9s %-10s %9.3f %9.3f %9.3f %10d\n", size " MiB", loss, scheme, best / bound, median / bound, worst / bound, resent }'
        done
    done
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=()
done
