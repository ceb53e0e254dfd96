#!/bin/bash
# Shows the program at work on a tiny mixture-of-experts checkpoint: Megatron TP2 PP2 EP2 to TP4 PP1 EP4, to Hugging Face, to HDF5, and back.
#   scripts/quickstart.sh [FOLDER]                 takes the newest wheel in build/dist if there is one, and builds the program otherwise
#   scripts/quickstart.sh --wheel[=FILE] [FOLDER]  installs the Python wheel FILE in FOLDER: half a minute, no compiler, no MPI, not root
#   scripts/quickstart.sh --build [FOLDER]         installs Debian's or Ubuntu's packages that are missing, and compiles into build/quick: about three minutes on two cores
#   RESHARD_BIN=PROGRAM scripts/quickstart.sh [FOLDER]   takes a program that is there already
# build/quick is for a first look: it compiles in a fraction of the time of build/release, and runs somewhat slower (scripts/build.sh release for work).
# FOLDER (new or empty) keeps the results; default: a new one in the folder of temporary files. Each step is one line; what it printed is in FOLDER/log.
# On a terminal, a step that builds shows how far it is.
set -euo pipefail
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=scripts/mpi_environment.sh
source scripts/mpi_environment.sh
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1

source_checkpoint=$root/tests/data/moe-tp2-pp2-ep2
reference=$root/tests/data/moe-hf-reference
reshard=${RESHARD_BIN:-$root/build/quick/pipeline/reshard}

stop() {
  echo "quickstart: $*" >&2
  exit 1
}

# Nothing where there is no build/dist: a failed find would end the script.
newest_wheel() { { find "$root/build/dist" -name 'reshard-*.whl' 2>/dev/null || true; } | sort | tail -1; }

way=build
hint=
case "${1:-}" in
  --wheel)
    way=wheel
    wheel=$(newest_wheel)
    [[ -n $wheel ]] || stop "there is no wheel in build/dist. packaging/wheel/build.sh makes one; --wheel=FILE names another."
    shift
    ;;
  --wheel=*)
    way=wheel
    wheel=$(cd "$here" && realpath -m "${1#--wheel=}")
    [[ -f $wheel ]] || stop "$wheel is not there: name a wheel"
    shift
    ;;
  --build) shift ;;
  -h | --help)
    sed -n 's/^#   scripts/scripts/p' "$root/scripts/quickstart.sh"
    exit 0
    ;;
  -*) stop "'$1' is no option: --wheel, --wheel=FILE or --build" ;;
  *)
    wheel=$(newest_wheel)
    if [[ -n $wheel ]]; then
      way=wheel
      hint=" (--build compiles)"
    elif [[ -z ${RESHARD_BIN:-} ]]; then
      hint=" (--wheel=FILE needs no build)"
    fi
    ;;
esac
if [[ -n ${RESHARD_BIN:-} ]]; then
  way=program
  hint=
  reshard=$(cd "$here" && realpath -m "$RESHARD_BIN")
