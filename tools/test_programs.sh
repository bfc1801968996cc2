#!/bin/sh
# Install the Debian programs that some tests use (as root), or print which are missing.
#
#     program or library   package          tests skipped without it
#     curl                 curl             tests marked `curl`, examples/curl.sh, the README's commands
#     nghttp, h2load       nghttp2-client   tests marked `nghttp2`
#     redis-server         redis-server     tests marked `redis`
#     systemd-analyze      systemd          tests marked `systemd`
#     prometheus, promtool prometheus       tests marked `prometheus`
#     chromium             chromium         tests marked `browser`
#     javac, protoc …      (see below)      tests marked `java`
#     libb64.so.0d         libb64-0d        tests marked `perf_analyzer` (Linux on x86-64 only)
#
# Always exits with 0: tests whose program is missing are skipped, the others run.

set -u

missing=""
command -v curl >/dev/null 2>&1 || missing="$missing curl"
command -v nghttp >/dev/null 2>&1 && command -v h2load >/dev/null 2>&1 || missing="$missing nghttp2-client"
command -v redis-server >/dev/null 2>&1 || missing="$missing redis-server"
command -v systemd-analyze >/dev/null 2>&1 || missing="$missing systemd"
command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1 ||
    missing="$missing prometheus"
command -v chromium >/dev/null 2>&1 || missing="$missing chromium"
command -v javac >/dev/null 2>&1 || missing="$missing default-jdk-headless"
command -v protoc >/dev/null 2>&1 || missing="$missing protobuf-compiler"
command -v grpc_java_plugin >/dev/null 2>&1 || missing="$missing protobuf-compiler-grpc-java-plugin"
[ -e /usr/share/java/grpc-netty.jar ] || missing="$missing libgrpc-java"
[ -e /usr/share/java/protobuf.jar ] || missing="$missing libprotobuf-java"
[ -e /usr/share/java/netty-codec-http2.jar ] || missing="$missing libnetty-java"
[ -e /usr/share/java/perfmark-api.jar ] || missing="$missing libperfmark-java"
[ -e /usr/share/java/geronimo-annotation-1.3-spec.jar ] ||
    missing="$missing libgeronimo-annotation-1.3-spec-java"
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
    # The package lists of a new container are empty, and old lists name files that no longer exist.
    # shellcheck disable=SC2086  # one argument per package
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
    redis-server) tests="the tests marked 'redis'" ;;
    systemd) tests="the tests marked 'systemd'" ;;
    prometheus) tests="the tests marked 'prometheus'" ;;
    libb64-0d) tests="the tests marked 'perf_analyzer'" ;;
    chromium) tests="the tests marked 'browser'" ;;
    *) tests="the tests marked 'java'" ;;
    esac
    echo "skipped: $tests; they need the package $package (apt-get install $package)"
done
exit 0
