#!/usr/bin/env bash
# tern for Windows, tried under Wine:  scripts/windows.sh [TERN]   (make check; TERN: this machine's program, default build/tern)
# Debian's mingw-w64 builds libtern.dll, tern-mini.exe and tern.exe in build-windows. The libraries that they bring are built from the sources of Debian's
# packages, which `apt-get source` fetches once; Debian has none of them for Windows. Then the programs answer under Wine with models and
# packages of all kinds, pack and chat: every text and every package must be that of TERN. docs/reference/architecture.md (Other systems) says what is missing.
set -euo pipefail
cd "$(dirname "$0")/.."
tern=$(realpath -m "${1:-build/tern}")
out=$PWD/build-windows
skip() { echo "skipped: $*"; exit 0; }
fail() { echo "FAILED: $*"; exit 1; }
command -v x86_64-w64-mingw32-gcc-posix >/dev/null || skip "no x86_64-w64-mingw32-gcc-posix, so nothing is built for Windows (scripts/setup.sh --windows)"
toolchain=$PWD/cmake/x86_64-w64-mingw32.cmake libraries=$out/libraries
mkdir -p "$out/sources" "$libraries/include"

wanted="jansson pcre2 utf8proc xxhash libmicrohttpd sqlite3"
# What `apt-get source` would bring if this machine's lists named sources: the same places and keys, asked for sources alone.
fetch() {
    local lists=$out/sources/lists f wants
    for f in $wanted; do
        compgen -G "$out/sources/${f}_*.dsc" >/dev/null || wants="${wants-} $f"
    done
    [ -n "${wants-}" ] || return 0
    mkdir -p "$lists/parts" "$lists/state/partial"
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ ! -f "$f" ] || sed -n 's/^deb /deb-src /p' "$f" >"$lists/parts/$(basename "$f" .list).list"
    done
    for f in /etc/apt/sources.list.d/*.sources; do
        [ ! -f "$f" ] || sed 's/^Types:.*/Types: deb-src/' "$f" >"$lists/parts/${f##*/}"
    done
    local apt=(apt-get -qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$lists/parts" -o "Dir::State::lists=$lists/state"
        -o Dir::Cache::srcpkgcache= -o Dir::Cache::pkgcache= -o APT::Sandbox::User=root)
    "${apt[@]}" update || return 1
    cd "$out/sources"
    for f in $wants; do # a mirror may lack the newest, which only mends
        "${apt[@]}" source --download-only $f || "${apt[@]}" source --download-only "$f/$(. /etc/os-release && echo "$VERSION_CODENAME")" || return 1
    done
}
library() { # name, its file, options of CMake
    local name=$1 made=$2 archive
    shift 2
    [ ! -f "$libraries/lib/$made" ] || return 0
    archive=$(ls "$out/sources/$name"_*.orig.tar.*z)
    mkdir -p "$out/sources/$name"
    tar -C "$out/sources/$name" --strip-components=1 -xf "$archive"
    [ -n "$made" ] || return 0
    if [ "$(type -t "make_$name")" = function ]; then
        ("make_$name" "$out/sources/$name") >"$out/sources/$name.log" 2>&1 || { tail -20 "$out/sources/$name.log"; fail "$name does not build"; }
        return 0
    fi
    cmake -S "$out/sources/$name" -B "$out/sources/$name/built" -G Ninja --toolchain "$toolchain" -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
        -DCMAKE_INSTALL_PREFIX="$libraries" "$@" >"$out/sources/$name.log" 2>&1 && cmake --build "$out/sources/$name/built" --target install >>"$out/sources/$name.log" 2>&1 ||
        { tail -20 "$out/sources/$name.log"; fail "$name does not build"; }
}
make_libmicrohttpd() { # in
    cd "$1" || return 1
    ./configure --host=x86_64-w64-mingw32 CC=x86_64-w64-mingw32-gcc-posix --prefix="$libraries" --disable-shared --enable-static --disable-https \
        --disable-doc --disable-examples --disable-curl --disable-postprocessor --disable-dauth --disable-bauth &&
        make -C src/microhttpd install && make -C src/include install
}
make_sqlite3() { # in: the sources make one file of themselves, by Tcl
    cd "$1" && mkdir -p built && cd built || return 1
    ../configure --disable-tcl --disable-readline && make sqlite3.c &&
        x86_64-w64-mingw32-gcc-posix -O2 -DSQLITE_ENABLE_FTS5 -DSQLITE_THREADSAFE=1 -DSQLITE_SECURE_DELETE -DSQLITE_OMIT_LOAD_EXTENSION -c sqlite3.c -o sqlite3.o &&
        x86_64-w64-mingw32-ar rcs "$libraries/lib/libsqlite3.a" sqlite3.o && cp sqlite3.h "$libraries/include/"
}
(fetch) >"$out/fetch.log" 2>&1 || { tail -3 "$out/fetch.log"; rm -rf "$out/sources"; skip "the sources of the libraries cannot be fetched"; }
library jansson libjansson.a -DJANSSON_BUILD_DOCS=OFF -DJANSSON_WITHOUT_TESTS=ON -DJANSSON_EXAMPLES=OFF
library pcre2 libpcre2-8.a -DPCRE2_BUILD_PCRE2GREP=OFF -DPCRE2_BUILD_TESTS=OFF -DPCRE2_SUPPORT_JIT=ON
library utf8proc libutf8proc.a
library xxhash ""
cp "$out/sources/xxhash/xxhash.h" "$libraries/include/"
library libmicrohttpd libmicrohttpd.a # these two have no CMake
library sqlite3 libsqlite3.a

