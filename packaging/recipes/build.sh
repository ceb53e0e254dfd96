#!/bin/bash
# conda runs this in the unpacked archive.
set -euo pipefail
# shellcheck disable=SC2086 # CMAKE_ARGS is a list of words, of conda's compilers
cmake ${CMAKE_ARGS:-} -S . -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX="$PREFIX" -DRESHARD_TESTS=OFF -DRESHARD_CUDA=OFF
cmake --build build --parallel "${CPU_COUNT:-2}"
cmake --install build
