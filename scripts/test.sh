#!/bin/bash
# Installs what is missing, builds everything with warnings as errors, and runs the tests.
#   scripts/test.sh --all               the long matrices and sweeps too, with the preset dev: each source compiled by itself
#   RESHARD_PEERS=off scripts/test.sh   leaves out the comparisons with the Python libraries (for machines without a network)
# Ends in the summary of ctest, with its exit code.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=scripts/mpi_environment.sh
source scripts/mpi_environment.sh

preset='test'
selection=(--label-exclude '^long$')
case "${1:-}" in
  "") ;;
  --all)
    preset=dev
    selection=()
    ;;
  *)
    echo "test.sh: '$1' is no option: --all runs the long tests too" >&2
    exit 2
    ;;
esac

scripts/install_packages.sh test
scripts/install_nccl.sh

case "${RESHARD_PEERS:-on}" in
  on)
    peers=ON
    scripts/install_peers.sh empty
    scripts/install_peers.sh & # mostly waits for the network and the disk
    installing=$!
    trap 'kill "$installing" 2>/dev/null || true' EXIT
    ;;
  off)
    peers=OFF
    echo "************************************************************************" >&2
    echo "** RESHARD_PEERS=off: nothing is compared with PyTorch and the other  **" >&2
    echo "** libraries that read and write these formats. Not a full test.      **" >&2
    echo "************************************************************************" >&2
    ;;
  *)
    echo "test.sh: RESHARD_PEERS='$RESHARD_PEERS': choose on or off" >&2
    exit 2
    ;;
esac

scripts/build.sh "$preset" "-DRESHARD_PEERS=$peers"
if [[ $peers == ON ]]; then
  wait "$installing" || { echo "test.sh: the Python libraries could not be installed: RESHARD_PEERS=off tests without them" >&2; exit 1; }
fi
exec ctest --preset "$preset" --output-on-failure --parallel "$(($(nproc) + 1))" --no-tests=error "${selection[@]}"
