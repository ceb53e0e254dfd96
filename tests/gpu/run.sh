#!/bin/bash
# Tests and measures the GPU path on this machine in one go, and prints one table last:
#   tests/gpu/run.sh [--packages FOLDER] [--minutes N] [--work FOLDER] [--only SECTION,…] [--jobs JOB,…] [--keep FOLDER | --built FOLDER] [--rehearse]
#
# The machine needs a GPU, CUDA's nvcc, CMake and g++ 13 or later (older ones where fmt is installed). NCCL is found where the loader or python3 has it.
# Without more it builds and runs the checks and the benchmark of the device layer, and NCCL's transport with several processes on the one GPU. With
# what tests/gpu/packages.sh put into FOLDER, or with the packages of README.md installed, it also builds the whole program and compares its paths.
#
#   --packages FOLDER  what tests/gpu/packages.sh made (also RESHARD_GPU_PACKAGES)
#   --minutes N        stop after so long (9); what is not reached is listed as "not run"
#   --work FOLDER      for builds and logs (a new folder below TMPDIR or /tmp)
#   --only SECTIONS    of machine,build,checks,sanitizer,nccl,bench,program
#   --jobs JOBS        of small,moved,fp8,suite,large: what "program" runs; small and moved share a source
#   --keep FOLDER      put what is built there; without a GPU nothing more is done
#   --built FOLDER     what --keep put there, perhaps on another machine; what is not there, or does not start here, is built
#   --rehearse         without a GPU: the emulated device in its place, small sizes. Shows that the script works; the figures mean nothing
#
# Sections are independent: what fails is listed and the others still run. With OUT set (a folder), the table, the log and traces are put there.
# Everything takes about a quarter of an hour; where a command may take ten minutes only, "--only machine,program" is a second one.
# Exit code: 0, 1 when a check failed, 2 when only a bar was not reached, 77 without a GPU.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
root=$PWD

packages=${RESHARD_GPU_PACKAGES:-}
minutes=9
work=
only=machine,build,checks,sanitizer,nccl,bench,program
jobs=small,moved,fp8,suite,large
rehearse=
keep=
built=

usage() {
  sed -n '2,/^set /p' "${BASH_SOURCE[0]}" | sed -e '$d' -e 's/^# \{0,1\}//'
  exit "$1"
}

while [[ $# -gt 0 ]]; do
  case "$1" in
    --packages) packages=$(realpath "${2:?--packages takes a folder}") && shift 2 ;;
    --minutes) minutes=${2:?--minutes takes a number} && shift 2 ;;
    --work) mkdir -p "${2:?--work takes a folder}" && work=$(realpath "$2") && shift 2 ;;
    --only) only=${2:?--only takes names} && shift 2 ;;
    --keep) mkdir -p "${2:?--keep takes a folder}" && keep=$(realpath "$2") && shift 2 ;;
    --built) built=$(realpath "${2:?--built takes a folder}") && shift 2 ;;
    --jobs) jobs=${2:?--jobs takes names} && shift 2 ;;
    --rehearse) rehearse=yes && shift ;;
    -h | --help) usage 0 ;;
    *) usage 64 >&2 ;;
  esac
done
rehearsal_folder=
if [[ -z $work ]]; then
  work=$(mktemp -d "${TMPDIR:-/tmp}/reshard-gpu.XXXXXX")
  [[ -z $rehearse ]] || rehearsal_folder=$work
fi
deadline=$((SECONDS + minutes * 60))
log=$work/log.txt
rows=$work/rows.tsv
: >"$log"
: >"$rows"

say() { printf '== %3d s  %s\n' "$SECONDS" "$*" | tee -a "$log"; }
left() { echo $((deadline - SECONDS)); }
wanted() { [[ ,$only, == *,$1,* ]]; }
wanted_job() { [[ ,$jobs, == *,$1,* ]]; }

