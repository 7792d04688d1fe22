# What the scripts of this folder share: a mount namespace of their own, a scratch folder, mounts that are gone at the end.
# A script sets `bin` to the folder of the programs, sources this file and calls `enter "$@"` first.
set -euo pipefail

skip() { echo "skipped: $1"; exit 77; }

enter() {
    if [[ ${MOUNTS_INSIDE:-} != 1 ]]; then
        [[ $EUID -eq 0 ]] || skip "needs root"
        [[ -c /dev/fuse ]] || skip "needs /dev/fuse"
        unshare --mount true 2>/dev/null || skip "needs mount namespaces"
        MOUNTS_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
    fi
    base=$(mktemp -d)
    declare -gA servers=()
    trap leave EXIT
}

leave() {
    local status=$?
    local mountpoint
    for mountpoint in "${!servers[@]}"; do unserve "$mountpoint" || true; done
    umount -l "$base"/* 2>/dev/null || true
    rm -rf --one-file-system "$base"
    exit $status
}

# serve SOURCE MOUNTPOINT [OPTIONS]: starts a server and waits until it serves.
serve() {
    mkdir -p "$2" 2>/dev/null || true  # a dead mount cannot even be looked at
    "$bin/dpfs" mount "$1" "$2" --foreground ${3:+-o "$3"} 2>>"$base.log" &
    servers[$2]=$!
    for _ in $(seq 200); do
        [[ $(findmnt -n -o FSTYPE -M "$2" 2>/dev/null) == fuse.dpfs ]] && stat "$2" >/dev/null 2>&1 && return
        kill -0 "${servers[$2]}" 2>/dev/null || break
        sleep 0.05
    done
    cat "$base.log" >&2
    echo "$1 did not come up on $2" >&2
    return 1
}

unserve() {
    local pid=${servers[$1]}
    umount "$1" 2>/dev/null || umount -l "$1" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    unset "servers[$1]"
}

# says WHAT COMMAND...: runs it, and says how long it took or that it failed.
says() {
    local what=$1 start=$EPOCHREALTIME
    shift
    "$@" >"$base.out" 2>&1 || { cat "$base.out" >&2; echo "FAILED: $what" >&2; exit 1; }
    printf 'ok: %s (%.1f s)\n' "$what" "$(awk "BEGIN { print $EPOCHREALTIME - $start }")"
}
