#!/usr/bin/env bash
# tests/mounts/conventions.sh BIN: what users expect of a mount, whatever is behind it: mount(8) and its helpers' options, going into the
# background, signals, umount by others, statistics, dead mounts, users other than root, FUSE over io_uring where it can be turned on.
# Exit status 77: cannot run here.
bin=$1
source "$(dirname "$0")/common.sh"
enter "$@"
command -v python3 >/dev/null || skip "needs python3"
export PATH=$bin:$PATH FARHAUL_RUN_DIR=$base/run
mnt=$base/mnt
mkdir "$mnt"
switch=/sys/module/fuse/parameters/enable_uring
switch_before=$(cat $switch 2>/dev/null || true)
put_back() {
    local status=$?
    [[ -z ${flipper:-} ]] || { kill "$flipper" && wait "$flipper"; } || true
    [[ -z $switch_before || $(cat $switch) == "$switch_before" ]] || echo "$switch_before" >$switch
    rm -f "$base.log" "$base.out"
    (exit $status)
    leave
}
trap put_back EXIT

fail() { echo "FAILED: $1" >&2; exit 1; }
limited() { timeout 20 "$@"; }
field() { limited dpfs stat "$mnt" --json | python3 -c "import json,sys; print(json.load(sys.stdin)$1)"; }
mounted() { [[ $(findmnt -n -o FSTYPE -M "$mnt" 2>/dev/null) == fuse.dpfs ]]; }
gone() { for _ in $(seq 100); do [[ -e /proc/$1/exe ]] || return 0; sleep 0.05; done; return 1; }
# ended PID WHAT: it has ended by itself, with status 0.
ended() {
    gone "$1" || fail "$2 does not end the server"
    local status=0
    wait "$1" || status=$?
    [[ $status == 0 ]] || fail "$2 ended the server with $status"
    unset "servers[$mnt]"
    ! mounted || fail "still mounted after $2"
}
# refused CODE TEXT COMMAND...: fails with that status, says that, and mounts nothing.
refused() {
    local code=$1 text=$2 status=0
    shift 2
    limited "$@" >"$base.out" 2>&1 || status=$?
    [[ $status == "$code" ]] || fail "'$*' ended with $status, not $code: $(cat "$base.out")"
    grep -qF -- "$text" "$base.out" || fail "'$*' did not say '$text': $(cat "$base.out")"
    ! mounted || fail "'$*' mounted all the same"
}

# In the background, on a relative path; the parent returns when the files are there.
(cd "$base" && limited dpfs mount memory: mnt -o fsname=test,noatime,threads=3,io_uring=off)
mounted || fail "dpfs mount returned before the mount was there"
[[ $(findmnt -n -o SOURCE -M "$mnt") == test ]] || fail "fsname= does not show"
[[ $(findmnt -n -o OPTIONS -M "$mnt") == *nosuid*nodev*noatime* ]] || fail "flags: $(findmnt -n -o OPTIONS -M "$mnt")"
pid=$(field "['pid']")
[[ $(readlink "/proc/$pid/cwd") == / && $(readlink "/proc/$pid/fd/0") == /dev/null ]] || fail "the daemon keeps its starter's folder or terminal"
echo hello >"$mnt/file" && [[ $(cat "$mnt/file") == hello ]] || fail "write and read"
[[ $(field "['threads']") == 3 && $(field "['transport']") == classic && $(field "['source']") == memory: ]] || fail "dpfs stat"
[[ $(field "['operations']['write']['bytes_in']") == 6 ]] || fail "dpfs stat counts $(field "['operations']['write']") for a write of 6 bytes"
limited dpfs stat "$mnt" | grep -q '^  write .* 6 B' || fail "the table of dpfs stat"
[[ $(stat -c %a "$base/run/$pid.sock") == 600 ]] || fail "the control socket is open to others"
status=0
(cd "$mnt" && limited dpfs unmount "$mnt" 2>"$base.out") || status=$?
[[ $status == 1 ]] && grep -q "in use" "$base.out" || fail "unmount of a mount in use"
limited dpfs unmount "$mnt"
gone "$pid" || fail "the daemon stays after dpfs unmount"
[[ ! -e $base/run/$pid.sock ]] || fail "the daemon leaves its socket"
echo "ok: background, statistics, dpfs unmount"

