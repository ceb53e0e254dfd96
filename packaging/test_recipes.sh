#!/bin/bash
# What can be known of the recipes without their tools: the Spack recipe is Python and names what CMake looks for; the two container recipes build and
# install in the same way, and copy files that exist. packaging/test_containerfile.sh carries one out.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
recipe=packaging/spack/spack_repo/reshard/packages/reshard/package.py

stop() {
  echo "test_recipes: $*" >&2
  exit 1
}

python3 - "$recipe" <<'PYTHON' || stop "$recipe is no Python, or longer than 150 columns"
import ast, sys
text = open(sys.argv[1]).read()
ast.parse(text)
sys.exit(any(len(line) > 150 for line in text.splitlines()))
PYTHON
version=$(sed -n 's/^project(reshard VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
grep -qF "version(\"$version\")" "$recipe" || stop "$recipe does not have version $version of CMakeLists.txt"
while read -r found named; do
  grep -q "$found" cmake/dependencies.cmake || stop "cmake/dependencies.cmake does not look for $found any more: correct this list"
  grep -q "depends_on(\"${named}[@: \"]" "$recipe" || stop "$recipe does not depend on $named, which cmake/dependencies.cmake looks for"
done <<'LIST'
MPI mpi
HDF5 hdf5
tomlplusplus tomlplusplus
fmt fmt
CLI11 cli11
simdjson simdjson
ZLIB zlib-api
OpenSSL openssl
libxxhash xxhash
yaml-0.1 libyaml
libisal isa-l
libseccomp libseccomp
GTest googletest
CUDAToolkit cuda
nccl.h nccl
PkgConfig pkgconfig
LIST
known=$(grep -oE '(find_package|pkg_check_modules)\([A-Za-z0-9]+' cmake/dependencies.cmake | sed 's/.*(//' | sort -u | grep -vxE 'Threads|benchmark|MPI|HDF5|tomlplusplus|fmt|CLI11|simdjson|ZLIB|OpenSSL|XXHASH|YAML|ISAL|SECCOMP|GTest|CUDAToolkit|PkgConfig|spdlog' || true)
[[ -z $known ]] || stop "cmake/dependencies.cmake looks for $known: name it in $recipe and in this script"

# shellcheck disable=SC2016 # the text of the recipe
steps() { sed -E 's/^ *(RUN )?//; s/"\$RESHARD_COMMIT"/unknown/' | grep -E '^(apt-get|RESHARD_COMMIT)'; }
[[ $(steps <packaging/Containerfile) == "$(steps <packaging/reshard.def)" ]] || stop "Containerfile and reshard.def do not run the same commands"
[[ $(steps <packaging/Containerfile | wc -l) -eq 2 ]] || stop "Containerfile does not have the two steps that this script knows"
grep -qxF '    bash /usr/share/reshard/try_sample.sh /usr' packaging/reshard.def || stop "reshard.def does not try what it made"
grep -q 'try_sample.sh DESTINATION share/reshard' cmake/install.cmake || stop "try_sample.sh is not installed, which reshard.def runs"
[[ -x packaging/make_package.sh ]] || stop "packaging/make_package.sh, which the recipes run, cannot be run"
echo "test_recipes: the recipes agree with the build and with each other"