cmake -S . -B "$out/tern" -G Ninja --toolchain "$toolchain" -DTERN_WINDOWS_LIBRARIES="$libraries" -DTERN_WERROR=ON >"$out/build.log" 2>&1 &&
    cmake --build "$out/tern" >>"$out/build.log" 2>&1 || { tail -30 "$out/build.log" | cut -c1-300; fail "it does not build for Windows"; }
# Nothing but what Windows has.
wants=$(x86_64-w64-mingw32-objdump -p "$out/tern/libtern.dll" "$out/tern/tern-mini.exe" "$out/tern/tern.exe" | sed -n 's/.*DLL Name: //p' | sort -u)
foreign=$(grep -viE '^(libtern|kernel32|msvcrt|bcrypt|shell32|advapi32|ws2_32)\.dll$' <<<"$wants" || true)
[ -z "$foreign" ] || fail "it wants $foreign of Windows"
echo "windows: libtern.dll, tern-mini.exe and tern.exe are built"

command -v wine >/dev/null || skip "no wine, so nothing is run"
[ -x "$tern" ] || skip "no $tern to compare with"
tmp=$(mktemp -d)
export WINEPREFIX=$tmp/wine WINEDEBUG=-all XDG_CACHE_HOME=$tmp/cache TERN_PACK=never
trap 'kill "${served[@]}" 2>/dev/null || true; wineserver -k 2>/dev/null || true; rm -rf "$tmp"' EXIT
served=()
tried=0
same() { # model, text, options of tern, those of tern-mini
    "$tern" run "$1" "$2" -n 48 --temp 0 $3 >"$tmp/here" 2>"$tmp/err" || { cat "$tmp/err"; fail "$tern with $1"; }
    timeout 300 wine "$out/tern/tern-mini.exe" "$1" "$2" n-predict=48 temp=0 $4 >"$tmp/there" 2>"$tmp/err" || { cat "$tmp/err"; fail "$1 under Wine"; }
    cmp "$tmp/here" "$tmp/there" || { cat "$tmp/here" "$tmp/there"; fail "another text on Windows: $1 $2 $4"; }
    tried=$((tried + 1))
}
make() { "$tern" "$@" >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "tern $*"; }; }
folder="$tmp/ein Ordner/日本語 ü"
mkdir -p "$folder"
make pack models/tern-tiny -o "$folder/m.tern" --calib-tokens 512
same models/tern-tiny "What did Lily find in the garden? Don't say 1234 or café." "" ""
same "$folder/m.tern" "Tell me a story about a dog, a cat
and   a bird — with “quotes” and 日本語." "" ""
same "$folder/m.tern" "Once upon a time there was" "--raw --draft all" "raw=yes draft=all"
same "$folder/m.tern" "Once upon a time" "--raw" "raw=yes load=mmap"
for arch in tiny-qwen2 tiny-llama; do
    make synth --arch $arch -o "$tmp/$arch.gguf" --seed 3
    same "$tmp/$arch.gguf" "the inn" "--raw" "raw=yes threads=2"
