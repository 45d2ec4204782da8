#!/usr/bin/env bash
# Compile ffn/kernels for an environment and its TensorFlow. Takes 40 seconds; does nothing if it is up to date, and
# takes what another environment of this machine has built from the same sources.
#
#   envs/build_kernels.sh PYTHON
#
# That is a link to this file, which `ffn run` calls where the package was installed without a checkout.
#
# Whether the CPU has a library's instructions (AMX, AVX-512, AVX2) is checked when it is used, not here, because an
# environment may be made on another machine. The training library needs a compiler that knows AMX: GCC 11 or Clang 12,
# or later; that for inference does not.
set -euo pipefail
python=$1
source=$(dirname "$(readlink -f "$0")")

mapfile -t libraries < <(PYTHONPATH=$source/../.. "$python" -c '
from ffn import kernels
from ffn.kernels import inference
print(inference.library_path(), kernels.library_path(), sep="\n")')
is_up_to_date() { [[ -e $1 && ! $0 -nt $1 ]]; } # its name has the checksum of its sources
compiler_and_script=$({ c++ --version || true; cat "$0"; } | sha256sum | cut -c1-8)
built_with=$(uname -m)-$(getconf GNU_LIBC_VERSION | tr -d ' ')-$compiler_and_script
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ffn-pipeline/kernels/$built_with
put() { # FILE PLACE: a process that loads it meanwhile gets the old or the new one
    mkdir -p "$(dirname "$2")" && cp "$1" "$2.$$" && mv "$2.$$" "$2"
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The headers of GCC 12 cause the two warnings that are switched off.
common=(-O3 -fPIC -Wall -Wextra -Wno-uninitialized -Wno-maybe-uninitialized)
link() { # LIBRARY ARGUMENTS...
    c++ -shared "${@:2}" -o "$work/library.so"
    put "$work/library.so" "$1"
    put "$work/library.so" "$cache/${1##*/}" || true # a home that is full or read-only costs only time
}

objects=() compilers=()
compile() { # NAME SOURCE FLAGS...: begins to
    c++ "${common[@]}" "${@:3}" -c "$source/$2" -o "$work/$1.o" &
    objects+=("$work/$1.o")
    compilers+=($!)
}
wait_for() {
    for compiler in "$@"; do wait "$compiler"; done
}
winograd() { # NAME LANES FLAGS...: the units of work in float32 for one instruction set
    compile "$1" winograd.cc -std=c++20 -ffp-contract=fast -Wno-psabi "${@:3}" "-DFFN_INSTRUCTIONS=$1" "-DFFN_LANES=$2"
}

for library in "${libraries[@]}"; do
    is_up_to_date "$library" || [[ ! -e $cache/${library##*/} ]] || put "$cache/${library##*/}" "$library"
done
if is_up_to_date "${libraries[0]}" && is_up_to_date "${libraries[1]}"; then
    exit
fi
winograd kPlain 4
if [[ $(uname -m) == x86_64 ]]; then
    winograd kAvx2 8 -mavx2 -mfma
    winograd kAvx512 16 -mavx512f -mfma
fi
float32=("${objects[@]}")
compile inference inference.cc -std=c++20
for_inference=${#compilers[@]}
amx=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512bf16 -mfma -mamx-tile -mamx-bf16)
compile network network.cc -std=c++20 "${amx[@]}"
compile float_network float_network.cc -std=c++20
wait_for "${compilers[@]:0:for_inference}"
link "${libraries[0]}" "${float32[@]}" "$work/inference.o" -pthread

TF_CPP_MIN_LOG_LEVEL=3 "$python" - >"$work/flags" 2>"$work/log" <<'PYTHON' || {
import tensorflow as tf

print(" ".join(tf.sysconfig.get_compile_flags()).replace("-I", "-isystem "))
print(" ".join(tf.sysconfig.get_link_flags()))
PYTHON
    wait # the other compilers write to the folder that is removed now
    reason=$(tail -n 1 "$work/log")
    echo "envs/build_kernels.sh: TensorFlow does not load ($reason), so the kernels for training were not built" >&2
    exit 1
}
mapfile -t flags <"$work/flags"
read -ra compile_tensorflow <<<"${flags[0]}"
read -ra link_tensorflow <<<"${flags[1]}"
compile ops ops.cc "${compile_tensorflow[@]}"
wait_for "${compilers[@]:for_inference}"
link "${libraries[1]}" "${float32[@]}" "$work"/{network,float_network,ops}.o "${link_tensorflow[@]}"
