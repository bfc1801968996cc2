#!/bin/sh
# Build an image of the server: tools/image.sh VARIANT [ARGUMENT ...]   (make image)
#
#     VARIANT        cpu, gpu or full
#     ARGUMENT       further ones for the builder, as --platform=linux/arm64 or --secret id=pip,src=pip.conf
#     BUILDER        docker, podman or buildah; default: the first of them that works here
#     IMAGE          the name; default: shoal:VERSION-VARIANT
#     BASE           the image to start from; default: that of the Dockerfile
#     PIP_INDEX_URL, PIP_EXTRA_INDEX_URL   where packages come from; default: PyPI

set -eu
cd "$(dirname "$0")/.."
variant=${1:-cpu}
[ $# = 0 ] || shift
case $variant in
cpu | gpu | full) ;;
*)
    echo "VARIANT is cpu, gpu or full, not '$variant'" >&2
    exit 1
    ;;
esac

works() {
    case $1 in
    docker) docker info >/dev/null 2>&1 ;; # there may be a client without a daemon
    *) command -v "$1" >/dev/null 2>&1 ;;
    esac
}

builder=${BUILDER:-}
if [ -z "$builder" ]; then
    for candidate in docker podman buildah; do
        if works "$candidate"; then
            builder=$candidate
            break
        fi
    done
fi
if [ -z "$builder" ]; then
    echo "no program that builds images was found: start docker, or install podman or buildah" >&2
    echo "(Debian: apt-get install buildah)" >&2
    exit 1
elif ! works "$builder"; then
    echo "BUILDER=$builder does not work here: install it, or start its daemon" >&2
    exit 1
fi

version=$(sed -n 's/^ *__version__ = "\(.*\)"$/\1/p' src/shoal/__init__.py)
image=${IMAGE:-shoal:$version-$variant}
revision=$(git rev-parse HEAD 2>/dev/null || true)

set -- --tag "$image" --file deploy/docker/Dockerfile --build-arg "VARIANT=$variant" \
    --build-arg "VERSION=$version" --build-arg "REVISION=$revision" \
    --build-arg "CREATED=$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$@" .
[ -z "${BASE:-}" ] || set -- --build-arg "BASE=$BASE" "$@"
# Without a value, an argument is taken from the environment.
[ -z "${PIP_INDEX_URL:-}" ] || set -- --build-arg PIP_INDEX_URL "$@"
[ -z "${PIP_EXTRA_INDEX_URL:-}" ] || set -- --build-arg PIP_EXTRA_INDEX_URL "$@"

echo "building $image with $builder"
# The format of docker has health checks, that of OCI has none.
case $builder in
docker) DOCKER_BUILDKIT=1 docker build "$@" ;;
*) "$builder" build --format docker "$@" ;;
esac