done
# The program: the same answers, the same package, the same chat from a pipe, and a package that it makes in the background by itself.
there() { timeout 300 wine "$out/tern/tern.exe" "$@"; }
equal() { cmp "$1" "$2" || { head -5 "$1" "$2"; fail "on Windows another $3"; }; tried=$((tried + 1)); }
[ "$(there --version)" = "$("$tern" --version)" ] || fail "another version"
"$tern" models/tern-tiny - --temp 0 <models/tern-tiny/demo.txt >"$tmp/here" 2>/dev/null
there models/tern-tiny - --temp 0 <models/tern-tiny/demo.txt >"$tmp/there" 2>"$tmp/err" || { cat "$tmp/err"; fail "tern.exe answers nothing"; }
equal "$tmp/here" "$tmp/there" "answer"
there pack models/tern-tiny -o "$folder/w.tern" --calib-tokens 512 >"$tmp/log" 2>&1 || { cat "$tmp/log"; fail "tern.exe packs nothing"; }
equal "$folder/m.tern" "$folder/w.tern" "package"
printf 'hello\n/temp 5000\n"""\nwhat is\nyour name?\n"""\n/history\n' >"$tmp/said"
"$tern" chat models/tern-tiny --temp 0 -n 12 --no-store <"$tmp/said" >"$tmp/here" 2>/dev/null
sed 's/$/\r/' "$tmp/said" | there chat models/tern-tiny --temp 0 -n 12 --no-store >"$tmp/there" 2>"$tmp/err" || { cat "$tmp/err"; fail "tern.exe chats not"; }
equal "$tmp/here" "$tmp/there" "chat"
TERN_PACK=auto there run models/tern-tiny hi -n 2 >"$tmp/log" 2>&1 && grep -q "in the background" "$tmp/log" || { cat "$tmp/log"; fail "nothing is packed in the background"; }
for _ in $(seq 600); do ! ls "$tmp/cache/tern/packages/"*.tern >/dev/null 2>&1 || break; sleep 0.2; done
there cache ls >"$tmp/log" 2>&1 && grep -q "models/tern-tiny" "$tmp/log" || { cat "$tmp/log"; fail "no package was made in the background"; }
# The server: the replies of Linux's, whole and as streams, the page byte by byte, a client that goes away, a conversation that is kept.
serve() { # name, program
    local name=$1 i
    shift
    "$@" serve models/tern-tiny --port 0 --cache-size 0 >"$tmp/$name.out" 2>"$tmp/$name.err" &
    served+=($!)
    for i in $(seq 3000); do ! grep -q "http://127.0.0.1" "$tmp/$name.err" || break; kill -0 $! 2>/dev/null || break; sleep 0.1; done
    port=$(sed -n 's/.*http:\/\/127.0.0.1:\([0-9]*\).*/\1/p' "$tmp/$name.err")
    [ -n "$port" ] || { cat "$tmp/$name.err"; fail "$name does not serve"; }
}
serve linux "$tern"
here_port=$port
serve windows wine "$out/tern/tern.exe"
python3 - "$here_port" "$port" <<'PY' || { tail -5 "$tmp/windows.err"; fail "the server under Wine"; }
import http.client, json, socket, sys
here, there = [int(p) for p in sys.argv[1:]]
CHAT = {"messages": [{"role": "user", "content": "What did Lily find in the garden?"}], "max_tokens": 24, "temperature": 0}


def ask(port, method, path, body=None):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    c.request(method, path, json.dumps(body) if body is not None else None)
    r = c.getresponse()
    return r.status, r.read()


def same(what, of):
    a, b = of(here), of(there)
    assert a == b, (what, a, b)
    print("windows: server,", what, "ok", flush=True)


def events(port, path, body):
    status, raw = ask(port, "POST", path, body)
    assert status == 200, (status, raw)
    lines = [x[6:] for x in raw.decode().splitlines() if x.startswith("data: ")]
    return [json.loads(x)["choices"][0]["delta"].get("content") for x in lines if x != "[DONE]"], lines[-1]


