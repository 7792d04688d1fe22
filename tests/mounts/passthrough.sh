#!/usr/bin/env bash
# tests/mounts/passthrough.sh BIN: files that the kernel reads and writes by itself: that it does, that what it would do otherwise than a
# local file system still comes to the server, and that both ways see the same bytes. Exit status 77: cannot run here.
bin=$1
source "$(dirname "$0")/common.sh"
enter "$@"
command -v python3 >/dev/null || skip "needs python3"
export FARHAUL_RUN_DIR=$base/run
fail() { echo "FAILED: $1" >&2; exit 1; }
dir=$base/dir mnt=$base/mnt
chmod 755 "$base"  # other users come in
mkdir "$dir"
mount -t tmpfs -o size=200m,mode=777 store "$dir"
serve "mirror:$dir" "$mnt" suid,io_uring=off
field() { "$bin/dpfs" stat "$mnt" --json | python3 -c "import json,sys; print(json.load(sys.stdin)$1)"; }
[[ $(field "['passthrough']") == True ]] || skip "this kernel has no FUSE passthrough"

cat >"$base/check.py" <<'PY'
import fcntl, mmap, os, sys
mnt, dir = sys.argv[1:]
path, there = mnt + '/file', dir + '/file'
def same(what, have, want):
    if have != want: sys.exit(f'{what}: {have!r}, not {want!r}')
f = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
same('written', os.pwrite(f, b'a' * 300000, 0), 300000)
same('size at once', os.fstat(f).st_size, 300000)
same('on the host', open(there, 'rb').read(), b'a' * 300000)
with open(there, 'r+b') as host:
    host.seek(5); host.write(b'HOST'); host.seek(400000); host.write(b'end')
same('what the host wrote, at once', os.pread(f, 10, 0), b'aaaaaHOSTa')
same('behind the size that was known', os.pread(f, 10, 400000), b'end')
m = mmap.mmap(f, 4096)
m[0:3] = b'map'
same('mapped, read', os.pread(f, 5, 0), b'mapaa')
same('mapped, on the host', open(there, 'rb').read(3), b'map')
# Appending begins and ends while the file is open.
a = os.open(path, os.O_WRONLY | os.O_APPEND)
with open(there, 'ab') as host: host.write(b'more')
os.write(a, b'appended')
same('appended behind what the host appended', open(there, 'rb').read()[-12:], b'moreappended')
fcntl.fcntl(a, fcntl.F_SETFL, 0)
os.pwrite(a, b'X', 0)
same('no longer appending', os.pread(f, 3, 0), b'Xap')
fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND)
os.write(f, b'later')
same('appending since then', open(there, 'rb').read()[-5:], b'later')
os.ftruncate(f, 4)
same('cut', (os.fstat(f).st_size, os.pread(f, 10, 0)), (4, b'Xapa'))
os.unlink(path)
same('deleted while open', os.pread(f, 10, 0), b'Xapa')
# Nobody but its owner keeps S_ISUID by writing, whenever the bit was set.
s = os.open(mnt + '/suid', os.O_RDWR | os.O_CREAT, 0o666)
os.fchmod(s, 0o4777)
child = os.fork()
if child == 0:
    os.setgid(4321); os.setuid(4321)
    os.write(os.open(mnt + '/suid', os.O_WRONLY), b'#!')
    os._exit(0)
same('child', os.waitpid(child, 0)[1], 0)
same('S_ISUID after a stranger wrote', os.stat(dir + '/suid').st_mode & 0o7777, 0o777)
os.fchmod(s, 0o666)
w = os.open(mnt + '/suid', os.O_WRONLY)
os.fchmod(w, 0o4777)
child = os.fork()
if child == 0:
    os.setgid(4321); os.setuid(4321)
    os.write(w, b'#!')  # inherited
    os._exit(0)
same('child', os.waitpid(child, 0)[1], 0)
same('S_ISUID after a stranger wrote to a file that was open', os.stat(dir + '/suid').st_mode & 0o7777, 0o777)
PY
says "the same bytes both ways" python3 "$base/check.py" "$mnt" "$dir"
head -c 50M /dev/urandom >"$mnt/big"
cmp "$mnt/big" "$dir/big" || fail "50 MB differ"
reads=$(field ".get('operations', {}).get('read', {}).get('requests', 0)")
[[ $reads == 0 ]] || fail "$reads reads came to the server"
echo "ok: no read came to the server"

# Many files, one of them open meanwhile.
for i in $(seq 200); do echo "$i" >"$mnt/f$i"; done
(exec 9<"$mnt/f1"; for i in $(seq 200); do [[ $(<"$mnt/f$i") == "$i" ]] || exit 1; done) || fail "small files"
echo "ok: many files"

# The server is killed: what the kernel has open goes on, nothing else hangs.
exec 8<>"$mnt/big"
kill -9 "${servers[$mnt]}"
wait "${servers[$mnt]}" 2>/dev/null || true
timeout 10 cmp "/proc/$$/fd/8" "$dir/big" 2>/dev/null || true
timeout 10 dd bs=4096 count=1 <&8 >/dev/null 2>&1 || [[ $? != 124 ]] || fail "a read hangs after the server was killed"
exec 8>&-
serve "mirror:$dir" "$mnt" io_uring=off
# What the kernel still has cached of the dead mount may pass for the new one for a moment.
for _ in $(seq 100); do cmp -s "$mnt/big" "$dir/big" && break; sleep 0.1; done
cmp "$mnt/big" "$dir/big" || fail "after a restart"
echo "ok: a killed server"