fi
steps=8
[[ $way != build ]] || steps=9
if [[ $# -gt 0 ]]; then
  work=$(cd "$here" && realpath -m "$1")
  mkdir -p "$work"
  [[ -z $(ls -A "$work") ]] || stop "$work is not empty: choose a new folder"
else
  work=$(mktemp -d "${TMPDIR:-/tmp}/reshard-quickstart-XXXXXX")
fi

# how_far CHILD TEXT: while the process lives, ninja's last "[n/m]" in the log, on a terminal.
how_far() {
  local far
  while [[ -t 1 ]] && kill -0 "$1" 2>/dev/null; do
    sleep 0.3
    far=$(tail -c 2000 "$work/log" | grep -oE '^\[[0-9]+/[0-9]+\]' | tail -1) || continue
    printf '\r%d/%d  %-67s' "$number" "$steps" "${2:0:50}  $far"
  done
  [[ ! -t 1 ]] || printf '\r%d/%d  %-67s' "$number" "$steps" "$2"
}

echo "log: $work/log"
number=0
# step TEXT COMMAND…: one line on the screen; ends the script if the command fails.
step() {
  local text=$1 code=0 began
  shift
  number=$((number + 1))
  printf '%d/%d  %-67s' "$number" "$steps" "$text"
  began=$(date +%s%N)
  printf '\n== %s: %s\n' "$text" "$*" >>"$work/log"
  (set -euo pipefail && "$@") >>"$work/log" 2>&1 &
  how_far $! "$text"
  wait $! || code=$? # a function in a condition would not end at its first failure
  if [[ $code -ne 0 ]]; then
    echo "failed"
    tail -5 "$work/log" >&2
    stop "this step ended with exit code $code. $work/log has all that it printed."
  fi
  awk -v ns="$(($(date +%s%N) - began))" 'BEGIN { printf "%6.1f s\n", ns / 1e9 }'
}

install_wheel() {
  python3 -m venv "$work/environment"
  "$work/environment/bin/pip" install --disable-pip-version-check "$wheel"
  "$reshard" --version
}

build() {
  scripts/build.sh quick reshard
  "$reshard" --version
}

# convert NAME: runs the job on standard input, $work/NAME.toml, with 2 ranks; the result is $work/NAME.
convert() {
  cat >"$work/$1.toml"
  mpirun -n 2 --bind-to none "$reshard" run "$work/$1.toml"
  [[ -d $work/$1 ]] || stop "$work/$1 is not there"
}

# megatron SOURCE NAME TP PP EP: converts to another Megatron layout.
megatron() {
  convert "$2" <<TOML
[source]
path = "$1"
optimizer = "drop"
rng = "drop"

[target]
path = "$work/$2"
format = "megatron"
layout.tp = $3
layout.pp = $4
layout.ep = $5

[run]
memory = "16 MiB"
TOML
}

huggingface() {
  convert huggingface <<TOML
[source]
path = "$source_checkpoint"
optimizer = "drop"
rng = "drop"

[target]
path = "$work/huggingface"
format = "huggingface"
reference = "$reference"
TOML
}

hdf5() {
  convert hdf5 <<TOML
[source]
path = "$work/huggingface"

[target]
path = "$work/hdf5"
format = "hdf5"
TOML
}

# same_files A B: both folders have the same files with the same bytes. reshard.json names the paths of its own job, and SHA256SUMS has its hash: both
# are only there.
same_files() {
  local names file
  for file in reshard.json SHA256SUMS; do
    [[ -s $1/$file && -s $2/$file ]] || stop "$1 or $2 has no $file"
  done
  names=$(cd "$1" && find . -type f ! -path ./reshard.json ! -path ./SHA256SUMS | LC_ALL=C sort)
  [[ $names == "$(cd "$2" && find . -type f ! -path ./reshard.json ! -path ./SHA256SUMS | LC_ALL=C sort)" ]] || stop "$1 and $2 do not have the same files"
  [[ -n $names ]] || stop "$1 is empty"
  while IFS= read -r file; do
    cmp "$1/$file" "$2/$file" || stop "$file differs"
  done <<<"$names"
  echo "the same $(wc -l <<<"$names") files, byte for byte"
}

there_and_back() {
  megatron "$work/tp4-pp1-ep4" back 2 2 2
  megatron "$source_checkpoint" straight 2 2 2
  same_files "$work/back" "$work/straight"
}

prove() {
  "$reshard" verify "$source_checkpoint" "$work/tp4-pp1-ep4"
  "$reshard" verify "$source_checkpoint" "$work/huggingface"
  "$reshard" verify "$work/tp4-pp1-ep4" "$work/hdf5"
  "$reshard" verify "$work/hdf5"
}

case $way in
  wheel)
    reshard=$work/environment/bin/reshard
    PATH=$work/environment/bin:$PATH
    step "install $(basename "$wheel")$hint" install_wheel
    ;;
  build)
    step "install the packages that are missing$hint" scripts/install_packages.sh build
    step "build the program" build
    ;;
  program) step "take $reshard" "$reshard" --version ;;
esac
step "inspect the source: Megatron, TP 2, PP 2, EP 2" "$reshard" inspect "$source_checkpoint" --expert-parallel-size 2
step "convert to Megatron, TP 4, PP 1, EP 4" megatron "$source_checkpoint" tp4-pp1-ep4 4 1 4
step "convert to Hugging Face" huggingface
step "convert back to TP 2, PP 2, EP 2: the same bytes as straight" there_and_back
step "convert to HDF5" hdf5
step "prove that the four checkpoints hold the same tensors" prove
step "draw which file holds what" "$reshard" view "$source_checkpoint" -o "$work/source.html"

cat <<TEXT

Picture:  $work/source.html
Try next: $reshard ls --logical $work/huggingface
          $reshard init YOUR_CHECKPOINT -o job.toml
          $reshard plan job.toml
TEXT
