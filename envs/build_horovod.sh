#!/usr/bin/env bash
# Print the path of a Horovod wheel for this environment, building it first if the cache has none.
#
#   envs/build_horovod.sh PYTHON [cpu|gpu] [LOG]
#   envs/build_horovod.sh --mpi       # only print which MPI it would use; fail if there is none
#
# PYTHON is an interpreter with the locked requirements installed. With gpu, gradients are reduced on the GPU if nvcc
# and NCCL are installed: NCCL in the folder HOROVOD_NCCL_HOME, in /usr, or in PYTHON's packages, where TensorFlow's
# CUDA build puts it. The tools' output goes to LOG. NCCL has not been tried on a GPU.
#
# MPI comes from the compiler that MPICXX names, else from mpicxx, else from Cray's CC if cray-mpich is loaded.
#
# Horovod is patched to compile, and its version is 0.28.1+ffn; the header of the patch says why. Built with GCC 12
# (Debian 12, Python 3.11) and GCC 14 (Debian 13, Python 3.13).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)

# Print the MPI compiler and what it adds to a command line: headers and libraries of this MPI.
find_mpi() {
    local compiler adds
    for compiler in ${MPICXX:-mpicxx CC}; do
        adds=$("$compiler" -show 2>/dev/null) || adds=$("$compiler" --cray-print-opts=all 2>/dev/null | grep mpi) || continue
        command -v "$compiler"
        echo "$adds"
        return
    done
    return 1
}
if [[ ${1:-} == --mpi ]]; then find_mpi; exit; fi

python=$1
device=${2:-cpu}
log=${3:-$(mktemp)}

say() { echo "    $*" >&2; }
die() { { grep ' error: ' "$log" || cat "$log"; } | tail -n 25 >&2; say "$*"; exit 1; }

# --- Which backends can be built ------------------------------------------------------------------------
backends=gloo
flags=(HOROVOD_WITH_GLOO=1)
if mpi=$(find_mpi); then
    mpicxx=${mpi%%$'\n'*}
    backends+=-mpi$(sha256sum <<<"${mpi#*$'\n'}" | cut -c1-6) # another MPI needs another wheel
    flags+=(HOROVOD_WITH_MPI=1)
    # CMake looks for mpicxx itself. Another compiler it takes for MPI's if it compiles everything.
    [[ ${mpicxx##*/} == mpicxx ]] || flags+=(CXX="$mpicxx")
    say "with Gloo and MPI ($mpicxx)"
else
    flags+=(HOROVOD_WITHOUT_MPI=1)
    say "with Gloo only: ${MPICXX:-mpicxx, or CC with an MPI,} was not found"
fi
nccl_header() { find -L "${HOROVOD_NCCL_HOME:-/usr}/include" -maxdepth 2 -name nccl.h 2>/dev/null | grep -q .; }
nccl_of_python() {
    local folder
    folder=$("$python" -c 'import nvidia.nccl; print(*nvidia.nccl.__path__)' 2>/dev/null) || return
    [[ -f $folder/include/nccl.h ]] && echo "$folder"
}
nccl=
if [[ $device == gpu ]]; then
    if command -v nvcc >/dev/null && { nccl_header || nccl=$(nccl_of_python); }; then
        backends+=-nccl${nccl:+-of-python}
        flags+=(HOROVOD_GPU_OPERATIONS=NCCL)
        say "with NCCL${nccl:+ of $nccl}: gradients are reduced on the GPU"
    else
        say "without NCCL (nvcc or nccl.h was not found): gradients are reduced on the CPU"
    fi
fi

# --- Where the wheel is in the cache --------------------------------------------------------------------
tags=$("$python" - "$device" <<'PYTHON'
import importlib.metadata, platform, sys

tensorflow = importlib.metadata.version("tensorflow" if sys.argv[1] == "gpu" else "tensorflow-cpu")
libc = "".join(platform.libc_ver())
print(f"cp{sys.version_info[0]}{sys.version_info[1]}-tf{tensorflow}-{libc}-{platform.machine()}")
PYTHON
)-cxx$(c++ -dumpversion | cut -d. -f1)
recipe=$(cat "$here"/{build_horovod.sh,horovod.lock,horovod-builds.patch} | sha256sum | cut -c1-6)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/ffn-pipeline/wheels/$tags-$device-$backends-$recipe

cached_wheel() { find "$cache" -name 'horovod-*.whl' 2>/dev/null | grep . ; }

if cached_wheel; then
    say "found the wheel in $cache"
    exit
fi

# --- Build it -------------------------------------------------------------------------------------------
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say "building the wheel, only once (about 3 minutes on 2 cores)"

if [[ $nccl ]]; then # has no libnccl.so, which the linker looks for; where Python finds it is relative to Horovod
    mkdir -p "$work/nccl/lib"
    ln -s "$nccl/include" "$work/nccl/include"
    for name in libnccl.so{,.2}; do ln -s "$nccl/lib/libnccl.so.2" "$work/nccl/lib/$name"; done
    # shellcheck disable=SC2016  # the loader's $ORIGIN: the folder horovod/tensorflow
    flags+=(HOROVOD_NCCL_HOME="$work/nccl" HOROVOD_NCCL_LINK=SHARED
        LDFLAGS="${LDFLAGS:-} -Wl,-rpath,"'$ORIGIN/../../nvidia/nccl/lib')
fi

unpack() {
    "$python" -m pip download --no-deps --no-binary horovod --no-build-isolation --require-hashes \
        -r "$here/horovod.lock" -d "$work" &&
        mkdir "$work/source" &&
        tar -xzf "$work"/horovod-*.tar.gz -C "$work/source" --strip-components=1 &&
        patch -d "$work/source" -p1 <"$here/horovod-builds.patch"
}

# CXXFLAGS: Horovod expects other headers to include these two, which they no longer do since GCC 13 and 14.
# CMAKE_POLICY_VERSION_MINIMUM: Horovod asks for the behaviour of a CMake so old that CMake 4 refuses it.
compile() {
    local cores
    cores=$(nproc)
    env "${flags[@]}" HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 \
        HOROVOD_LOCAL_VERSION=ffn \
        HOROVOD_CMAKE="$(dirname "$python")/cmake" CMAKE_POLICY_VERSION_MINIMUM=3.5 \
        CXXFLAGS="${CXXFLAGS:-} -include cstdint -include stdexcept" MAKEFLAGS="-j$((cores < 8 ? cores : 8))" \
        "$python" -m pip wheel --use-pep517 --no-deps --no-build-isolation --no-cache-dir -w "$work/wheel" "$work/source"
}

loads() { # a wheel that cannot be imported must not be kept
    "$python" -m pip install --no-deps --target "$work/check" "$work"/wheel/horovod-*.whl &&
        PYTHONPATH=$work/check "$python" -c 'import horovod.tensorflow as hvd; hvd.init(); print(hvd.__file__)'
}

{ unpack && compile && loads; } >>"$log" 2>&1 || die "the wheel could not be built. The whole output is in $log"

# Renamed into place within one file system, so that the cache never has half a wheel.
mkdir -p "$(dirname "$cache")"
mkdir "$cache.$$"
mv "$work"/wheel/horovod-*.whl "$cache.$$/"
mv -T "$cache.$$" "$cache" 2>/dev/null || rm -rf "$cache.$$" # another build finished first
cached_wheel
