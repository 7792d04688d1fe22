#!/usr/bin/env bash
# tests/mounts/workloads.sh BIN [--full]: what people do with a file system, on a mirror mount: fio with verification, a source tree
# packed, unpacked and checksummed, git clone and fsck, SQLite in WAL mode with several writers. --full: larger, a directory of a
# million entries, and with the writeback cache and FUSE over io_uring besides. Exit status 77: cannot run here.
bin=$1
source "$(dirname "$0")/common.sh"
enter "$@"
full=0; [[ ${2:-} == --full ]] && full=1
for program in fio git tar sha256sum python3; do command -v $program >/dev/null || skip "needs $program"; done
tree=$(cd "$(dirname "$0")/../.." && pwd)

verify() {  # verify NAME fio-options...
    local name=$1
    shift
    fio --name="$name" --directory="$base/mnt" --ioengine=io_uring --iodepth=8 --numjobs=4 --verify=crc32c --verify_fatal=1 --do_verify=1 \
        --verify_state_save=0 --size="$size" --output-format=terse "$@"
    rm -f "$base/mnt/$name".*
}

archive() {
    local files=4000
    [[ $full == 1 ]] && files=70000
    # A tree like a kernel's sources: many small files, some large ones, links.
    python3 - "$base/mnt/tree" $files <<'PY'
import os, random, sys
root, count = sys.argv[1], int(sys.argv[2])
random.seed(7)
for i in range(count):
    folder = f"{root}/d{i % 97}/e{i % 13}"
    os.makedirs(folder, exist_ok=True)
    size = 300000 if i % 500 == 0 else random.randrange(20000)
    with open(f"{folder}/f{i}.c", "wb") as f: f.write(random.randbytes(size))
    if i % 100 == 0: os.symlink(f"f{i}.c", f"{folder}/link{i}")
    if i % 150 == 0: os.link(f"{folder}/f{i}.c", f"{folder}/hard{i}")
PY
    (cd "$base/mnt/tree" && find . -type f -print0 | sort -z | xargs -0 sha256sum >"$base/sums" && tar cf "$base/mnt/tree.tar" .)
    mkdir "$base/mnt/again"
    tar xf "$base/mnt/tree.tar" -C "$base/mnt/again"
    (cd "$base/mnt/again" && sha256sum --quiet -c "$base/sums")
    # What the host has below is what the mount showed.
    (cd "$base/store/again" && sha256sum --quiet -c "$base/sums")
    diff -r --no-dereference "$base/store/tree" "$base/store/again"
    rm -rf "$base/mnt/tree" "$base/mnt/again" "$base/mnt/tree.tar"
    [[ -z $(ls -A "$base/store") ]]
}

clone() {
    if [[ ! -e $tree/.git ]]; then  # an unpacked archive
        cp -r "$tree/src" "$base/tree"
        git -c init.defaultBranch=main init -q "$base/tree"
        git -C "$base/tree" add . && git -C "$base/tree" -c user.name=test -c user.email=test@localhost commit -qm all
        tree=$base/tree
    fi
    git -c safe.directory='*' -c protocol.file.allow=always clone -q --no-hardlinks "file://$tree" "$base/mnt/clone"
    git -c safe.directory='*' -C "$base/mnt/clone" fsck --full --strict
    git -c safe.directory='*' -C "$base/mnt/clone" status --porcelain | (! grep .)
    git -c safe.directory='*' -C "$base/mnt/clone" gc -q
    git -c safe.directory='*' -C "$base/mnt/clone" fsck --full
    rm -rf "$base/mnt/clone"
}

