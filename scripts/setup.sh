#!/usr/bin/env bash
# Installs what tern builds and tests with (Debian 12 and relatives). Does nothing when all is there.
set -euo pipefail
packages="gcc libc6-dev cmake ninja-build pkg-config libpcre2-dev libutf8proc-dev libjansson-dev libxxhash-dev libsqlite3-dev libcmocka-dev python3"
missing=""
for p in $packages; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q "ok installed" || missing="$missing $p"
done
[ -z "$missing" ] && exit 0
install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then
    run=""
elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
    run="sudo"
else
    echo "These packages are missing:$missing" >&2
    echo "Install them with:  sudo $install" >&2
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing:$missing" >&2
$run apt-get update -qq
$run $install >/dev/null
