# Sourced by scripts/demo and bench/schemes.sh: processes in the background, two network namespaces for an emulated link, and no trace of either
# afterwards, however the script ends. The caller sets `me`, the name that messages begin with.

work=
pids=()
spaces=()
cleanup() {
    local pid space
    trap - EXIT INT TERM HUP
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    for space in "${spaces[@]}"; do ip netns del "$space" 2>/dev/null || true; done
    [[ -n $work ]] && rm -rf "$work"
    return 0
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
work=$(mktemp -d "${TMPDIR:-/tmp}/farhaul-$me-XXXXXX")

# start LOG PATTERN COMMAND...: runs it in the background and waits until a line of its output matches.
start() {
    local log=$1 pattern=$2 i
    shift 2
    "$@" >"$log" 2>&1 &
    pids+=($!)
    for ((i = 0; i < 200; ++i)); do
        grep -q "$pattern" "$log" 2>/dev/null && return 0
        kill -0 "${pids[-1]}" 2>/dev/null || break
        sleep 0.05
    done
    echo "$me: '$*' did not start:" >&2
    cat "$log" >&2
    return 1
}
# Ends the process that start() started last.
stop() {
    kill "${pids[-1]}" 2>/dev/null || true
    wait "${pids[-1]}" 2>/dev/null || true
    unset 'pids[-1]'
}
# A field of the last line of JSON on standard input that has it.
field() { sed -n "s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" | tail -n 1; }

# Why network namespaces cannot be used here, or nothing.
no_spaces() {
    local log="$work/netns.log"
    if [[ $EUID -ne 0 ]]; then
        echo "you are not root"
    elif [[ ! -e /dev/net/tun ]] || ! command -v ip >/dev/null; then
        echo "/dev/net/tun or the ip program (package iproute2) is missing"
    elif ! { ip netns add "farhaul-$me-$$-try" && ip netns del "farhaul-$me-$$-try"; } 2>"$log"; then
        echo "network namespaces may not be made here: $(head -n 1 "$log")"
    fi
}
# Makes the namespaces $a and $b.
make_spaces() {
    local space
    a=farhaul-$me-$$-a b=farhaul-$me-$$-b
    for space in "$a" "$b"; do
        ip netns add "$space"
        spaces+=("$space")
        ip -n "$space" link set lo up
        # The default buffers cap TCP at about 1 Gbit/s over 25 ms.
        ip netns exec "$space" sh -c 'echo "4096 1048576 134217728" >/proc/sys/net/ipv4/tcp_rmem; echo "4096 1048576 134217728" >/proc/sys/net/ipv4/tcp_wmem'
    done
}
available=$(cat /proc/sys/net/ipv4/tcp_available_congestion_control)
# has_tcp ALGORITHM: whether this kernel has it.
has_tcp() { [[ " $available " == *" $1 "* ]]; }