same("health", lambda p: ask(p, "GET", "/health"))
same("the page", lambda p: [ask(p, "GET", x) for x in ("/", "/nothing-here")])
same("a chat", lambda p: [json.loads(ask(p, "POST", "/v1/chat/completions", CHAT)[1])[k] for k in ("choices", "usage")])
same("a stream", lambda p: events(p, "/v1/chat/completions", dict(CHAT, stream=True)))
same("Ollama's API", lambda p: json.loads(ask(p, "POST", "/api/generate", {"model": "tern-tiny", "prompt": "Once upon a time", "stream": False, "options": {"temperature": 0, "num_predict": 8}})[1])["response"])
same("a wrong field", lambda p: ask(p, "POST", "/v1/completions", {"prompt": {}}))
for _ in range(40):  # clients that say half and go, or nothing
    s = socket.create_connection(("127.0.0.1", there))
    s.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-")
    s.close()
waiting = [socket.create_connection(("127.0.0.1", there)) for _ in range(20)]
waiting[0].sendall(b"GET /health HTTP/1.1\r\nHo")
same("health beside those who say nothing", lambda p: ask(p, "GET", "/health"))
waiting[0].sendall(b"st: localhost\r\n\r\n")
assert waiting[0].recv(100).startswith(b"HTTP/1.1 200"), "a head in two pieces"
c = http.client.HTTPConnection("127.0.0.1", there, timeout=300)  # several requests of one connection, the last one given up
for _ in range(3):
    c.request("GET", "/v1/models")
    assert c.getresponse().read()
c.request("POST", "/v1/completions", json.dumps({"prompt": "Once", "max_tokens": 2000, "stream": True}))
c.sock.close()
same("a chat after that", lambda p: json.loads(ask(p, "POST", "/v1/chat/completions", CHAT)[1])["choices"])
PY
grep -q "whose a connection is" "$tmp/windows.err" || { cat "$tmp/windows.err"; fail "it does not say that it does not know whose a connection is"; }
kill "${served[@]}" 2>/dev/null || true
tried=$((tried + 8))
# Documents (text and HTML) and what is kept.
mkdir -p "$tmp/notes"
printf 'The boiler was serviced on 4 May by Ida Holm.\n' >"$tmp/notes/house.txt"
printf '<html><body><p>The parking spot of the Valford garage is 7746.</p></body></html>' >"$tmp/notes/garage.html"
printf '\x25PDF-1.4\n' >"$tmp/notes/x.pdf"
(cd "$tmp" && "$tern" rag add notes --store here.db >"$tmp/here" 2>/dev/null && "$tern" ask "$OLDPWD/models/tern-tiny" "Who serviced the boiler?" --store here.db --no-keep --no-sources >>"$tmp/here" 2>/dev/null)
(cd "$tmp" && there rag add notes --store there.db >"$tmp/there" 2>"$tmp/err" && there ask "$OLDPWD/models/tern-tiny" "Who serviced the boiler?" --store there.db --no-keep --no-sources >>"$tmp/there" 2>>"$tmp/err") || { cat "$tmp/err"; fail "documents under Wine"; }
equal <(sed 's/ in [0-9.]* s$//' "$tmp/here") <(sed 's/ in [0-9.]* s$//' "$tmp/there") "answer from documents"
grep -q "reads no PDF yet" "$tmp/err" || { cat "$tmp/err"; fail "a PDF is not refused"; }
(cd "$tmp" && printf 'Hello\n' | there chat "$OLDPWD/models/tern-tiny" -n 4 --store there.db >"$tmp/log" 2>&1 && there forget --list --store there.db >"$tmp/log" 2>&1 && grep -q tokens "$tmp/log" &&
    there forget --all --store there.db >"$tmp/log" 2>&1) || { cat "$tmp/log"; fail "what is kept is not listed or not erased"; }
# One line for what is not there, and 1.
if there pull a/b >"$tmp/log" 2>&1; then fail "tern pull"; fi
grep -q "not in tern for Windows yet" "$tmp/log" && [ "$(wc -l <"$tmp/log")" = 1 ] || { cat "$tmp/log"; fail "tern pull says something else"; }
if wine "$out/tern/tern-mini.exe" "$tmp/none.tern" hi 2>"$tmp/err"; then fail "a model that is not there"; fi
grep -q "none.tern: cannot open: No such file" "$tmp/err" && [ "$(wc -l <"$tmp/err")" = 1 ] || { cat "$tmp/err"; fail "another error"; }
echo "windows: $tried answers, chats and packages under $(wine --version) are those of this machine"
