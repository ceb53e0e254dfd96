#!/bin/bash
# Fetches NCCL's header and library into .cache/nccl where a CUDA Toolkit is installed and NCCL is not: the build needs the header, jobs with
# run.transport = "nccl" the library (RESHARD_NCCL_LIBRARY names it).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

package=nvidia-nccl-cu13==2.28.9
folder=.cache/nccl

# Whether there is a toolkit is for CMake to say: an nvcc alone is none, and CMake finds those that are not on PATH.
probe=$(mktemp -d)
trap 'rm -rf "$probe"' EXIT
cat >"$probe/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.22)
project(toolkit CXX)
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
  file(WRITE "${CMAKE_BINARY_DIR}/include" "${CUDAToolkit_INCLUDE_DIRS}")
endif()
END
if ! cmake -S "$probe" -B "$probe/build" >/dev/null 2>&1 || [[ ! -f $probe/build/include ]]; then
  echo "nccl: no CUDA Toolkit, so not needed"
  exit 0
fi
if [[ -f $folder/made-from.txt && $(<"$folder/made-from.txt") == "$package" ]]; then
  echo "nccl: $folder is up to date"
  exit 0
fi
IFS=';' read -ra include <"$probe/build/include" || true # the file has no line end
if echo '#include <nccl.h>' | g++ -E -x c++ "${include[@]/#/-I}" - >/dev/null 2>&1; then
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
