#!/usr/bin/env bash
# bench/filesystems.sh [--rounds N] [--time SECONDS] [--json FILE]: `dpfs mount mirror:` beside libfuse's passthrough_hp and passthrough_ll and
# beside the bare directory, all over the same directory on tmpfs: 4 KiB random reads and writes, 1 MiB sequential ones, creating, looking
# up and removing files. `null:` shows what transport and protocol allow.
#
# Every round measures every system once, so that a busy moment of the host meets all of them; the table has medians and the spread.
# Everybody runs with the defaults of `dpfs mount`: caches for a second, default_permissions (without which users walk past each other's
# directories in the kernel's cache); passthrough_hp has its own, longer ones. IO jobs are direct, by pread(2) at depth 1 and by
# libaio: io_uring hands direct IO on FUSE and tmpfs to worker threads, which would be what is measured. stat() is cold: the
# kernel's cache of names is dropped before, so every one is a LOOKUP.
#
# dpfs is as it is by default: the kernel reads and writes by itself (passthrough). dpfs_served and dpfs_io_uring serve
# everything themselves, by /dev/fuse and by io_uring.
#
# passthrough_hp is compiled from Debian's source package (fetched into build/peers when there is a network), passthrough_ll from the
# examples in libfuse3-dev. Needs root; works in a mount namespace of its own. FUSE over io_uring is turned on for its column and put back.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=3 seconds=2 json="" only=""
while [[ $# -gt 0 ]]; do
    case $1 in
        --rounds) rounds=$2; shift 2 ;;
        --time) seconds=$2; shift 2 ;;
        --json) json=$(realpath -m "$2"); shift 2 ;;
        --only) only=$2; shift 2 ;;
        -h | --help) sed -n '2,20s/^# \{0,1\}//p' "$0"; exit 0 ;;
        *) echo "filesystems.sh: unknown option $1; see --help" >&2; exit 2 ;;
    esac
done
if [[ ${FILESYSTEMS_INSIDE:-} != 1 ]]; then
    [[ $EUID -eq 0 && -c /dev/fuse ]] || { echo "filesystems.sh: skipped: needs root and /dev/fuse"; exit 0; }
    for program in fio python3 gcc g++ pkg-config; do
        command -v $program >/dev/null || { echo "filesystems.sh: $program is missing: apt-get install fio python3 g++ pkg-config libfuse3-dev" >&2; exit 1; }
    done
    arguments=(--rounds "$rounds" --time "$seconds")
    [[ -n $json ]] && arguments+=(--json "$json")
    [[ -n $only ]] && arguments+=(--only "$only")
    FILESYSTEMS_INSIDE=1 exec unshare --mount --propagation private "$0" "${arguments[@]}"
fi

peers=build/peers
mkdir -p $peers
peers=$(realpath $peers)
if [[ ! -x $peers/passthrough_ll && -e /usr/share/doc/libfuse3-dev/examples/passthrough_ll.c ]]; then
    # shellcheck disable=SC2046  # a list of flags
    gcc -O2 -o $peers/passthrough_ll /usr/share/doc/libfuse3-dev/examples/passthrough_ll.c $(pkg-config --cflags --libs fuse3)
fi
if [[ ! -x $peers/passthrough_hp ]]; then
    (
        cd $peers
        mkdir -p lists/partial cache/archives/partial
        echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" >src.list
        apt=(-q -o "Dir::Etc::SourceList=$PWD/src.list" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$PWD/lists"
             -o "Dir::Cache=$PWD/cache" -o APT::Sandbox::User=root)
        timeout 120 apt-get "${apt[@]}" update && timeout 120 apt-get "${apt[@]}" source --download-only fuse3 &&
            tar xf fuse3_*.orig.tar.xz &&
            g++ -O2 -std=c++17 -D_FILE_OFFSET_BITS=64 -o passthrough_hp fuse-3.*/example/passthrough_hp.cc $(pkg-config --cflags --libs fuse3)
    ) >$peers/build.log 2>&1 || echo "filesystems.sh: no passthrough_hp ($peers/build.log says why): compared with passthrough_ll only"
fi

base=$(mktemp -d)
results=$base/results
switch=/sys/module/fuse/parameters/enable_uring
before=$(cat $switch 2>/dev/null || true)
pid=""
stop() {
    [[ -n $pid ]] || return 0
    umount "$base/mnt" 2>/dev/null || umount -l "$base/mnt" 2>/dev/null || true
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -9 "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
    pid=""
}
finish() {
    stop
    [[ -n $before && -w $switch ]] && echo "$before" >$switch
    umount -l "$base/store" 2>/dev/null || true
    rm -rf --one-file-system "$base"
}
trap finish EXIT
mkdir "$base/mnt" "$base/store"
mount -t tmpfs -o size=4g store "$base/store"
mkdir "$base/store/dir"
fio --name=fill --filename="$base/store/dir/data" --size=512m --rw=write --bs=1m --ioengine=psync --output=/dev/null

