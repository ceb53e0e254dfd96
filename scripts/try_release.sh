#!/bin/bash
# Says which tests break with another release of Megatron-Core or Megatron-Bridge.
#   scripts/try_release.sh megatron-core==0.20.0 [3.12]     3.12: the Python that its wheel is made for
# A release that tests/peers/releases.txt does not have gets a line there: keep it when the tests pass. Needs the build of scripts/test.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/mpi_environment.sh
source scripts/mpi_environment.sh

release=${1:-}
build=build/test
if [[ $release != *==* ]]; then
  echo "try_release.sh: '$release' is no release: name one such as megatron-core==0.20.0" >&2
  exit 2
fi
if [[ ! -x $build/pipeline/reshard ]]; then
  echo "try_release.sh: there is no $build/pipeline/reshard: run scripts/test.sh first" >&2
  exit 1
fi
grep -q "^$release " tests/peers/releases.txt || echo "$release ${2:-3.12}" >>tests/peers/releases.txt
scripts/install_peers.sh "$release"
cmake -DRESHARD_PEERS=ON "$build" >/dev/null
exec ctest --test-dir "$build" --output-on-failure --parallel "$(nproc)" --no-tests=error -R "\\.${release/==/-}\$"
