#!/bin/bash
# Installs what the build needs and makes the Debian package: build/package/packages/reshard_*.deb. The container recipes call it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
scripts/install_packages.sh package
if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
cmake --preset package ${RESHARD_COMMIT:+-DRESHARD_COMMIT="$RESHARD_COMMIT"}
cmake --build --preset package --parallel "$(nproc)"
cpack --preset package
