#!/bin/bash
# Makes what a release consists of: source archive, Python wheel, Debian package, recipes, build facts, bill of materials, checksums.
#   packaging/make_packages.sh [--out FOLDER] [--url URL] [PART…]
# FOLDER: default build/release-files. URL: where the source archive will be, for the recipes; default: the file itself.
# PART: wheel (with the source archive), deb, recipes, facts, sums; default: all of them, in this order. A part takes what an earlier one left in FOLDER.
# It needs what `scripts/install_packages.sh package` and `… wheel` install, and PyPI for the wheel's tools. docs/releasing.md is the checklist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

say() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

stop() {
  echo "packaging/make_packages.sh: $*" >&2
  exit 1
}

out=build/release-files
url=()
parts=()
while [[ $# -gt 0 ]]; do
  case "$1" in
    --out | --url)
      [[ $# -gt 1 ]] || stop "$1 needs a value"
      if [[ $1 == --out ]]; then out=$2; else url=(--url "$2"); fi
      shift
      ;;
    wheel | deb | recipes | facts | sums) parts+=("$1") ;;
    *) stop "'$1' is no part: choose from wheel, deb, recipes, facts, sums, after --out FOLDER and --url URL" ;;
  esac
  shift
done
[[ ${#parts[@]} -gt 0 ]] || parts=(wheel deb recipes facts sums)
mkdir -p "$out"
out=$(realpath "$out")
version=$(sed -n 's/^project(reshard VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)

# the_file PATTERN: the one file in the folder of this name; ends the script where there is none, or several.
the_file() {
  local found
  found=$(find "$out" -maxdepth 1 -name "$1")
  [[ -n $found && $(wc -l <<<"$found") -eq 1 ]] || stop "$out has not one $1 but '$found'. Make it first, or empty the folder."
  echo "$found"
}

wheel() { packaging/wheel/build.sh "$out" | sed 's/^/   /'; }

deb() {
  packaging/make_package.sh >"$out/.log" 2>&1 || stop "no Debian package: $(tail -5 "$out/.log")"
  rm -f "$out"/*.deb "$out/.log"
  cp build/package/packages/*.deb "$out/"
}

recipes() {
  local source
  source=$(the_file "reshard-$version.tar.gz")
  python3 packaging/make_recipes.py --source "$source" "${url[@]}" --out "$out"
}

# The program of the wheel or of the Debian package, or RESHARD_BIN, says how it was built.
facts() {
  local work program
  work=$(mktemp -d)
  program=${RESHARD_BIN:-}
  if [[ -z $program && -x build/package/pipeline/reshard ]]; then program=build/package/pipeline/reshard; fi
  [[ -n $program ]] || stop "no program was built here: make the part deb first, or name the program in RESHARD_BIN"
  "$program" --version --json >"$work/build.json" || stop "$program does not say how it was built"
  grep -qF "\"version\": \"$version\"" "$work/build.json" || stop "$program is not version $version, as CMakeLists.txt says: build it again"
  mv "$work/build.json" "$out/build.json"
  rm -rf "$work"
  mapfile -t files < <(find "$out" -maxdepth 1 -name 'reshard[-_]*' ! -name '*.cdx.json' | sort)
  python3 packaging/make_sbom.py --facts "$out/build.json" --out "$out/reshard-$version.cdx.json" "${files[@]}"
}

sums() {
  rm -f "$out/SHA256SUMS"
  (cd "$out" && find . -type f ! -path '*/.*' -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >.sums && mv .sums SHA256SUMS)
}

for part in "${parts[@]}"; do
  say "$part"
  "$part"
done
say "done"
(cd "$out" && find . -type f -printf '   %P  %s bytes\n' | LC_ALL=C sort)
