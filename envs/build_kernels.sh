#!/usr/bin/env bash
# Compile ffn/kernels for an environment and its TensorFlow. Takes 20 seconds; does nothing if it is up to date.
#
#   envs/build_kernels.sh PYTHON
#
# Whether the CPU has the library's instructions (AMX, AVX-512) is checked when it is used, not here, because an
# environment may be made on another machine. The compiler must know AMX: GCC 11 or Clang 12, or later.
set -euo pipefail
python=$1
source=$(cd "$(dirname "$0")/.." && pwd)/ffn/kernels

library=$(PYTHONPATH=$source/../.. "$python" -c 'from ffn.kernels import library_path; print(library_path())')
if [[ -e $library && -z $(find "$source" "$0" -newer "$library" -type f ! -name '*.py*') ]]; then
    exit
fi

mapfile -t flags < <(TF_CPP_MIN_LOG_LEVEL=3 "$python" - <<'PYTHON' 2>/dev/null
import tensorflow as tf

print(" ".join(tf.sysconfig.get_compile_flags()).replace("-I", "-isystem "))
print(" ".join(tf.sysconfig.get_link_flags()))
PYTHON
)
read -ra compile <<<"${flags[0]}"
read -ra link <<<"${flags[1]}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
common=(-O3 -fPIC -Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized) # the headers of GCC 12 cause these two warnings
amx=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mamx-tile -mamx-bf16)
c++ "${common[@]}" -std=c++20 "${amx[@]}" -c "$source/network.cc" -o "$work/network.o"
c++ "${common[@]}" "${compile[@]}" -c "$source/ops.cc" -o "$work/ops.o"
mkdir -p "$(dirname "$library")"
c++ -shared "$work/network.o" "$work/ops.o" "${link[@]}" -o "$library.$$"
mv "$library.$$" "$library" # a process that loads it meanwhile gets the old or the new one
