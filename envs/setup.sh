#!/usr/bin/env bash
# Make or update .venv, so that everything in this repository runs. Called by `make setup`. Prints nothing if there is
# nothing to do.
#
#   make setup GPU=1                 TensorFlow's CUDA build, 7.6 GB (GPU=0 goes back). Never run on a GPU: we had none.
#   make setup PYTHON=python3.12
#
# .venv remembers these choices. Any step may be interrupted; the next call repeats it. These two are not remembered:
#
#   make setup SYSTEM=0    No system packages. Otherwise, root gets those that are missing.
#   make setup BROWSER=1   Chromium, too, for `ffn view --screenshot`. `make test` and `make pictures` ask for it.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=$PWD/.venv
log=$PWD/logs/setup.log
stamp=$venv/.setup-done         # checksum of all inputs of the last complete set-up
variant_file=$venv/.variant     # the device, Python and folder that .venv was made for
installing=$venv/.installing    # exists while packages are written; if that is killed, its files cannot be trusted
kernels=$venv/.kernels-built    # exists if the kernels were compiled; if not, each call tries again

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

# --- Which Python, which device -------------------------------------------------------------------------
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-"$venv/bin/python" python3 python3.13 python3.12 python3.11}; do
        if [[ $(version_of "$candidate") =~ ^3\.1[123]$ ]]; then
            "$candidate" -c 'import sys; print(sys._base_executable)'
            return
        fi
    done
    die "${PYTHON:-python3} is $(version_of "${PYTHON:-python3}" || echo missing), TensorFlow 2.21 needs" \
        "Python 3.11, 3.12 or 3.13. Install one and run: make setup PYTHON=/path/to/python"
}

find_device() {
    case ${GPU:-} in
        1) echo gpu ;;
        "") grep -o '^gpu' "$variant_file" 2>/dev/null || echo cpu ;;
        *) echo cpu ;;
    esac
}

python=$(find_python)
version=$(version_of "$python")
device=$(find_device)
variant="$device $version $venv"
lock=envs/requirements.lock
[[ $device == cpu ]] || lock=envs/requirements-gpu.lock

