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
while IFS=$'\t' read -r name found _ _ _ named _; do
  [[ $name != name && $found != - ]] || continue
  grep -q "$found" cmake/dependencies.cmake || stop "cmake/dependencies.cmake does not look for $found any more: correct packaging/libraries.tsv"
  grep -q "depends_on(\"${named}[@: \"]" "$recipe" || stop "$recipe does not depend on $named, which cmake/dependencies.cmake looks for"
done <packaging/libraries.tsv

# shellcheck disable=SC2016 # the text of the recipe
steps() { sed -E 's/^ *(RUN )?//; s/"\$RESHARD_COMMIT"/unknown/' | grep -E '^(apt-get|RESHARD_COMMIT)'; }
[[ $(steps <packaging/Containerfile) == "$(steps <packaging/reshard.def)" ]] || stop "Containerfile and reshard.def do not run the same commands"
[[ $(steps <packaging/Containerfile | wc -l) -eq 2 ]] || stop "Containerfile does not have the two steps that this script knows"
grep -qxF '    bash /usr/share/reshard/try_sample.sh /usr' packaging/reshard.def || stop "reshard.def does not try what it made"
grep -q 'try_sample.sh DESTINATION share/reshard' cmake/install.cmake || stop "try_sample.sh is not installed, which reshard.def runs"
[[ -x packaging/make_package.sh ]] || stop "packaging/make_package.sh, which the recipes run, cannot be run"
echo "test_recipes: the recipes agree with the build and with each other"
