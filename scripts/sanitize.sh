#!/bin/bash
# Builds with a sanitizer and runs the tests that it is for; a report of the sanitizer fails the test.
#   scripts/sanitize.sh asan [TEST …]   the unit tests, with AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer
#   scripts/sanitize.sh tsan [TEST …]   the tests with several threads or ranks, with ThreadSanitizer
# TESTs are names of test programs, to build and run only these. (Suppressions: tests/support/lsan.supp and tsan.supp.)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

kind=${1:-}
case "$kind" in
  asan) labels=unit tests=unit_tests ;;
  tsan) labels='mpi|threads' tests=parallel_tests ;;
  *)
    echo "sanitize.sh: '$kind' is no sanitizer: choose asan or tsan" >&2
    exit 2
    ;;
esac
shift
. scripts/mpi_environment.sh

options=()
command -v ccache >/dev/null && options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
cmake --preset "$kind" "${options[@]}"
build=(cmake --build --preset "$kind" --parallel "$(nproc)" --target)
chosen=(-L "$labels")
if [[ $# -eq 0 ]]; then
  build+=("$tests")
else
  build+=("$@")
  names=$(printf '|%s' "$@")
  chosen=(-R "^(${names#|})(\\.np[0-9]+)?\$")
fi
"${build[@]}"
ctest --preset "$kind" "${chosen[@]}"