# In the foreground: signals and unmounting by others both end it with 0.
for signal in INT TERM HUP; do
    serve null: "$mnt" io_uring=off
    pid=${servers[$mnt]}
    kill -$signal "$pid"
    ended "$pid" "SIG$signal"
done
for how in "umount $mnt" "fusermount3 -u $mnt" "umount -l $mnt"; do
    command -v "${how%% *}" >/dev/null || continue
    serve null: "$mnt" io_uring=off
    pid=${servers[$mnt]}
    limited $how
    ended "$pid" "'$how'"
done
echo "ok: signals, unmounting by others"

# A mount that ends because requests cannot be read any more says so, by its exit status too.
if command -v strace >/dev/null && strace -o /dev/null true 2>/dev/null; then
    strace -f -o /dev/null -e trace=readv,read -e inject=readv:error=EIO:when=6+ \
        dpfs mount memory: "$mnt" --foreground -o io_uring=off,threads=1 2>"$base.out" &
    pid=$!
    for _ in $(seq 100); do
        ! kill -0 "$pid" 2>/dev/null && break
        limited stat "$mnt/nothing" >/dev/null 2>&1 || true
        sleep 0.05
    done
    gone "$pid" || fail "a server that cannot read requests does not end"
    status=0
    wait "$pid" || status=$?
    [[ $status == 1 ]] && grep -q "reading from /dev/fuse" "$base.out" || fail "a server that cannot read requests ended with $status: $(cat "$base.out")"
    limited umount -l "$mnt" 2>/dev/null || true
    echo "ok: a mount that fails"
fi

# A signal while a file is open: the mount goes, and the open file fails instead of hanging.
for threads in 1 2 4 8; do
    serve memory: "$mnt" io_uring=off,threads=$threads
    pid=${servers[$mnt]}
    for i in 1 2 3 4 5 6 7 8; do (echo $i >"$mnt/$i"; cat "$mnt/$i" >/dev/null) & done
    wait $(jobs -p | grep -vx "$pid")
    exec 7<>"$mnt/open"
    kill -TERM "$pid"
    ended "$pid" "SIGTERM of a busy mount with $threads threads"
    ! limited sh -c 'echo x >&7' 2>/dev/null || fail "a write to a mount that is gone"
    exec 7>&-
done
echo "ok: a busy mount"

# Killed while a lock is waited for: who waits ends, and the next server takes the dead mount away.
serve memory: "$mnt" io_uring=off
pid=${servers[$mnt]}
exec 9>"$mnt/lock"
flock 9
(exec 9>&-; exec flock "$mnt/lock" true) 2>/dev/null &
waiter=$!
sleep 0.3
[[ -e /proc/$waiter/exe ]] || fail "a lock that is held was given to another"
kill -9 "$pid"
wait "$pid" 2>/dev/null || true
gone "$waiter" || fail "a process that waited for a lock hangs after its server was killed"
exec 9>&-
limited stat -f "$mnt" >/dev/null 2>&1 && fail "a dead mount answers"
unset "servers[$mnt]"
limited dpfs mount null: "$mnt" -o io_uring=off 2>"$base.out"
grep -q "dead mount" "$base.out" || fail "taking a dead mount away was not said: $(cat "$base.out")"
limited head -c 10 "$mnt/null" >/dev/null || fail "a restart over the dead mount"
[[ -e $base/run/$pid.sock ]] || fail "the killed server's socket should be there still"
[[ $(limited dpfs stat --all --json | python3 -c 'import json,sys; print(len(json.load(sys.stdin)))') == 1 ]] || fail "dpfs stat --all counts the dead"
[[ ! -e $base/run/$pid.sock ]] || fail "the killed server's socket stays"
limited umount "$mnt"
echo "ok: kill -9, restart over the dead mount"

