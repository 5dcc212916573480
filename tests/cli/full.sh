#!/usr/bin/env bash
# A disk that is really full (a small tmpfs): what is written is refused in one line that says so, or is whole; what was there stays.
set -euo pipefail
tern=$(realpath "$1")
[ -z "${TERN_EMULATED:-}" ] || { echo "skipped: a process of the emulator does not see the mount"; exit 77; }
if [ "${2:-}" != inside ]; then
    unshare -rm true 2>/dev/null || { echo "skipped: no mount of one's own here"; exit 77; }
    exec unshare -rm bash "$0" "$tern" inside
fi
tmp=$(mktemp -d)
disk=$tmp/disk
mkdir "$disk"
trap 'umount -l "$disk" 2>/dev/null; rm -rf "$tmp"' EXIT
mount -t tmpfs -o size=16m none "$disk" || { echo "skipped: no tmpfs"; exit 77; }
export XDG_DATA_HOME=$tmp/data XDG_CACHE_HOME=$tmp/cache XDG_STATE_HOME=$tmp TMPDIR=$tmp TERN_PACK=never
fail() { echo "FAILED: $*"; head -c 2000 "$tmp/out" "$tmp/err"; exit 1; }
"$tern" synth --arch tiny-llama -o "$tmp/m.gguf" >"$tmp/out" 2>&1
"$tern" pack "$tmp/m.gguf" -o "$tmp/m.tern" -t 1 --calib-tokens 64 >"$tmp/out" 2>&1
for i in $(seq 400); do echo "The old inn number $i is near the weir, and the mill stands by bridge $((i * 7))."; done >"$tmp/doc.txt"

refused=0 done=0
# room NAME KIB COMMAND...: with so much room left, COMMAND ends with 0, or with 1 and a line that names the full disk
room() {
    local name=$1 kib=$2 status=0
    shift 2
    rm -f "$disk/filler"
    local free
    free=$(df -k --output=avail "$disk" | tail -1)
    [ "$free" -le "$kib" ] || head -c $(((free - kib) * 1024)) /dev/zero >"$disk/filler"
    "$@" >"$tmp/out" 2>"$tmp/err" || status=$?
    rm -f "$disk/filler"
    case $status in
    0) done=$((done + 1)) ;;
    1) refused=$((refused + 1))
       grep -qiE "no space left|no room on the disk|disk is full" "$tmp/err" || fail "$name, $kib KiB: it does not say that the disk is full" ;;
    *) fail "$name, $kib KiB: status $status" ;;
    esac
    return $((status > 0))
}
talk() { printf 'hello\n/save %s\n' "$disk/talk.txt" | "$tern" chat -m "$tmp/m.tern" -t 1 --chat-template chatml --temp 0 -n 4 --no-store; }
kept() { printf 'hello the world\n' | "$tern" chat -m "$tmp/m.tern" -t 1 --chat-template chatml --temp 0 -n 4 --store "$disk/s.db"; }
"$tern" run -m "$tmp/m.tern" -t 1 -p "hello the world" -n 4 --temp 0 --ignore-eos --save-session "$disk/s.session" >"$tmp/want" 2>/dev/null
cp "$tmp/m.tern" "$disk/out.tern"
talk >/dev/null 2>&1
"$tern" rag add --store "$disk/s.db" "$tmp/doc.txt" >/dev/null 2>&1
kept >/dev/null 2>&1
cp "$disk/s.session" "$disk/out.tern" "$disk/talk.txt" "$disk/s.db" "$tmp/"
for kib in 0 4 12 40 80 120 160 200 280 400 700; do
    room pack "$kib" "$tern" pack "$tmp/m.gguf" -o "$disk/out.tern" -t 1 --calib-tokens 64 || cmp -s "$disk/out.tern" "$tmp/out.tern" || fail "the package that was there"
    "$tern" inspect "$disk/out.tern" >/dev/null 2>&1 || fail "pack, $kib KiB: the package cannot be read"
    room save "$kib" "$tern" run -m "$tmp/m.tern" -t 1 -p "hello the world" -n 4 --temp 0 --ignore-eos --save-session "$disk/s.session" || cmp -s "$disk/s.session" "$tmp/s.session" || fail "the session that was there"
    "$tern" run -m "$tmp/m.tern" -t 1 -p "hello the world" -n 4 --temp 0 --load-session "$disk/s.session" >/dev/null 2>&1 || fail "save, $kib KiB: the session cannot be loaded"
    room talk "$kib" talk || cmp -s "$disk/talk.txt" "$tmp/talk.txt" || fail "the conversation that was there"
    grep -q "^user: hello" "$disk/talk.txt" || fail "talk, $kib KiB: the conversation is lost"
    cp "$tmp/s.db" "$disk/s.db"
    rm -f "$disk/s.db-wal" "$disk/s.db-shm"
    sed "s/inn/tavern $kib/" "$tmp/doc.txt" >"$tmp/more.txt"
    room rag "$kib" "$tern" rag add --store "$disk/s.db" "$tmp/more.txt" || true
    "$tern" rag ls --store "$disk/s.db" >"$tmp/out" 2>"$tmp/err" || fail "rag, $kib KiB: the index cannot be read"
    grep -q "doc.txt" "$tmp/out" || fail "rag, $kib KiB: a document is lost"
    # a conversation that cannot be kept is answered all the same, and that is said
    room kept "$kib" kept || true
    grep -q . "$tmp/out" || [ "$(tail -c 1 "$tmp/err" | wc -c)" = 1 ] || fail "kept, $kib KiB: neither answered nor told"
    "$tern" forget --list --json --store "$disk/s.db" >"$tmp/out" 2>"$tmp/err" || fail "kept, $kib KiB: the store cannot be read"
    python3 -c 'import json, sys; sys.exit(not json.load(open(sys.argv[1])))' "$tmp/out" || fail "kept, $kib KiB: a conversation is lost"
done
[ "$refused" -ge 15 ] && [ "$done" -ge 10 ] || fail "$refused were refused and $done done: the disk was not full at times, or always"
echo "full: $refused refused, $done done"
