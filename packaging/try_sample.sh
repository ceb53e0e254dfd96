#!/bin/bash
# Tries an installed reshard on the sample checkpoint beside it: versions, a conversion with 2 ranks, the proof of its result.
#   share/reshard/try_sample.sh [PREFIX]     PREFIX/bin/reshard and PREFIX/share/reshard are used; default: the prefix that this file lies in
set -euo pipefail
prefix=$(realpath "${1:-$(dirname "${BASH_SOURCE[0]}")/../..}")
sample=$prefix/share/reshard/sample
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_mpi_yield_when_idle=1
unset RESHARD_MAPS
reshard=$prefix/bin/reshard

"$reshard" --version
"$reshard" inspect "$sample/moe-tp2-pp2-ep2"
cat >job.toml <<TOML
[source]
path = "$sample/moe-tp2-pp2-ep2"
optimizer = "drop"
rng = "drop"

[target]
path = "huggingface"
format = "huggingface"
reference = "$sample/moe-hf-reference"
TOML
mpirun -n 2 --bind-to none "$reshard" run job.toml
"$reshard" verify huggingface
"$reshard" verify "$sample/moe-tp2-pp2-ep2" huggingface
"$reshard" check-map "$prefix/share/reshard/models/qwen3_moe.toml" --config huggingface >/dev/null
echo "try_sample: $prefix works"
