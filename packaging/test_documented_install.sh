#!/bin/bash
# Carries out the commands of docs/installing.md, "From a source tree", as they stand there, in a fresh clone of what is committed; only the folder to
# install into is another one.
#   packaging/test_documented_install.sh SOURCE_FOLDER
set -euo pipefail
source=$(realpath "$1")
if ! git -C "$source" rev-parse HEAD >/dev/null 2>&1; then
  echo "$source is no git clone: skipped" >&2
  exit 77
fi
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
git clone --quiet "$source" "$stage/clone"
cd "$stage/clone"
commands=$(awk '/^## /{in_part = ($0 == "## From a source tree")} in_part && /^```$/{exit} in_part && in_block {print} in_part && /^```sh$/{in_block = 1}' docs/installing.md)
for word in install_packages.sh build.sh "cmake --install" try_sample.sh; do
  [[ $commands == *"$word"* ]] || { echo "docs/installing.md no longer says '$word' in its first block" >&2; exit 1; }
done
bash -euxo pipefail -c "${commands//\/opt\/reshard/$stage/prefix}"
[[ -s $stage/prefix/share/man/man1/reshard.1 ]] || { echo "no manual page was installed" >&2; exit 1; }
