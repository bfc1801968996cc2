#!/bin/sh
# Run Triton's own tests against this server: tools/accept.sh NAME...
#
# From the environment: ACCEPTANCE, the folder of the suite (it holds `setup` and `run`);
# UPSTREAM_SERVER and UPSTREAM_CLIENT, git clones of triton-inference-server/server and /client.
# If one is missing, it prints which and exits with 0: the suite is not part of `make test`.

set -eu

missing=""
[ -n "${ACCEPTANCE:-}" ] || missing="$missing ACCEPTANCE (the folder of the suite)"
for name in UPSTREAM_SERVER UPSTREAM_CLIENT; do
    eval "value=\${$name:-}"
    [ -n "$value" ] || missing="$missing $name (a git clone of Triton's repository)"
done
if [ -n "$missing" ]; then
    echo "not run; set:$missing"
    echo "for example: make accept ACCEPTANCE=../acceptance UPSTREAM_SERVER=../server UPSTREAM_CLIENT=../client"
    exit 0
fi
for program in setup run; do
    if [ ! -x "$ACCEPTANCE/$program" ]; then
        echo "not run: $ACCEPTANCE has no executable '$program'"
        exit 0
    fi
done
for clone in "$UPSTREAM_SERVER" "$UPSTREAM_CLIENT"; do
    if ! git -C "$clone" rev-parse HEAD >/dev/null 2>&1; then
        echo "not run: $clone is not a git clone"
        exit 0
    fi
done

UPSTREAM_SERVER=$(cd "$UPSTREAM_SERVER" && pwd)
UPSTREAM_CLIENT=$(cd "$UPSTREAM_CLIENT" && pwd)
WORK_DIR=${WORK_DIR:-$PWD/.tools/acceptance}
export UPSTREAM_SERVER UPSTREAM_CLIENT WORK_DIR
export SERVER_CMD="${SERVER_CMD:-shoal serve}"
mkdir -p "$WORK_DIR"

"$ACCEPTANCE/setup" # skips what it has done before
status=0
for name in "$@"; do
    "$ACCEPTANCE/run" "$name" || status=1
done
exit $status
