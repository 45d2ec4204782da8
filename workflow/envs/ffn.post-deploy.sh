#!/usr/bin/env bash
# Install Horovod, `ffn` and its kernels. Snakemake runs a copy of this in the new conda environment, from the folder of
# the run; FFN_REPOSITORY says where the repository is (rules/common.smk).
set -euo pipefail
cd "$FFN_REPOSITORY"
[[ -e envs/build_horovod.sh ]] || { echo "$PWD: is no clone of the repository, which conda environments need" >&2; exit 1; }
python=$CONDA_PREFIX/bin/python
wheel=$(envs/build_horovod.sh "$python")
"$python" -m pip install --no-deps "$wheel"
"$python" -m pip install --no-deps --no-build-isolation --editable .
envs/build_kernels.sh "$python" || echo "the kernels were not built, so inference and training are slower" >&2
