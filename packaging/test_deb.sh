#!/bin/bash
# Makes the Debian package of a build folder, installs it with apt in a clean Debian system, works with it there, and removes it again.
# Downloads about 200 MiB from the mirror that apt uses here; needs root and debootstrap. Exit code 77: this machine cannot do it.
#   packaging/test_deb.sh [--if-asked] BUILD_FOLDER     --if-asked: skipped unless RESHARD_PACKAGE_TESTS=1
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
# shellcheck source=packaging/clean_root.sh
source "$here/clean_root.sh"

skip() {
  echo "test_deb: skipped: $*"
  exit 77
}

stop() {
  echo "test_deb: $*" >&2
  exit 1
}

say() { printf '== %3d s  %s\n' "$SECONDS" "$*"; }

if [[ ${1:-} == --if-asked ]]; then
  [[ ${RESHARD_PACKAGE_TESTS:-} == 1 ]] || skip "it downloads a Debian system; RESHARD_PACKAGE_TESTS=1 asks for it"
  shift
fi
build=$(realpath "$1")
reason=$(why_no_clean_root)
[[ -z $reason ]] || skip "$reason"

work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
root=$work/root

say "cpack"
cpack --config "$build/CPackConfig.cmake" -B "$work/packages" >"$work/log" 2>&1 || stop "cpack failed: $(tail -5 "$work/log")"
package=$(find "$work/packages" -maxdepth 2 -name '*.deb')
[[ $(wc -l <<<"$package") -eq 1 && -s $package ]] || stop "cpack did not make one package but '$package'"
name=$(dpkg-deb -f "$package" Package)
depends=$(dpkg-deb -f "$package" Depends)
say "$(basename "$package"), $(stat -c %s "$package") bytes; needs $depends"
for library in libopenmpi libhdf5-openmpi libfmt libspdlog libsimdjson libssl libisal libseccomp libxxhash libyaml openmpi-bin; do
  [[ $depends == *$library* || $library == libspdlog || $library == libxxhash ]] || stop "$library is not among what the package needs: $depends"
done
if dpkg-deb --fsys-tarfile "$package" | tar -xO ./usr/bin/reshard | grep -qaF "$(realpath "$here/..")/configs"; then
  stop "the program in the package knows the folder it was built in"
fi

say "debootstrap"
make_clean_root "$root" >"$work/log" 2>&1 || stop "debootstrap failed: $(tail -5 "$work/log")"

say "the libraries it needs, with apt"
cp "$package" "$root/reshard.deb"
in_root "$root" apt-get update -qq >"$work/log" 2>&1 || stop "apt-get update failed: $(tail -5 "$work/log")"
in_root "$root" apt-get install -y -qq --no-install-recommends /reshard.deb >"$work/log" 2>&1 || stop "apt cannot install the package: $(tail -5 "$work/log")"
in_root "$root" dpkg --verify "$name" || stop "installed files are not those of the package"

say "at work"
in_root "$root" bash /usr/share/reshard/try_sample.sh || stop "the installed program does not work"
missing=$(in_root "$root" ldd /usr/bin/reshard | grep -F 'not found' || true)
[[ -z $missing ]] || stop "libraries are missing: $missing"
for page in man1/reshard.1.gz man5/reshard.toml.5.gz; do
  gzip -t "$root/usr/share/man/$page" || stop "the manual page $page is not there, or not compressed"
done

say "removing it"
in_root "$root" dpkg -L "$name" >"$work/listed"
in_root "$root" apt-get purge -y -qq "$name" >"$work/log" 2>&1 || stop "apt cannot remove the package: $(tail -5 "$work/log")"
left=$(while IFS= read -r path; do [[ -d $root$path && ! -L $root$path && $path != *reshard* ]] || ls -d "$root$path" 2>/dev/null || true; done <"$work/listed")
left+=$(cd "$root" && find . -xdev -name '*reshard*' ! -path ./reshard.deb ! -path './var/lib/apt/*' ! -path './var/cache/*')
[[ -z $left ]] || stop "left behind: $left"
say "the package was installed, used and removed in a clean $(debian_mirror | cut -d' ' -f2)"
