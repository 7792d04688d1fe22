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
me=bench
source scripts/emulated-link.sh
skipped=$(no_spaces)
if [[ -n $skipped ]]; then
    echo "SKIPPED: the comparison of schemes over an emulated link, because $skipped"
    exit 0
fi
make_spaces
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
            [[ $scheme != tcp-* ]] || has_tcp "${scheme#tcp-}" || continue
            json=$(ip netns exec $a "$sdr" bench 10.77.0.2 -p 18515 --scheme "$scheme" -s "${size}MiB" -n $((count + 1)) -t 1 -m 1448 --rate 1G --timeout 100s --json) || continue
            awk -v size="$size" -v loss="$loss" -v scheme="$scheme" -v best="$(field message_min_s <<<"$json")" -v median="$(field message_median_s <<<"$json")" \
                -v worst="$(field message_max_s <<<"$json")" -v resent="$(field packets_resent <<<"$json")" 'BEGIN {
                packets = int((size * 1048576 + 1447) / 1448)
                bound = packets * 1500 * 8 / 1e9 / (1 - loss) + 0.025
                printf "%-9s %-9s %-10s %9.3f %9.3f %9.3f %10d\n", size " MiB", loss, scheme, best / bound, median / bound, worst / bound, resent }'
        done
    done
    stop
    stop
done
