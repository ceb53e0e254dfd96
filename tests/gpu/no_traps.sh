#!/bin/bash
# Looks for traps in the compiled kernels. nvcc turns code that only the host can run (a reference to a host's constant, say) into a trap, without a
# word; the tests on the host cannot see that.
#   tests/gpu/no_traps.sh NVCC
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

nvcc=${1:-nvcc}
ptx=$(mktemp)
trap 'rm -f "$ptx"' EXIT
found=0
for source in core/device/cuda/*.cu; do
  "$nvcc" -std=c++20 -O3 --expt-relaxed-constexpr -fmad=false -I. -arch=compute_90 -ptx -o "$ptx" "$source"
  grep -q '\.entry' "$ptx"
  traps=$(grep -c 'trap;' "$ptx" || true)
  echo "$source: $traps traps"
  found=$((found + traps))
done
[[ $found -eq 0 ]]
