#!/usr/bin/env bash
# Build the container image, and see that `ffn` answers and plans the demo in it, with whatever builder runs here:
#
#   tools/container.sh [OPTIONS OF THE BUILD]
#
# Docker, Podman or Buildah take envs/Dockerfile, Apptainer takes envs/ffn.def. 2 to 3 GB are downloaded.
set -euo pipefail
cd "$(dirname "$0")/.."

image=ffn
ignored=(--ignorefile envs/Dockerfile.dockerignore) # Docker finds it by its name
if docker info >/dev/null 2>&1; then
    build() { docker build -f envs/Dockerfile -t $image "$@" .; }
    try() { docker run --rm --workdir /tmp $image "$@"; }
elif podman info >/dev/null 2>&1; then
    build() { podman build "${ignored[@]}" -f envs/Dockerfile -t $image "$@" .; }
    try() { podman run --rm --workdir /tmp $image "$@"; }
elif buildah info >/dev/null 2>&1; then
    build() { buildah build "${ignored[@]}" -f envs/Dockerfile -t $image "$@" . && container=$(buildah from $image); }
    try() { buildah run --workingdir /tmp "$container" -- ffn "$@"; }
elif apptainer --version >/dev/null 2>&1; then
    build() { apptainer build --force "$@" $image.sif envs/ffn.def; }
    try() { apptainer run --pwd /tmp $image.sif "$@"; }
else
    echo "container.sh: none of docker, podman, buildah and apptainer runs here" >&2
    exit 1
fi

build "$@"
try --help
try run demo -n
echo "container.sh: the image was built, and plans the demo"