# A lock that is waited for when the mount is taken away by force does not keep the server.
serve memory: "$mnt" io_uring=off
pid=${servers[$mnt]}
exec 9>"$mnt/lock"
flock 9
(exec 9>&-; exec flock "$mnt/lock" true) 2>/dev/null &
waiter=$!
sleep 0.3
kill -TERM "$pid"
ended "$pid" "SIGTERM while a lock is waited for"
gone "$waiter" || fail "a process that waited for a lock hangs after its server has ended"
exec 9>&-
echo "ok: SIGTERM while a lock is waited for"

# Wrong command lines.
refused 2 "did you mean 'writeback_cache'" dpfs mount memory: "$mnt" -o writebak_cache
refused 2 "did you mean 'size'" dpfs mount memory: "$mnt" -o sise=1G
refused 2 "threads=0" dpfs mount null: "$mnt" -o threads=0
refused 2 "takes no value" dpfs mount null: "$mnt" -o ro=1
refused 2 "needs a value" dpfs mount null: "$mnt" -o max_write
refused 2 "memory:" dpfs mount nonsense:x "$mnt"
refused 2 "did you mean 'mount'" dpfs mout null: "$mnt"
refused 1 "$base/missing" dpfs mount null: "$base/missing"
refused 2 "$base/missing" dpfs mount "mirror:$base/missing" "$mnt"
refused 1 "nothing is mounted" dpfs unmount "$mnt"
refused 1 "no dpfs of this user" dpfs stat "$mnt"
echo "ok: wrong command lines"

# As mount(8) calls it: by type through mount.fuse, and by name as a helper.
if [[ (-x /sbin/mount.fuse3 || -x /sbin/mount.fuse) && -d /usr/local/bin ]]; then
    # mount(8) looks for the program on a path of its own; this is seen in this script's namespace only.
    mkdir "$base/programs" && ln -s "$bin/dpfs" "$base/programs/dpfs" && mount --bind "$base/programs" /usr/local/bin
    limited mount -t fuse.dpfs memory: "$mnt" -o ro,noexec,_netdev,x-systemd.automount,io_uring=off
    mounted && [[ $(findmnt -n -o OPTIONS -M "$mnt") == *ro*noexec* ]] || fail "mount -t fuse.dpfs: $(findmnt -n -o OPTIONS -M "$mnt")"
    ! touch "$mnt/x" 2>/dev/null || fail "-o ro lets write"
    limited umount "$mnt"
    echo "memory: $mnt fuse.dpfs defaults,noauto,nofail,comment=hello,size=16MiB,io_uring=off 0 0" >"$base/fstab"
    limited mount -T "$base/fstab" "$mnt"
    mounted && [[ $(df --output=size -B1M "$mnt" | tail -1) -eq 16 ]] || fail "fstab: $(df "$mnt")"
    limited umount "$mnt"
    umount /usr/local/bin
    echo "ok: mount -t fuse.dpfs, fstab"
fi
for name in mount.dpfs mount.fuse.dpfs; do
    ln -s "$bin/dpfs" "$base/$name"
    limited "$base/$name" memory: "$mnt" -n -v -w -t fuse.dpfs -o rw,suid,dev,io_uring=off
    mounted && [[ $(findmnt -n -o OPTIONS -M "$mnt") != *nosuid* ]] || fail "$name"
    limited umount "$mnt"
    refused 2 "unknown option 'nonsense'" "$base/$name" memory: "$mnt" -o nonsense
    limited "$base/$name" memory: "$mnt" -f -s -o nonsense && ! mounted || fail "$name -f -s"
done
echo "ok: mount helpers"