# row GROUP NAME RESULT VERDICT: a line of the table.
row() { printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$rows"; }

# limited SECONDS COMMAND…: into the log; killed when its time, or that of the whole run, is over.
limited() {
  local seconds=$1
  shift
  [[ $(left) -gt "$seconds" ]] || seconds=$(left)
  [[ $seconds -gt 2 ]] || return 125
  printf '$ %s\n' "$*" >>"$log"
  timeout --kill-after=10 "$seconds" "$@" >>"$log" 2>&1
}

# program GROUP NAME SECONDS COMMAND…: one whose output has lines of the table ("ROW", then the fields between tabs).
program() {
  local group=$1 name=$2 seconds=$3 output=$work/output.$2.txt code=0
  shift 3
  say "$name"
  if [[ $(left) -lt 10 ]]; then
    row "$group" "$name" "no time left" "not run"
    return 0
  fi
  [[ $(left) -gt "$seconds" ]] || seconds=$(left)
  printf '$ %s\n' "$*" >>"$log"
  timeout --kill-after=10 "$seconds" "$@" >"$output" 2>&1 || code=$?
  cat "$output" >>"$log"
  grep '^ROW'$'\t' "$output" | cut -f2- >>"$rows"
  case $code in
    0) ;;
    77) row "$group" "$name" "$(grep -m1 '^skipped' "$output" || echo skipped)" skipped ;;
    124 | 137) row "$group" "$name" "killed after $seconds s; last: $(tail -n1 "$output" | cut -c1-160)" FAILED ;;
    *) grep -q FAILED "$output" || row "$group" "$name" "exit code $code: $(tail -n1 "$output" | cut -c1-200)" FAILED ;;
  esac
}

# python_folder MODULE: where python3 has it, without importing it.
python_folder() {
  python3 -c 'import importlib.util, sys
spec = importlib.util.find_spec(sys.argv[1])
print(list(spec.submodule_search_locations)[0] if spec and spec.submodule_search_locations else "")' "$1" 2>/dev/null
}

find_tools() {
  local folder
  for folder in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer /opt/cuda/bin /usr/local/nvidia/bin; do PATH=$PATH:$folder; done
  export PATH
  generator=(-G "Unix Makefiles")
  ! command -v ninja >/dev/null || generator=(-G Ninja)
  architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n1 | tr -dc 0-9)
  [[ -n $architecture ]] || architecture=90
}

# NCCL_INCLUDE_DIR and RESHARD_NCCL_LIBRARY: of the packages, of python3's wheels, or of the system.
find_nccl() {
  local wheel file
  nccl_include=
  wheel=$(python_folder nvidia.nccl)
  for file in "$packages/nccl/include" "$wheel/include" /usr/include /usr/local/cuda/include; do
    [[ -n $nccl_include || ! -f $file/nccl.h ]] || nccl_include=$file
  done
  if [[ -z ${RESHARD_NCCL_LIBRARY:-} && -f $wheel/lib/libnccl.so.2 ]]; then export RESHARD_NCCL_LIBRARY=$wheel/lib/libnccl.so.2; fi
}

# The first fmt that compiles here as headers: the packages', the system's, the one in torch's wheel; else the stand-in on std::format. Through a link
# of its own, because /usr/include must not come before the compiler's folders.
find_fmt() {
  local candidate
  fmt_include=$work/fmt-include
  fmt_from=nowhere
  mkdir -p "$fmt_include"
  printf '%s\n' '#include <fmt/format.h>' '#include <fmt/ranges.h>' 'int main() { return fmt::format("{}", 1).size() == 1 ? 0 : 1; }' >"$work/fmt.cpp"
  for candidate in "$packages/usr/include" /usr/include "$(python_folder torch)/include" "$root/tests/gpu/fmt_on_std"; do
    [[ -d $candidate/fmt ]] || continue
    ln -sfn "$candidate/fmt" "$fmt_include/fmt"
    fmt_from=$candidate
    if "${CXX:-g++}" -std=c++20 -DFMT_HEADER_ONLY -isystem "$fmt_include" "$work/fmt.cpp" -o "$work/fmt" >>"$log" 2>&1 && "$work/fmt"; then return 0; fi
  done
}

