#!/bin/bash
# Fetches NCCL's header and library into .cache/nccl where a CUDA Toolkit is installed and NCCL is not: the build needs the header, jobs with
# run.transport = "nccl" the library (RESHARD_NCCL_LIBRARY names it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=nvidia-nccl-cu13==2.28.9
folder=.cache/nccl

nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
if [[ ! -x $nvcc ]]; then
  echo "nccl: no CUDA Toolkit, so not needed"
  exit 0
fi
if [[ -f $folder/made-from.txt && $(<"$folder/made-from.txt") == "$package" ]]; then
  echo "nccl: $folder is up to date"
  exit 0
fi
if echo '#include <nccl.h>' | g++ -E -x c++ -I"$(dirname "$(dirname "$nvcc")")/include" - >/dev/null 2>&1; then
  echo "nccl: the system has it"
  exit 0
fi

echo "nccl: fetching $package"
rm -rf "$folder"
python3 -m venv "$folder/pip"
if ! "$folder/pip/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --target "$folder" "$package"; then
  rm -rf "$folder"
  echo "nccl: could not be fetched; without nccl.h the build refuses run.transport = \"nccl\"" >&2
  exit 0
fi
rm -rf "$folder/pip"
echo "$package" >"$folder/made-from.txt"
