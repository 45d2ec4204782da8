#!/usr/bin/env bash
# Recompile the lock files and the conda environment from the *.in files. Called by `make lock`.
#
# Locked versions stay unless an input rules them out. `make lock UPGRADE=1` takes the newest ones.
set -euo pipefail
cd "$(dirname "$0")"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"${PYTHON:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install -q uv

compile() { # INPUT OUTPUT [OPTION...]: one version per package for every Python, with the hashes of its files
    local input=$1 output=$2 pythons=${PYTHONS:-3.11, 3.12 and 3.13}
    shift 2
    "$work/venv/bin/uv" pip compile -q --universal --fork-strategy fewest --python-version "${pythons%%,*}" \
        --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --annotation-style line \
        "$input" -o "$output" "$@"
    sed -i "1i # Made by 'make lock' from ${input##*/}: edit that file, not this one. For Python $pythons." "$output"
}

compile requirements.in requirements.lock ${UPGRADE:+--upgrade}
compile uv.in uv.lock ${UPGRADE:+--upgrade}
compile docs.in docs.lock ${UPGRADE:+--upgrade}
PYTHONS=3.12 compile carried.in carried.lock ${UPGRADE:+--upgrade} --no-emit-package numpy # the machine has it
PYTHONS=3.12 compile bare.in bare.lock ${UPGRADE:+--upgrade} --constraint carried.lock

# The same with the CUDA builds of TensorFlow and JAX. All other versions stay the same.
mkdir "$work/gpu"
sed 's/^tensorflow-cpu==/tensorflow[and-cuda]==/; s/^jax==/jax[cuda12]==/' requirements.in >"$work/gpu/requirements.in"
compile "$work/gpu/requirements.in" requirements-gpu.lock --constraint requirements.lock --no-annotate

{
    cat <<'YAML'
# The conda environment of every rule, for `snakemake --software-deployment-method conda`.
# Made by 'make lock': the versions of requirements.lock. ffn.post-deploy.sh adds Horovod and the package itself.
channels:
  - conda-forge
  - nodefaults
dependencies:
  - python =3.12
  - pip
  - cxx-compiler
  - make
  - openmpi
  - patch
  - pip:
YAML
    sed -n 's/^\([A-Za-z0-9._-]*==[^\\]*[^\\ ]\) *\\$/      - "\1"/p' requirements.lock
} >ffn.yaml