describe_machine() {
  local gpu
  gpu=$(nvidia-smi --query-gpu=name,memory.total,driver_version,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader 2>/dev/null | head -n1)
  row machine GPU "${gpu:-none that nvidia-smi knows}" -
  row machine tools "nvcc $(nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p'), $(cmake --version 2>/dev/null | head -n1), \
$("${CXX:-g++}" --version 2>/dev/null | head -n1), $(python3 --version 2>/dev/null)" -
  row machine host "$(uname -r), $(nproc) cores, $(awk '/MemAvailable/ {printf "%.0f", $2 / 1048576}' /proc/meminfo) GiB free memory, \
$(df -BG --output=avail "$work" | tail -n1 | tr -dc 0-9) GiB free in $work, $(df -BG --output=avail /dev/shm 2>/dev/null | tail -n1 | tr -dc 0-9) GiB in /dev/shm" -
  row machine found "fmt of ${fmt_from}, nccl.h in ${nccl_include:-no place}, NCCL ${RESHARD_NCCL_LIBRARY:-where the loader finds it}, \
packages ${packages:-none}" -
  { nvidia-smi; lscpu; df -h; ip addr 2>/dev/null; } >>"$log" 2>&1
}

# was_built PROGRAM ARGUMENT…: whether it is in the folder of --built and starts with these arguments.
was_built() {
  local name=$1
  shift
  [[ -n $built && -x $built/$name ]] && limited 20 "$built/$name" "$@"
}

# keep PROGRAM…: to the folder of --keep, without what only debuggers need. One that was not built is left out.
keep() {
  local file
  [[ -n $keep ]] || return 0
  for file in "$@"; do [[ ! -x $file ]] || strip -o "$keep/$(basename "$file")" "$file"; done
}

# build_targets NAME SECONDS TARGET…: a row.
build_targets() {
  local name=$1 seconds=$2 code=0 begin=$SECONDS
  shift 2
  [[ -z $rehearse ]] || seconds=1500
  limited "$seconds" cmake --build "$work/light" --parallel "$(nproc)" --target "$@" || code=$?
  case $code in
    0) row build "$name" "$((SECONDS - begin)) s, for compute capability $architecture" ok ;;
    124 | 125 | 137) row build "$name" "not done within $((SECONDS - begin)) s" FAILED ;;
    *) row build "$name" "exit code $code: $(grep -m1 -E 'error:|FAILED:' "$log" | cut -c1-200)" FAILED ;;
  esac
}

# The checks and the benchmark, from nvcc and CMake alone.
build_light() {
  # Without a device and without a section: it only starts.
  if was_built gpu_bench --emulated none; then
    mkdir -p "$work/light"
    cp "$built"/{gpu_checks,gpu_bench,nccl_check} "$work/light/" 2>>"$log"
    row build "checks and benchmark" "those of $built" ok
    return 0
  fi
  say "build of the checks"
  if ! limited 90 cmake -S tests/gpu -B "$work/light" "${generator[@]}" -DCMAKE_BUILD_TYPE=Release -DCMAKE_CUDA_ARCHITECTURES="$architecture" \
    -DCMAKE_CUDA_COMPILER="$(command -v nvcc)" -DRESHARD_FMT_INCLUDE_DIR="$fmt_include" ${nccl_include:+-DNCCL_INCLUDE_DIR="$nccl_include"}; then
    row build "configuration" "$(grep -m1 -A3 'CMake Error' "$log" | tr '\n' ' ' | cut -c1-200)" FAILED
    return 0
  fi
  build_targets "checks and benchmark" 240 gpu_checks gpu_bench
  # Apart: what NCCL's header does must not cost the others.
  if [[ -z $nccl_include ]]; then
    row build nccl_check "nccl.h was not found" skipped
  else
    build_targets nccl_check 120 nccl_check
  fi
  keep "$work"/light/{gpu_checks,gpu_bench,nccl_check}
}

run_checks() {
  local cases=4000
  [[ -z $rehearse ]] || cases=300
  [[ ! -x $work/light/gpu_checks ]] || program checks gpu_checks 150 "$work/light/gpu_checks" --cases "$cases" ${rehearse:+--emulated}
}