sqlite() {
    # Four processes add to one database in WAL mode (shared memory of mmap, record locks) while one checks it.
    python3 - "$base/mnt/database" "$1" <<'PY'
import multiprocessing, os, sqlite3, sys
path, count = sys.argv[1], int(sys.argv[2])
def connect():
    db = sqlite3.connect(path, timeout=60, isolation_level=None)
    db.execute("pragma journal_mode=wal"); db.execute("pragma synchronous=normal")
    return db
connect().execute("create table t(writer int, n int, data blob, unique(writer, n))")
def write(writer):
    db = connect()
    for n in range(count):
        db.execute("begin immediate")
        db.execute("insert into t values (?, ?, randomblob(?))", (writer, n, n % 3000))
        if n % 10 == 9: db.execute("delete from t where writer = ? and n = ?", (writer, n - 5))
        db.execute("commit")
def check(stop):
    db = connect()
    while not stop.is_set():
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
stop = multiprocessing.Event()
checker = multiprocessing.Process(target=check, args=(stop,)); checker.start()
writers = [multiprocessing.Process(target=write, args=(i,)) for i in range(4)]
for w in writers: w.start()
for w in writers: w.join()
stop.set(); checker.join()
assert all(w.exitcode == 0 for w in writers) and checker.exitcode == 0, "a process failed"
db = connect()
assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
got = db.execute("select count(*) from t").fetchone()[0]
assert got == 4 * (count - count // 10), got
PY
    rm -f "$base/mnt"/database*
}

# A directory of a million entries, made below and listed through the mount; a part is deleted below while it is listed. No name
# may come twice, none that stayed may be missing, and the server may grow by no more than what the client holds lookups of.
million() {  # million PID OPTION
    python3 - "$base/store/million" "$base/mnt/million" "$1" "$2" <<'PY'
import os, sys
store, mnt, pid, plus, count = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "readdirplus_always", 1000000
def memory():
    with open(f"/proc/{pid}/status") as f: return next(int(line.split()[1]) for line in f if line.startswith("VmRSS:"))  # KiB
def descriptors(): return len(os.listdir(f"/proc/{pid}/fd"))
os.mkdir(store)
directory = os.open(store, os.O_RDONLY)
for i in range(count): os.close(os.open(f"entry-{i:07}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory))
before = memory()
def listing(delete):
    seen, gone, number, twice = bytearray(count), bytearray(count), 0, 0
    with os.scandir(mnt) as entries:
        for entry in entries:
            assert entry.name.startswith("entry-"), entry.name
            i = int(entry.name[6:])
            assert entry.is_file(follow_symlinks=False), entry.name
            twice += seen[i]
            seen[i] = 1
            number += 1
            if delete and number % 10 == 0:
                for victim in (number // 10 * 7 % count, (count - number) // 7 * 7):
                    if not gone[victim]:
                        gone[victim] = 1
                        os.unlink(f"entry-{victim:07}", dir_fd=directory)
    missing = sum(1 for i in range(count) if not seen[i] and not gone[i])
    assert twice == 0, f"{twice} names came twice"
    assert missing == 0, f"{missing} names that stayed were not listed"
    return number, gone
number, _ = listing(False)
assert number == count, number
first = memory() - before
listing(False)
second = memory() - before
_, gone = listing(True)
stayed = set(os.listdir(store))
assert len(stayed) == count - sum(gone) and sum(gone) > 100000, (len(stayed), sum(gone))
assert set(os.listdir(mnt)) == stayed, "the listing afterwards is not that of the host"
third = memory() - before
print(f"grown by {first}, {second}, {third} KiB, {descriptors()} descriptors")
# Names alone cost nothing. With their attributes the client holds a lookup of each: an inode and its place or handle.
limit = count * 768 // 1024 if plus else 32 * 1024
assert max(first, second, third) < limit, f"the server has grown by {first}, {second}, {third} KiB"
PY
    rm -rf "$base/store/million"
}

round() {  # round OPTIONS
    local size=16m rows=150
    [[ $full == 1 ]] && size=128m rows=2000
    serve "mirror:$base/store" "$base/mnt" "$1"
    echo "-- mirror mounted with -o $1"
    says "fio verify, random writes, direct" verify random --rw=randwrite --bsrange=512-64k --bs_unaligned=0 --blockalign=512 --direct=1
    says "fio verify, random reads and writes, buffered" verify buffered --rw=randrw --bs=4k --direct=0
    says "fio verify, sequential, direct, 1 MiB" verify sequential --rw=write --bs=1m --direct=1
    says "fio verify, sequential, buffered" verify stream --rw=write --bs=128k --direct=0 --fsync=64
    says "tree packed, unpacked, checksummed" archive
    says "git clone, fsck, gc" clone
    says "SQLite, WAL, 4 writers and a checker" sqlite $rows
    unserve "$base/mnt"
}

mkdir "$base/store"
mount -t tmpfs -o size=6g store "$base/store"
round io_uring=off,passthrough=off
round io_uring=off
if [[ $full == 1 ]]; then
    for options in no_readdirplus readdirplus_always; do
        serve "mirror:$base/store" "$base/mnt" "io_uring=off,$options"
        says "a million entries, $options" million "${servers[$base/mnt]}" $options
        cat "$base.out"
        unserve "$base/mnt"
    done
    round io_uring=off,writeback_cache
    round io_uring=off,passthrough=off,cache=never
    switch=/sys/module/fuse/parameters/enable_uring
    if [[ -w $switch ]]; then
        before=$(<$switch)
        echo Y >$switch
        round io_uring=on,passthrough=off
        echo "$before" >$switch
    fi
fi
