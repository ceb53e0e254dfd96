#!/bin/bash
# Builds the libFuzzer targets (preset fuzz: clang, AddressSanitizer, UndefinedBehaviorSanitizer), makes their seeds, and runs them one after the other.
#   scripts/fuzz.sh [TARGET … | all] [--runs N | --seconds N] [--jobs N] [--built]
# Without a limit each target runs for 60 seconds. What was found is kept in build/fuzz/findings; build/fuzz/results.json gets one record for each run.
# --built takes the programs as they are.
#   scripts/fuzz.sh json --runs 1000000
#   scripts/fuzz.sh all --seconds 600 --jobs 8
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

build=build/fuzz
limit=(-max_total_time=60)
jobs=1
built=
wanted=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --runs) limit=(-runs="${2:?}") && shift ;;
    --seconds) limit=(-max_total_time="${2:?}") && shift ;;
    --jobs) jobs=${2:?} && shift ;;
    --built) built=yes ;;
    -*)
      echo "fuzz.sh: '$1' is no option: --runs N, --seconds N, --jobs N, --built" >&2
      exit 2
      ;;
    *) wanted+=("$1") ;;
  esac
  shift
done

mapfile -t all < <(sed -n 's/^reshard_add_fuzzer(\([a-z0-9_]*\) .*/\1/p; s/^  reshard_add_fuzzer(\(hdf5\) .*/\1/p' tests/fuzz/CMakeLists.txt | sort)
[[ ${#wanted[@]} -eq 0 || ${wanted[0]} == all ]] && wanted=("${all[@]}")
for target in "${wanted[@]}"; do
  if ! printf '%s\n' "${all[@]}" | grep -qx -- "$target"; then
    echo "fuzz.sh: '$target' is no target. Choose from: ${all[*]}" >&2
    exit 2
  fi
done
if [[ -z $built ]]; then
  options=()
  command -v ccache >/dev/null && options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  cmake --preset fuzz "${options[@]}" >/dev/null
  cmake --build "$build" --parallel "$(nproc)" --target "${wanted[@]/%/_fuzz}"
fi

# Seeds, once: from the repository, and with more from the environment of the comparisons and the programs of the dev build, where these are.
python=python3
[[ -x .cache/peers/bin/python ]] && python=.cache/peers/bin/python
if [[ ! -d $build/seeds ]]; then
  more=()
  [[ -x build/dev/pipeline/reshard ]] && more+=(--reshard "$PWD/build/dev/pipeline/reshard")
  [[ -x build/dev/tests/probe ]] && more+=(--probe "$PWD/build/dev/tests/probe")
  "$python" -W ignore tests/fuzz/make_seeds.py "$build/seeds" "${more[@]}"
fi

# No child of a fork, no open MPI session is a leak of ours; a small quarantine keeps the program in its caches.
export ASAN_OPTIONS=quarantine_size_mb=16:malloc_context_size=6
export UBSAN_OPTIONS=print_stacktrace=1
export LSAN_OPTIONS=suppressions=$PWD/tests/support/lsan.supp:print_suppressions=0
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self

# The longest input: enough for the real files, short enough to be fast.
longest() {
  case "$1" in
    expression | layout_expr | placements) echo 256 ;;
    json | config | integrity | journal | run_journal | hdf5_answer | safetensors) echo 2048 ;;
    hdf5) echo 8192 ;;
    *) echo 4096 ;;
  esac
}

# The last number that libFuzzer's statistics or progress lines give of a log.
executions() {
  awk '/^stat::number_of_executed_units:/ { done += $2; last = 0 } /^#[0-9]+/ { last = substr($1, 2) } END { print done + last }' "$@"
}

status=0
for target in "${wanted[@]}"; do
  corpus=$build/corpus/$target
  findings=$build/findings/$target
  mkdir -p "$corpus" "$findings"
  folders=("$corpus")
  for folder in "tests/fuzz/corpus/$target" "$build/seeds/$target"; do [[ -d $folder ]] && folders+=("$folder"); done
  program=$PWD/$build/tests/fuzz/${target}_fuzz
  dictionary=()
  [[ -f tests/fuzz/dictionaries/$target.txt ]] && dictionary=(-dict="tests/fuzz/dictionaries/$target.txt")
  log=$build/$target.log
  before=$(find "$findings" -type f | wc -l)
  began=$SECONDS
  # LeakSanitizer's tracer dies of the threads of Open MPI.
  leaks=1
  [[ $target == run_journal ]] && leaks=0
  parallel=()
  [[ $jobs -gt 1 ]] && parallel=(-jobs="$jobs" -workers="$jobs")
  rm -f "$build"/fuzz-*.log
  (ASAN_OPTIONS=$ASAN_OPTIONS:detect_leaks=$leaks nice -n 15 "$program" "${limit[@]}" "${parallel[@]}" "${dictionary[@]}" -rss_limit_mb=512 -timeout=5 -max_len="$(longest "$target")" \
    -report_slow_units=1000 -reload=0 -print_final_stats=1 -artifact_prefix="$findings/" "${folders[@]}") >"$log" 2>&1 || status=1
  logs=("$log")
  for one in fuzz-*.log; do [[ -f $one ]] && mv "$one" "$build/" && logs+=("$build/$one"); done
  # On a busy machine a short input may take 5 seconds: only what does so again is a finding.
  for late in "$findings"/timeout-*; do
    if [[ -f $late ]] && "$program" -timeout=5 "$late" >/dev/null 2>&1; then rm "$late"; fi
  done
  found=$(($(find "$findings" -type f | wc -l) - before))
  python3 - "$build/results.json" "$target" "$(executions "${logs[@]}")" $((SECONDS - began)) "$found" "$(git rev-parse --short HEAD 2>/dev/null || true)" <<'PYTHON'
import json, pathlib, sys
path, target, executions, seconds, findings, commit = sys.argv[1:]
file = pathlib.Path(path)
records = json.loads(file.read_text()) if file.exists() else []
records.append({"target": target, "executions": int(executions), "seconds": int(seconds), "findings": int(findings), "commit": commit})
file.write_text(json.dumps(records, indent=1) + "\n")
PYTHON
done

python3 - "$build/results.json" "${wanted[@]}" <<'PYTHON'
import json, pathlib, sys
records = json.loads(pathlib.Path(sys.argv[1]).read_text())
print(f"{'target':<16}{'executions':>14}{'seconds':>10}{'per second':>12}{'findings':>10}   (all runs together)")
for target in sys.argv[2:]:
    own = [record for record in records if record["target"] == target]
    runs, seconds, found = (sum(record[key] for record in own) for key in ("executions", "seconds", "findings"))
    print(f"{target:<16}{runs:>14,}{seconds:>10,}{runs // max(seconds, 1):>12,}{found:>10}")
PYTHON
exit "$status"
