#!/bin/bash
# Installs a build folder into a folder of its own, works with what lies there and only that, and takes it away again.
#   packaging/test_install.sh BUILD_FOLDER
set -euo pipefail
build=$(realpath "$1")
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
stage=$(mktemp -d)
prefix=$stage/first
list=$build/install_manifest.txt
[[ ! -e $list ]] || cp -p "$list" "$stage/list-before" # somebody may have installed from this build folder

finish() {
  if [[ -e $stage/list-before ]]; then cp -p "$stage/list-before" "$list"; else rm -f "$list"; fi
  rm -rf "$stage"
}
trap finish EXIT

stop() {
  echo "test_install: $*" >&2
  exit 1
}

cmake --install "$build" --prefix "$prefix" >"$stage/log" || stop "cmake --install failed: $(tail -3 "$stage/log")"
for path in bin/reshard share/reshard/models/mcore.toml share/reshard/jobs/megatron-to-huggingface.toml share/reshard/slurm/reshard.sbatch \
  share/man/man1/reshard.1 share/man/man5/reshard.toml.5 share/bash-completion/completions/reshard share/doc/reshard/README.md share/doc/reshard/docs/architecture.md share/doc/reshard/LICENSE share/doc/reshard/copyright; do
  [[ -s $prefix/$path ]] || stop "$path was not installed"
done
[[ -x $prefix/share/reshard/slurm/reshard.sbatch || ! -x $here/../slurm/reshard.sbatch ]] || stop "reshard.sbatch lost its mode"

# It must work from wherever it is moved to, with the maps beside it: one that is not there any more must be missed.
mv "$prefix" "$stage/moved"
"$stage/moved/share/reshard/try_sample.sh" || stop "the installed program does not work in $stage/moved"
mv "$stage/moved/share/reshard/models" "$stage/models"
if "$stage/moved/bin/reshard" check-map qwen3_moe >"$stage/log" 2>&1; then stop "maps are found that were not installed"; fi
grep -q 'share/reshard/models' "$stage/log" || stop "the message about missing maps does not name the folder: $(<"$stage/log")"
mv "$stage/models" "$stage/moved/share/reshard/models"
mv "$stage/moved" "$prefix"

touch "$prefix/share/reshard/jobs/mine.toml"
cmake -P "$build/uninstall.cmake" >"$stage/log" || stop "uninstalling failed: $(tail -3 "$stage/log")"
left=$(cd "$prefix" && find . -type f -o -type l)
[[ $left == ./share/reshard/jobs/mine.toml ]] || stop "uninstalling left or took the wrong files: $left"
rm "$prefix/share/reshard/jobs/mine.toml"
echo "test_install: installed, used and removed"
