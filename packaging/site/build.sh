#!/bin/sh
# Builds docs/ as static pages with search: packaging/site/build.sh [FOLDER], build/site without one.
# FOLDER/VERSION has the pages of this tree's version; FOLDER/versions.json lists the versions that are there, and FOLDER/index.html leads to the newest.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
out=${1:-$root/build/site}
command -v python3 >/dev/null || { echo "build.sh: python3 is missing: apt-get install python3-venv" >&2; exit 1; }
version=$(sed -n 's/^project(reshard VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
[ -n "$version" ] || { echo "build.sh: CMakeLists.txt has no line project(reshard VERSION ...)" >&2; exit 1; }
environment=$root/build/site-environment
if ! cmp -s "$here/requirements.txt" "$environment/requirements.txt"; then
  python3 -m venv --clear "$environment" || { echo "build.sh: no virtual environment: apt-get install python3-venv" >&2; exit 1; }
  "$environment/bin/pip" install --quiet --requirement "$here/requirements.txt"
  cp "$here/requirements.txt" "$environment/requirements.txt"
fi
python3 "$here/stage.py" "$root/build/site-pages"
rm -rf "$out/$version"
RESHARD_SITE_VERSION=$version "$environment/bin/sphinx-build" --quiet --fail-on-warning --keep-going --fresh-env \
  -c "$here" -d "$root/build/site-cache" "$root/build/site-pages" "$out/$version"
python3 - "$out" <<'END'
import json, pathlib, sys
out = pathlib.Path(sys.argv[1])
names = sorted((p.parent.name for p in out.glob("*/index.html")), key=lambda name: [int(n) for n in name.split(".")], reverse=True)
(out / "versions.json").write_text(json.dumps(names) + "\n")
(out / "index.html").write_text(f'<!doctype html><title>reshard</title><meta http-equiv="refresh" content="0; url={names[0]}/index.html">\n')
END
echo "$out/$version/index.html"
