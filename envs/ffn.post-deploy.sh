#!/usr/bin/env bash
# Install Horovod, `ffn` and its kernels. Snakemake runs this in the new conda environment, from the repository's root.
set -euo pipefail
python=$CONDA_PREFIX/bin/python
wheel=$(envs/build_horovod.sh "$python")
"$python" -m pip install --no-deps "$wheel"
"$python" -m pip install --no-deps --no-build-isolation --editable .
envs/build_kernels.sh "$python" || echo "the training kernels were not built, so training in bfloat16 is slower" >&2
