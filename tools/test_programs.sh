#!/bin/sh
# The programs from Debian that some tests drive: installed when we are root, else named.
#
#     program or library   package          what is left out without it
#     curl                 curl             tests marked `curl`, examples/curl.sh, the README's lines
#     nghttp, h2load       nghttp2-client   tests marked `nghttp2`
#     libb64.so.0d         libb64-0d        tests marked `perf_analyzer` (Linux on x86-64 only)
#
# Exits with 0 in every case: a missing program leaves tests out, it does not fail the rest.

set -u

missing=""
command -v curl >/dev/null 2>&1 || missing="$missing curl"
command -v nghttp >/dev/null 2>&1 && command -v h2load >/dev/null 2>&1 || missing="$missing nghttp2-client"
if [ "$(uname -sm)" = "Linux x86_64" ]; then
    library=""
    for path in /usr/lib/*/libb64.so.0d /usr/lib*/libb64.so.0d; do
        [ -e "$path" ] && library=$path
    done
    [ -n "$library" ] || missing="$missing libb64-0d"
fi
[ -z "$missing" ] && exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    # The package lists of a fresh container are empty, and old ones name files that are gone.
    # shellcheck disable=SC2086  # one word per package
    if apt-get install -y -qq --no-install-recommends $missing >/dev/null 2>&1 || {
        apt-get update -qq >/dev/null 2>&1
        apt-get install -y -qq --no-install-recommends $missing >/dev/null
    }; then
        exit 0
    fi
    echo "apt-get could not install them"
fi

for package in $missing; do
    case $package in
    curl) tests="the tests marked 'curl' and those of examples/curl.sh and the README" ;;
    nghttp2-client) tests="the tests marked 'nghttp2'" ;;
    libb64-0d) tests="the tests marked 'perf_analyzer'" ;;
    esac
    echo "left out: $tests; they need the package $package (apt-get install $package)"
done
exit 0