run_sanitizer() {
  local tool code name
  if [[ -n $rehearse || ! -x $work/light/gpu_checks ]] || ! command -v compute-sanitizer >/dev/null; then
    row sanitizer compute-sanitizer "not here" skipped
    return 0
  fi
  for tool in memcheck racecheck; do
    say "compute-sanitizer --tool $tool"
    name="$tool of random copies, conversions, checksums"
    code=0
    limited 75 compute-sanitizer --tool "$tool" --error-exitcode 99 "$work/light/gpu_checks" --small --cases 24 "copies: random" "values: random conversions" \
      "values: dequantisation" "checksums: random pieces" "device: pinned rounds" || code=$?
    case $code in
      0) row sanitizer "$name" "no complaint" ok ;;
      99) row sanitizer "$name" "$(grep -m1 -E '========= (Invalid|Error|Race|.*hazard)' "$log" | cut -c1-160)" FAILED ;;
      124 | 125 | 137) row sanitizer "$name" "too slow here: stopped" "not run" ;;
      *) row sanitizer "$name" "ended with $code: $(tail -n1 "$log" | cut -c1-160)" FAILED ;;
    esac
  done
}

run_nccl() {
  [[ ! -x $work/light/nccl_check ]] || program nccl nccl_check 240 "$work/light/nccl_check"
}

run_bench() {
  local arguments=()
  [[ -z $rehearse ]] || arguments=(--emulated --payload 4 --passes 2)
  [[ ! -x $work/light/gpu_bench ]] || program bench gpu_bench 150 "$work/light/gpu_bench" "${arguments[@]}"
}

print_table() {
  awk -F'\t' '
    $1 != group { printf "\n%s\n", toupper($1); group = $1 }
    { printf "  %-11s  %-52s  %s\n", $4, $2, $3 }' "$rows"
  echo
  awk -F'\t' '$4 == "FAILED" || $4 ~ /^BELOW/ || $4 == "not run" { printf "  %-11s  %s: %s\n", $4, $2, substr($3, 1, 120) }' "$rows"
}

# The last line, and the exit code.
verdict() {
  local failed below skipped good
  failed=$(cut -f4 "$rows" | grep -c FAILED)
  below=$(cut -f4 "$rows" | grep -c '^BELOW')
  skipped=$(cut -f4 "$rows" | grep -cE '^(skipped|not run)')
  good=$(cut -f4 "$rows" | grep -cE '^(ok|reached|same)')
  local counts="$good held, $failed failed, $below bars not reached, $skipped skipped or not run, $SECONDS s${rehearse:+, A REHEARSAL WITHOUT A GPU}"
  if [[ $failed -gt 0 ]]; then
    echo "VERDICT: FAILED ($counts)"
    return 1
  elif [[ $below -gt 0 ]]; then
    echo "VERDICT: correct, too slow ($counts)"
    return 2
  elif [[ $good -eq 0 ]]; then
    echo "VERDICT: nothing could be checked ($counts)"
    return 77
  fi
  echo "VERDICT: passed ($counts)"
}

finish() {
  print_table >"$work/table.txt"
  verdict >>"$work/table.txt"
  local code=$?
  if [[ -n ${OUT:-} && -d $OUT ]]; then
    cp "$work/table.txt" "$OUT/table.txt"
    tail -c 8000000 "$log" | gzip >"$OUT/log.txt.gz"
  fi
  cat "$work/table.txt"
  [[ -z $rehearsal_folder ]] || rm -rf "$rehearsal_folder"
  exit "$code"
}

# shellcheck source=tests/gpu/whole_program.sh
source tests/gpu/whole_program.sh

trap 'stop_background; finish' INT TERM
find_tools
if ! command -v nvcc >/dev/null; then
  echo "skipped: nvcc is not here"
  exit 77
fi
find_nccl
find_fmt
if [[ -z $rehearse && ! -e /dev/nvidiactl ]] && ! nvidia-smi -L >/dev/null 2>&1; then
  row machine "GPU" "none here: programs are built, and nothing is run; --rehearse runs this script without one" skipped
  only=machine,build${keep:+,keep}
fi
! wanted machine || describe_machine
# What only needs the processor goes on beside the checks, and is done before anything is timed.
! wanted program || begin_sources
! wanted build || build_light
if wanted program || wanted keep; then begin_build; fi
! wanted checks || run_checks
! wanted sanitizer || run_sanitizer
! wanted nccl || run_nccl
if wanted program || wanted keep; then end_build; fi
! wanted bench || let_sources_finish
! wanted bench || run_bench
! wanted program || run_program
stop_background
finish
