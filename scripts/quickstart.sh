#!/bin/bash
# Builds the program and shows it at work on a tiny mixture-of-experts checkpoint: Megatron TP2 PP2 EP2 to TP4 PP1 EP4, to Hugging Face, to HDF5, and back.
#   scripts/quickstart.sh [FOLDER]   results go to FOLDER (new or empty) and stay there; without it, to a temporary folder that is removed
#   RESHARD_BIN=PROGRAM scripts/quickstart.sh   shows a program that is built already, and builds nothing
set -euo pipefail
here=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
# shellcheck source=scripts/mpi_environment.sh
source scripts/mpi_environment.sh

source_checkpoint=$root/tests/data/moe-tp2-pp2-ep2
reference=$root/tests/data/moe-hf-reference
reshard=${RESHARD_BIN:-$root/build/release/pipeline/reshard}

say() { printf '\n== %s\n' "$*"; }

stop() {
  echo "quickstart: $*" >&2
  exit 1
}

# convert NAME: writes $work/NAME.toml from standard input and runs it with 2 ranks; the result is $work/NAME.
convert() {
  local name=$1 code=0
  cat >"$work/$name.toml"
  echo "\$ mpirun -n 2 reshard run $work/$name.toml"
  mpirun -n 2 --bind-to none "$reshard" run "$work/$name.toml" || code=$?
  [[ $code -eq 0 ]] || stop "'reshard run $work/$name.toml' ended with exit code $code"
  [[ -d $work/$name ]] || stop "'reshard run $work/$name.toml' ended with exit code 0, but $work/$name is not there"
}

# megatron_job SOURCE NAME TP PP EP: the text of a job with a Megatron target.
megatron_job() {
  cat <<TOML
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

# look WORD…: runs a command of reshard that only looks.
look() {
  local code=0
  echo "\$ reshard $*"
  "$reshard" "$@" || code=$?
  [[ $code -eq 0 ]] || stop "'reshard $*' ended with exit code $code"
}

# same_files A B: both folders have the same files with the same bytes; reshard.json names the paths of its own job, SHA256SUMS the hash of that: they are only there.
same_files() {
  local names file
  [[ -s $1/reshard.json && -s $2/reshard.json ]] || stop "$1 or $2 has no reshard.json"
  names=$(cd "$1" && find . -type f ! -path ./reshard.json ! -path ./SHA256SUMS | LC_ALL=C sort)
  [[ $names == "$(cd "$2" && find . -type f ! -path ./reshard.json ! -path ./SHA256SUMS | LC_ALL=C sort)" ]] || stop "$1 and $2 do not have the same files"
  [[ -n $names ]] || stop "$1 is empty"
  while IFS= read -r file; do
    cmp "$1/$file" "$2/$file" || stop "$file differs"
  done <<<"$names"
  echo "the same $(wc -l <<<"$names") files, byte for byte"
}

if [[ $# -gt 0 ]]; then
  mkdir -p "$(cd "$here" && realpath -m "$1")"
  work=$(cd "$here" && realpath "$1")
  [[ -z $(ls -A "$work") ]] || stop "$work is not empty: choose a new folder"
else
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
fi

say "1/7 packages and program"
if [[ -z ${RESHARD_BIN:-} ]]; then
  scripts/install_packages.sh build
  scripts/build.sh release reshard
fi
"$reshard" --version

say "2/7 the source: Megatron, TP 2, PP 2, EP 2"
look inspect "$source_checkpoint" --expert-parallel-size 2

say "3/7 to Megatron, TP 4, PP 1, EP 4"
megatron_job "$source_checkpoint" tp4-pp1-ep4 4 1 4 | convert tp4-pp1-ep4
look inspect "$work/tp4-pp1-ep4" --expert-parallel-size 4
look ls "$work/tp4-pp1-ep4"

say "4/7 to Hugging Face"
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
look inspect "$work/huggingface"
look ls "$work/huggingface"

say "5/7 back to TP 2, PP 2, EP 2; and the source straight to the same layout"
megatron_job "$work/tp4-pp1-ep4" back 2 2 2 | convert back
megatron_job "$source_checkpoint" straight 2 2 2 | convert straight

say "6/7 both ways give the same bytes"
same_files "$work/back" "$work/straight"

say "7/7 to HDF5, and the proof that four checkpoints hold the same tensors"
convert hdf5 <<TOML
[source]
path = "$work/huggingface"

[target]
path = "$work/hdf5"
format = "hdf5"
TOML
look digest "$work/hdf5"
look verify "$source_checkpoint" "$work/tp4-pp1-ep4"
look verify "$source_checkpoint" "$work/huggingface"
look verify "$work/tp4-pp1-ep4" "$work/hdf5"
look verify "$work/hdf5"

say "done: every step ended with exit code 0"
if [[ $# -gt 0 ]]; then echo "the results are in $work"; fi
