#!/usr/bin/env bash
# Install the packages of a lock file in a virtual environment, which is made if it is missing. Called by `make setup`,
# `make docs` and `make test-bare`.
#
#   envs/install.sh PYTHON VENV LOCK [OPTION...]    the options are for pip and uv, such as -q
#
# Packages come with uv, which takes a fifth of pip's time, or with pip where uv cannot.
set -euo pipefail

python=$1 venv=$2 lock=$3
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
# The locks are complete; Python makes the bytecode when it needs it.
install=(install --no-deps --no-compile --require-hashes "${@:4}")

[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
# uv reads no configuration of pip, in which a site may name its own index.
index=${PIP_INDEX_URL:-$("${pip[@]}" config get global.index-url 2>/dev/null)} || true
if "${pip[@]}" "${install[@]}" --force-reinstall -r envs/uv.lock; then # never without a network
    env ${index:+UV_DEFAULT_INDEX="$index"} UV_CACHE_DIR="$venv/.uv" "$venv/bin/python" -m uv pip "${install[@]}" \
        --python "$venv/bin/python" -r "$lock" &&
        rm -rf "$venv/.uv" && exit # its files are links here; in a home, they would be 3 GB for ever
    rm -rf "$venv"/{lib,.uv} && "$python" -m venv "$venv" # pip would keep what a killed uv wrote in part
fi
"${pip[@]}" "${install[@]}" -r "$lock"
