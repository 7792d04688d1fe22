#!/usr/bin/env bash
# tests/differential/run.sh BIN [--seeds N] [--first SEED] [--ops N] [--apart] [--no-set-id] [--io-uring] [--options OPT,...] [--mirror-options OPT,...] [-v [--watch PATH]]
# Mounts memory: and mirror: beside a plain tmpfs, in a mount namespace of its own, and runs fs_differential on the three. For each
# seed everything is made anew. Exit status 77: cannot run here.
set -euo pipefail

skip() { echo "skipped: $1"; exit 77; }
if [[ ${DIFFERENTIAL_INSIDE:-} != 1 ]]; then
    [[ $EUID -eq 0 ]] || skip "needs root"
    [[ -c /dev/fuse ]] || skip "needs /dev/fuse"
    unshare --mount true 2>/dev/null || skip "needs mount namespaces"
    DIFFERENTIAL_INSIDE=1 exec unshare --mount --propagation private "$0" "$@"
fi

bin=$1; shift
seeds=1 first=1 ops=20000 apart=() io_uring=off mount_options="" mirror_options=""
while [[ $# -gt 0 ]]; do
    case $1 in
        --seeds) seeds=$2; shift 2 ;;
        --first) first=$2; shift 2 ;;
        --ops) ops=$2; shift 2 ;;
        --apart) apart=(--apart); shift ;;
        --io-uring) io_uring=on; shift ;;
        --options) mount_options=,$2; shift 2 ;;
        --mirror-options) mirror_options=,$2; shift 2 ;;
        --no-set-id) apart+=(--no-set-id); shift ;;
        -v) apart+=(-v); shift ;;
        --watch) apart+=(--watch "$2"); shift 2 ;;
        *) echo "run.sh: unknown option $1" >&2; exit 2 ;;
    esac
done

switch=/sys/module/fuse/parameters/enable_uring
if [[ $io_uring == on ]]; then
    [[ -e $switch ]] || skip "this kernel has no FUSE over io_uring"
    before=$(<$switch)
    echo Y >$switch 2>/dev/null || skip "cannot turn on FUSE over io_uring"
fi

base=$(mktemp -d)
pids=()
unmount() {
    umount -l "$base/world/memory.d/root" "$base/world/mirror.d/root" "$base/world/plain.d/root" 2>/dev/null || true
    for pid in "${pids[@]}"; do
        for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        kill -9 "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    pids=()
    umount -l "$base/world" "$base/store" 2>/dev/null || true
}
finish() {
    unmount
    [[ $io_uring == on ]] && echo "$before" >$switch
    rm -rf --one-file-system "$base"
}
trap finish EXIT

for ((seed = first; seed < first + seeds; ++seed)); do
    mkdir -p "$base/world" "$base/store"
    mount -t tmpfs -o size=4g,mode=755 world "$base/world"
    mount -t tmpfs -o size=1g,mode=777 store "$base/store"
    for name in plain memory mirror; do mkdir -p "$base/world/$name.d/root"; done
    mkdir "$base/world/proc"
    mount -t tmpfs -o size=1g,mode=777 plain "$base/world/plain.d/root"
    options=dev,suid,attr_timeout=1,entry_timeout=1,io_uring=$io_uring$mount_options
    "$bin/dpfs" mount memory:size=1GiB "$base/world/memory.d/root" --foreground -o "$options" &
    pids+=($!)
    "$bin/dpfs" mount "mirror:$base/store" "$base/world/mirror.d/root" --foreground -o "$options$mirror_options" &
    pids+=($!)
    for name in memory mirror; do
        for _ in $(seq 100); do mountpoint -q "$base/world/$name.d/root" && break; sleep 0.05; done
        mountpoint -q "$base/world/$name.d/root" || { echo "$name: did not come up" >&2; exit 1; }
    done
    mount -t proc proc "$base/world/proc"
    mount -o remount,ro "$base/world"
    status=0
    timeout 500 "$bin/fs_differential" --chroot "$base/world" --root plain=/plain.d/root --root memory=/memory.d/root --root mirror=/mirror.d/root \
        --seed "$seed" --ops "$ops" "${apart[@]}" || status=$?
    if [[ $status -ne 0 ]]; then
        echo "exit status $status; replay: tests/differential/run.sh $bin --first $seed --ops $ops ${apart[*]} $([[ $io_uring == on ]] && echo --io-uring)"
        exit 1
    fi
    umount "$base/world/proc"
    unmount
done