# Not root: through fusermount3, by a user who owns the mountpoint.
if [[ -u $(command -v fusermount3) ]] && command -v setpriv >/dev/null; then
    mkdir "$base/home" "$base/home/mnt" && chmod 755 "$base" && chown -R 65534:65534 "$base/home"
    cp "$bin/dpfs" "$base/home/dpfs"
    user() { limited setpriv --reuid 65534 --regid 65534 --clear-groups env FARHAUL_RUN_DIR="$base/home/run" "$@"; }
    # Where /dev/fuse is root's alone, as on hosts without udev, users cannot clone its descriptor.
    if user sh -c 'exec 8<>/dev/fuse' 2>/dev/null; then
        user "$base/home/dpfs" mount memory: "$base/home/mnt" -o 'fsname=a\,b,io_uring=off' || fail "a mount by a user"
        [[ $(findmnt -n -o SOURCE -M "$base/home/mnt") == a,b ]] || fail "fsname with a comma: $(findmnt -n -o SOURCE -M "$base/home/mnt")"
        user sh -c "echo hello >'$base/home/mnt/file'" || fail "a user cannot write to a mount of their own"
        user "$base/home/dpfs" stat "$base/home/mnt" | grep -q '^  write ' || fail "dpfs stat of a user"
        user "$base/home/dpfs" unmount "$base/home/mnt" || fail "dpfs unmount of a user"
        echo "ok: a user other than root"
    else
        echo "not tried: users may not open /dev/fuse here"
    fi
fi

# Over io_uring, if it can be turned on.
if [[ -w $switch ]] && echo 1 >$switch 2>/dev/null && [[ $(cat $switch) == Y ]]; then
    limited dpfs mount memory: "$mnt" -o io_uring=on,queue_depth=4
    [[ $(field "['transport']") == io_uring ]] || fail "io_uring=on serves $(field "['transport']")"
    pids=()
    for i in 1 2 3 4; do
        ( head -c 3000000 /dev/urandom >"$base/data$i" && cp "$base/data$i" "$mnt/data$i" && cmp "$base/data$i" "$mnt/data$i" ) &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || fail "data over io_uring"; done
    mkdir -p "$mnt/a/b" && for i in $(seq 200); do : >"$mnt/a/b/$i"; done
    [[ $(ls "$mnt/a/b" | wc -l) == 200 ]] || fail "a listing over io_uring"
    rm -r "$mnt/a"
    pid=$(field "['pid']")
    limited umount "$mnt"
    gone "$pid" || fail "umount does not end a server over io_uring"
    for how in TERM KILL; do
        limited dpfs mount memory: "$mnt" -o io_uring=on 2>/dev/null
        pid=$(field "['pid']")
        exec 7<>"$mnt/open"
        kill -$how "$pid"
        gone "$pid" || fail "SIG$how does not end a server over io_uring with a file open"
        exec 7>&-
        limited umount -l "$mnt" 2>/dev/null || true
    done
    # Turned off and on while mounts are set up: whatever they agree on then, they serve or end with a word, and nobody waits for ever.
    (while :; do echo N >$switch; sleep 0.0004; echo Y >$switch; sleep 0.0006; done) &
    flipper=$!
    for i in $(seq 60); do
        dpfs mount memory: "$mnt" --foreground -o io_uring=auto,queue_depth=64 2>/dev/null &
        pid=$!
        for _ in $(seq 200); do ! mounted && kill -0 "$pid" 2>/dev/null || break; sleep 0.01; done
        ls "$mnt" >/dev/null 2>&1 &
        reader=$!
        sleep 0.02
        kill -TERM "$pid" 2>/dev/null || true
        gone "$pid" || fail "a server whose switch was turned off does not end"
        gone "$reader" || fail "who reads a mount whose switch was turned off hangs"
        wait "$pid" "$reader" || true
        limited umount -l "$mnt" 2>/dev/null || true
    done
    kill "$flipper" && wait "$flipper" || true
    flipper=
    echo "$switch_before" >$switch
    if [[ $switch_before == N ]]; then
        refused 1 "echo 1 >" dpfs mount null: "$mnt" -o io_uring=on
        limited dpfs mount null: "$mnt" -o io_uring=auto && [[ $(field "['transport']") == classic ]] || fail "io_uring=auto without io_uring"
        limited umount "$mnt"
    fi
    echo "ok: over io_uring"
else
    echo "not tried: FUSE over io_uring cannot be turned on here"
fi
