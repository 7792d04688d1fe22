#!/usr/bin/env bash
# tests/mounts/kill_server.sh BIN [ROUNDS]: kill -9 of the server while writers write and fsync; then restart over the dead mount: what an
# fsync acknowledged is there, byte for byte, and no process of the dead mount hangs. Exit status 77: cannot run here.
bin=$1
source "$(dirname "$0")/common.sh"
enter "$@"
rounds=${2:-3}
for program in fio python3; do command -v $program >/dev/null || skip "needs $program"; done

mkdir "$base/store"
mount -t tmpfs -o size=2g store "$base/store"
cat >"$base/writer.py" <<'PY'
# Appends numbered records to a file, fsyncs, and only then notes the number in a log outside the mount.
import hashlib, os, sys
path, log, writer = sys.argv[1], sys.argv[2], sys.argv[3]
def record(n):
    seed = f"{writer}:{n}".encode()
    return b"".join(hashlib.sha256(seed + bytes([i % 256])).digest() for i in range(4 + n % 300))
done = 0
with open(log, "w") as acknowledged:
    try:
        with open(path, "wb", buffering=0) as f:
            while True:
                data = record(done)
                view = memoryview(data)
                while view: view = view[f.write(view):]
                os.fsync(f.fileno())
                done += 1
                acknowledged.write(f"{done}\n"); acknowledged.flush()
    except OSError as error:
        print("ended with", error)
PY
cat >"$base/check.py" <<'PY'
import hashlib, sys
path, log, writer = sys.argv[1], sys.argv[2], sys.argv[3]
def record(n):
    seed = f"{writer}:{n}".encode()
    return b"".join(hashlib.sha256(seed + bytes([i % 256])).digest() for i in range(4 + n % 300))
lines = open(log).read().split()
count = int(lines[-1]) if lines else 0
content = open(path, "rb").read()
at = 0
for n in range(count):
    data = record(n)
    assert content[at:at + len(data)] == data, f"{path}: record {n} of {count} that fsync acknowledged is not there"
    at += len(data)
print(f"writer {writer}: {count} acknowledged records, {at} bytes, all there")
assert count > 0, "nothing was written before the kill"
PY

for ((round = 1; round <= rounds; ++round)); do
    # Served: what the kernel writes by itself does not notice that a server dies.
    options=io_uring=off,passthrough=off
    [[ $((round % 2)) == 0 ]] && options+=,writeback_cache
    serve "mirror:$base/store" "$base/mnt" "$options"
    writers=()
    for i in 1 2 3; do
        python3 "$base/writer.py" "$base/mnt/file$i" "$base/log$i" "$i" >"$base/writer$i.out" 2>&1 &
        writers+=($!)
    done
    fio --name=verified --directory="$base/mnt" --size=64m --rw=randwrite --bs=4k --ioengine=io_uring --iodepth=16 --verify=crc32c --verify_state_save=0 \
        --time_based --runtime=20 --output="$base/fio.out" >/dev/null 2>&1 &
    fio_pid=$!
    sleep "1.$((RANDOM % 10))"
    kill -9 "${servers[$base/mnt]}"
    for pid in "${writers[@]}" $fio_pid; do
        for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
        ! kill -0 "$pid" 2>/dev/null || { echo "a process hangs on the dead mount (round $round)" >&2; exit 1; }
        wait "$pid" || true
    done
    cat "$base"/writer*.out
    wait "${servers[$base/mnt]}" 2>/dev/null || true
    unset "servers[$base/mnt]"
    # Over the dead mount, which the server takes away itself.
    serve "mirror:$base/store" "$base/mnt" io_uring=off
    for i in 1 2 3; do python3 "$base/check.py" "$base/mnt/file$i" "$base/log$i" "$i"; done
    [[ $(grep -c " $base/mnt " /proc/self/mountinfo) == 1 ]] || { echo "the dead mount is still below" >&2; exit 1; }
    unserve "$base/mnt"
    rm -f "$base/store"/*
done
echo "ok: $rounds rounds"
