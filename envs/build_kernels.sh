#!/usr/bin/env bash
# Compile ffn/kernels for an environment and its TensorFlow. Takes 40 seconds; does nothing if it is up to date.
#
#   envs/build_kernels.sh PYTHON
#
# Whether the CPU has a library's instructions (AMX, AVX-512, AVX2) is checked when it is used, not here, because an
# environment may be made on another machine. The training library needs a compiler that knows AMX: GCC 11 or Clang 12,
# or later.
set -euo pipefail
python=$1
source=$(cd "$(dirname "$0")/.." && pwd)/ffn/kernels

mapfile -t libraries < <(PYTHONPATH=$source/../.. "$python" -c '
from ffn import kernels
from ffn.kernels import inference
print(inference.library_path(), kernels.library_path(), sep="\n")')
is_up_to_date() { [[ -e $1 && -z $(find "$source" "$0" -newer "$1" -type f ! -name '*.py*') ]]; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
common=(-O3 -fPIC -Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized) # the headers of GCC 12 cause these two warnings
link() { # LIBRARY ARGUMENTS...: a process that loads it meanwhile gets the old or the new one
    mkdir -p "$(dirname "$1")"
    c++ -shared "${@:2}" -o "$1.$$"
    mv "$1.$$" "$1"
}

build_winograd() { # objects that both libraries need, one for each instruction set
    one() { # NAME LANES FLAGS...
        c++ "${common[@]}" -std=c++20 -ffp-contract=fast -Wno-psabi "${@:3}" -DFFN_INSTRUCTIONS="$1" -DFFN_LANES="$2" \
            -c "$source/winograd.cc" -o "$work/winograd.$1.o"
    }
    one kPlain 4
    if [[ $(uname -m) == x86_64 ]]; then
        one kAvx2 8 -mavx2 -mfma
        one kAvx512 16 -mavx512f -mfma
    fi
}

build_inference() {
    c++ "${common[@]}" -std=c++20 -c "$source/inference.cc" -o "$work/inference.o"
    link "$1" "$work"/winograd.*.o "$work/inference.o" -pthread
}

build_training() {
    mapfile -t flags < <(TF_CPP_MIN_LOG_LEVEL=3 "$python" - <<'PYTHON' 2>/dev/null
import tensorflow as tf

print(" ".join(tf.sysconfig.get_compile_flags()).replace("-I", "-isystem "))
print(" ".join(tf.sysconfig.get_link_flags()))
PYTHON
    )
    read -ra compile <<<"${flags[0]}"
    read -ra tensorflow <<<"${flags[1]}"
    amx=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mamx-tile -mamx-bf16)
    c++ "${common[@]}" -std=c++20 "${amx[@]}" -c "$source/network.cc" -o "$work/network.o"
    c++ "${common[@]}" -std=c++20 -c "$source/float_network.cc" -o "$work/float_network.o"
    c++ "${common[@]}" "${compile[@]}" -c "$source/ops.cc" -o "$work/ops.o"
    link "$1" "$work"/winograd.*.o "$work"/{network,float_network,ops}.o "${tensorflow[@]}"
}

if is_up_to_date "${libraries[0]}" && is_up_to_date "${libraries[1]}"; then
    exit
fi
build_winograd
build_inference "${libraries[0]}"
build_training "${libraries[1]}"