start() {  # start SYSTEM: sets `where`
    where=$base/mnt
    case $1 in
        bare) where=$base/store/dir; return ;;
        passthrough_hp) $peers/passthrough_hp --foreground --clone-fd "$base/store/dir" "$base/mnt" & ;;
        passthrough_ll) $peers/passthrough_ll -f -o clone_fd,allow_other,default_permissions,source="$base/store/dir" "$base/mnt" & ;;
        dpfs) build/bin/dpfs mount "mirror:$base/store/dir" "$base/mnt" -f -o io_uring=off & ;;
        dpfs_served) build/bin/dpfs mount "mirror:$base/store/dir" "$base/mnt" -f -o io_uring=off,passthrough=off & ;;
        dpfs_io_uring) build/bin/dpfs mount "mirror:$base/store/dir" "$base/mnt" -f -o io_uring=on,passthrough=off & ;;
        null) build/bin/dpfs mount null: "$base/mnt" -f -o io_uring=off & ;;
    esac
    pid=$!
    for _ in $(seq 100); do mountpoint -q "$base/mnt" && break; sleep 0.05; done
    mountpoint -q "$base/mnt" || { echo "filesystems.sh: $1 did not mount" >&2; exit 1; }
    sleep 0.2
}
job() {  # job SYSTEM NAME fio-options...
    local system=$1 name=$2
    shift 2
    timeout 120 fio --output-format=json --output="$base/fio.json" --name="$name" --time_based=1 --runtime="$seconds" --direct=1 \
        --filename="$data" --size=512m "$@" >/dev/null 2>"$base/fio.err" || { cat "$base/fio.err" >&2; exit 1; }
    python3 - "$base/fio.json" "$system" "$name" >>"$results" <<'PY'
import json, sys
text = open(sys.argv[1]).read()
job = json.loads(text[text.index('{'):])['jobs'][0]
side = job['read'] if job['read']['total_ios'] else job['write']
print(sys.argv[2], sys.argv[3], side['iops'], side['bw_bytes'], side['clat_ns']['mean'])
PY
}
files() {  # files SYSTEM: creates, looks up, removes
    local folder=$where/files count=4000
    mkdir "$folder"  # passthrough_hp holds a descriptor for every file: few enough for its limit
    python3 - "$folder" $count "$1" >>"$results" <<'PY'
import os, sys, time
folder, count, system = sys.argv[1], int(sys.argv[2]), sys.argv[3]
os.chdir(folder)
names = [f"f{i}" for i in range(count)]
def timed(what, call):
    start = time.perf_counter()
    for name in names: call(name)
    print(system, what, count / (time.perf_counter() - start), 0, 0)
flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY
timed('create', lambda name: os.close(os.open(name, flags)))
with open('/proc/sys/vm/drop_caches', 'w') as f: f.write('2')
timed('stat', os.stat)
timed('unlink', os.unlink)
PY
    rmdir "$folder"
}

systems=(bare passthrough_hp passthrough_ll dpfs dpfs_served dpfs_io_uring null)
[[ -x $peers/passthrough_hp ]] || systems=(bare passthrough_ll dpfs dpfs_served dpfs_io_uring null)
[[ -n $only ]] && read -r -a systems <<<"${only//,/ }"
if [[ ! -w $switch ]]; then
    echo "filesystems.sh: this kernel has no FUSE over io_uring: without its columns"
    systems=("${systems[@]/dpfs_io_uring/}")
fi
for ((round = 1; round <= rounds; ++round)); do
    for system in "${systems[@]}"; do
        [[ -n $system ]] || continue
        [[ -w $switch ]] && case $system in dpfs_io_uring) echo Y >$switch ;; *) echo N >$switch ;; esac
        start "$system"
        data=$where/data
        [[ $system == null ]] && data=$where/null
        job "$system" randread_4k_depth1 --rw=randread --bs=4k --ioengine=psync
        job "$system" randread_4k_depth32 --rw=randread --bs=4k --ioengine=libaio --iodepth=32
        job "$system" randwrite_4k_depth1 --rw=randwrite --bs=4k --ioengine=psync
        job "$system" randwrite_4k_depth32 --rw=randwrite --bs=4k --ioengine=libaio --iodepth=32
        job "$system" read_1m --rw=read --bs=1m --ioengine=libaio --iodepth=4
        job "$system" write_1m --rw=write --bs=1m --ioengine=libaio --iodepth=4
        [[ $system == null ]] || files "$system"
        stop
    done
done
python3 - "$results" "$rounds" "$json" <<'PY'
import collections, json, os, platform, statistics, sys
rows = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    system, name, iops, bandwidth, latency = line.split()
    rows[name][system].append((float(iops), float(bandwidth), float(latency)))
systems = list(dict.fromkeys(s for row in rows.values() for s in row))
cpu = next((l.split(':')[1].strip() for l in open('/proc/cpuinfo') if l.startswith('model name')), '?')
print(f"\n{os.cpu_count()} x {cpu}, Linux {platform.release()}, tmpfs, fio direct; medians of {sys.argv[2]} rounds (spread)")
print(f"{'':22}" + ''.join(f"{s:>24}" for s in systems))
figures = {}
for name, row in rows.items():
    megabytes = name.endswith('_1m')
    line = f"{name:22}"
    for s in systems:
        values = [v[1] / 1e6 if megabytes else v[0] for v in row.get(s, [])]
        if not values:
            line += f"{'-':>24}"
            continue
        m = statistics.median(values)
        figures.setdefault(name, {})[s] = {"median": m, "least": min(values), "most": max(values), "unit": "MB/s" if megabytes else "1/s",
                                           "latency_us": statistics.median(v[2] for v in row[s]) / 1e3}
        line += f"{m:>10.0f} ({min(values):.0f}-{max(values):.0f})".rjust(24)
    print(line + ("  MB/s" if megabytes else "  1/s"))
peers = [s for s in systems if s.startswith('passthrough')]
for ours in [s for s in systems if s.startswith('dpfs')]:
    if not peers: break
    print(f"{ours} / best of {', '.join(peers)}: " + ', '.join(
        f"{name} {f[ours]['median'] / max(f[p]['median'] for p in peers if p in f):.2f}" for name, f in figures.items() if ours in f))
if sys.argv[3]:
    json.dump({"cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(), "rounds": int(sys.argv[2]), "figures": figures}, open(sys.argv[3], 'w'), indent=1)
PY
