#!/bin/sh
# Install what `make test-image` needs (as root), or print what is missing. Always exits with 0: the tests are skipped.

set -u
missing=""
for program in buildah podman crun mmdebstrap; do
    command -v "$program" >/dev/null 2>&1 || missing="$missing $program"
done
# podman's network; without recommended packages it gets none of these.
command -v iptables >/dev/null 2>&1 || missing="$missing iptables"
[ -e /usr/lib/podman/netavark ] || [ -d /usr/lib/cni ] || missing="$missing netavark aardvark-dns"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >/dev/null 2>&1
    # shellcheck disable=SC2086  # one argument per package
    apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
fi
echo "skipped: the tests of images; they need root and$missing (Debian: apt-get install$missing)"
