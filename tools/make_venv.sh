#!/bin/sh
# Make a virtual environment: tools/make_venv.sh PYTHON FOLDER
#
# Prints what is missing: a newer Python, or the venv package of Debian's python3 (which is installed
# if the user is root).

set -eu
python=$1
folder=$2

if ! command -v "$python" >/dev/null 2>&1; then
    echo "'$python' not found; name a Python 3.10 or newer: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "$("$python" --version 2>&1) is too old; name a Python 3.10 or newer: make PYTHON=python3.12" >&2
    exit 1
fi
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    package="$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing $package"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null
    else
        echo "$python cannot create virtual environments; install its venv module (Debian: $package)" >&2
        exit 1
    fi
fi
"$python" -m venv "$folder"