# --- Is there anything to do? ---------------------------------------------------------------------------
state() { # checksum of everything that .venv is made from; with MPI installed or removed, Horovod is another one
    {
        echo "$variant $(envs/build_horovod.sh --mpi)"
        cat "$lock" envs/horovod.lock envs/horovod-*.patch envs/build_horovod.sh envs/{setup,install}.sh pyproject.toml
        cat envs/build_kernels.sh ffn/kernels/*.{h,cc}
    } | sha256sum
}

is_up_to_date() { [[ -x $venv/bin/python && $(cat "$stamp" 2>/dev/null) == "$(state)" ]]; }
is_without_browser() { [[ ${BROWSER:-} == 1 && ${SYSTEM:-} != 0 ]] && ! chromium --version >/dev/null 2>&1; }

build_kernels() {
    say "[5/5] the kernels for CPUs"
    envs/build_kernels.sh "$venv/bin/python" >>"$log" 2>&1 && touch "$kernels" && return
    say "they were not built, so inference and training are slower. They need GCC 11, Clang 12 or later. See $log"
}

exec 9<envs
flock -n 9 || { say "waiting for another set-up in this folder to end"; flock 9; }
mkdir -p "$(dirname "$log")"
if is_up_to_date && ! is_without_browser; then
    [[ -e $kernels ]] || build_kernels
    exit
fi

: >"$log"

# --- System packages ------------------------------------------------------------------------------------
# description | commands that succeed if it is installed | its Debian packages
required=(
    "a C++ compiler, make and patch, to build Horovod|c++ --version && make --version && patch --version|g++ make patch"
    "Python's venv module|'$python' -c 'import ensurepip, venv'|python$version-venv"
)
optional=(
    "MPI (Horovod uses Gloo instead)|envs/build_horovod.sh --mpi && command -v mpirun mpiexec|libopenmpi-dev openmpi-bin"
)
[[ ${BROWSER:-} != 1 ]] ||
    optional+=("a browser for screenshots (on Ubuntu it is a snap)|chromium --version|chromium")

missing() { # print those of the given rows whose commands fail
    local row check
    for row in "$@"; do
        check=${row#*|}
        bash -c "${check%|*}" >/dev/null 2>&1 || echo "$row"
    done
}
names_of() { cut -d'|' -f1 <<<"$1" | paste -sd';' | sed 's/;/; /g'; }
packages_of() { cut -d'|' -f3 <<<"$1" | paste -sd' '; }
apt() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 "$@" >>"$log" 2>&1 </dev/null 9<&-; }

download_of() { # what apt-get would download for these packages, and how much space it would take
    LC_ALL=C apt-get install --assume-no --no-install-recommends "$@" 2>/dev/null |
        sed -nE 's/^Need to get (.*) of archives\.$/\1/p; s/^After this operation, (.*) of additional.*$/\1 on disk/p' |
        paste -sd',' | sed 's/,/, /'
}

absent=$(missing "${required[@]}" "${optional[@]}")
if [[ -n $absent && $EUID == 0 && ${SYSTEM:-} != 0 ]] && command -v apt-get >/dev/null; then
    apt update || say "apt-get update failed, continuing with the present package lists"
    while read -r row; do # one row at a time: a package that a distribution lacks must not stop the others
        read -ra packages <<<"$(packages_of "$row")"
        say "installing ${packages[*]} ($(download_of "${packages[@]}")): $(names_of "$row"). SYSTEM=0 leaves it out"
        apt install -y --no-install-recommends "${packages[@]}" || say "apt-get could not install ${packages[*]}"
    done <<<"$absent"
fi

absent=$(missing "${required[@]}")
if [[ -n $absent ]]; then
    die "missing: $(names_of "$absent"). Install it with: sudo apt-get install -y $(packages_of "$absent")"
fi
absent=$(missing "${optional[@]}")
if [[ -n $absent ]]; then
    say "continuing without: $(names_of "$absent"). To install it: sudo apt-get install -y $(packages_of "$absent")"
fi
if is_up_to_date; then
    [[ -e $kernels ]] || build_kernels
    exit
fi

# --- The environment ------------------------------------------------------------------------------------
step() { # MESSAGE COMMAND...: output goes to the log; if the command fails, the end of the log goes to the terminal
    say "$1"
    "${@:2}" >>"$log" 2>&1 && return
    tail -n 25 "$log" >&2
    die "failed: $1. The end of $log is above. To try again: make setup"
}
make_venv() { rm -rf "$venv" && "$python" -m venv "$venv" && echo "$variant" >"$variant_file"; }
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

check() {
    "${pip[@]}" check &&
        TF_CPP_MIN_LOG_LEVEL=3 "$venv/bin/python" -c 'import tensorflow, horovod.tensorflow' &&
        "$venv/bin/ffn" --version
}

if [[ -e $installing || $(cat "$variant_file" 2>/dev/null) != "$variant" || ! -x $venv/bin/python ]]; then
    step "[1/5] a virtual environment, .venv, with $("$python" --version)" make_venv
fi

touch "$installing"
step "[2/5] $(grep -c '^[a-zA-Z]' "$lock") locked packages for $device (1 to 5 minutes; see logs/setup.log)" \
    envs/install.sh "$python" "$venv" "$lock"
rm "$installing"

say "[3/5] Horovod"
wheel=$(envs/build_horovod.sh "$venv/bin/python" "$device" "$log") || die "Horovod was not built. See $log"
step "[4/5] installing Horovod and the ffn command" \
    "${pip[@]}" install --no-deps --no-compile --no-build-isolation --force-reinstall "$wheel" --editable .
rm -f "$kernels"
build_kernels
step "checking that it works" check

state >"$stamp"
say "done"
