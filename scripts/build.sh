#!/bin/bash
# Configures and builds one preset of CMakePresets.json; -D options go to the configuration, other words are targets.
#   scripts/build.sh                    everything of the preset release
#   scripts/build.sh dev -DRESHARD_CUDA=OFF reshard job_spec_test
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:-release}
[[ $# -gt 0 ]] && shift
options=()
targets=()
for word in "$@"; do
  case "$word" in
    -D*) options+=("$word") ;;
    *) targets+=("$word") ;;
  esac
done
if command -v ccache >/dev/null; then
  # without these, what includes precompiled headers is never found again
  export CCACHE_SLOPPINESS="${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}"
  options+=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache)
fi

cmake --preset "$preset" "${options[@]}"
build=(cmake --build --preset "$preset" --parallel "$(nproc)")
[[ ${#targets[@]} -gt 0 ]] && build+=(--target "${targets[@]}")
"${build[@]}"
