#!/usr/bin/env bash
# Make or update .venv-bare: the packages of a bare GPU machine, and those carried there. Called by `make test-bare`.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv-bare/.setup-done
[[ $(cat "$stamp" 2>/dev/null) != "$(sha256sum envs/bare.lock)" ]] || exit 0

find_python() { # pyenv's versions need not be on the PATH
    local candidate
    for candidate in ${PYTHON:-python3.12 "$HOME"/.pyenv/versions/3.12.*/bin/python}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 12))' 2>/dev/null || continue
        echo "$candidate"
        return
    done
    echo "no Python 3.12 here, which GPU machines have. Name one: make test-bare PYTHON=/path/to/python3.12" >&2
    return 1
}

python=$(find_python)
rm -rf .venv-bare
envs/install.sh "$python" .venv-bare envs/bare.lock -q
sha256sum envs/bare.lock >"$stamp"
