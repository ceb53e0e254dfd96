#!/bin/bash
# Measures what a newcomer waits for: seconds, processor seconds and lines of output from a system with nothing in it to the first `inspect` and the first
# `run`. Each way gets a Debian system of its own by debootstrap; needs root. Exit code 77: this machine cannot do it.
#   packaging/first_minute.sh wheel WHEEL | package DEB | build | quickstart-wheel WHEEL | quickstart-build
# wheel and quickstart-wheel: Python and its venv are there already. build: what apt downloads is part of it.
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
# shellcheck source=packaging/clean_root.sh
source "$root/packaging/clean_root.sh"

stop() {
  echo "first_minute: $*" >&2
  exit 1
}

way=${1:-}
file=${2:-}
case "$way" in
  wheel | package | quickstart-wheel) [[ -f $file ]] || stop "$way needs a file: '$file' is none" ;;
  build | quickstart-build) ;;
  *) stop "'$way' is no way: wheel WHEEL, package DEB, build, quickstart-wheel WHEEL or quickstart-build" ;;
esac
reason=$(why_no_clean_root)
if [[ -n $reason ]]; then
  echo "first_minute: skipped: $reason"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
system=$work/root
make_clean_root "$system" >"$work/log" 2>&1 || stop "debootstrap failed: $(tail -5 "$work/log")"
in_root "$system" apt-get update -qq >"$work/log" 2>&1 || stop "apt-get update failed: $(tail -5 "$work/log")"
mkdir "$system/source" "$system/wheels"
tar -C "$root" --exclude=./build --exclude=./.cache --exclude=./.git -c . | tar -x -C "$system/source"
if [[ $way == *wheel ]]; then
  in_root "$system" apt-get install -y -qq --no-install-recommends python3-venv >"$work/log" 2>&1 || stop "apt cannot install python3-venv: $(tail -5 "$work/log")"
  cp "$file" "$system/wheels/"
  # pip finds them where it would find PyPI, whatever this machine's settings of pip are.
  python3 -m pip download -q --disable-pip-version-check --only-binary :all: --python-version 3.11 --dest "$system/wheels" "$file" >"$work/log" 2>&1 ||
    stop "pip cannot download what the wheel requires: $(tail -1 "$work/log")"
  printf '[global]\nno-index = true\nfind-links = /wheels\n' >"$system/etc/pip.conf"
elif [[ $way == package ]]; then
  cp "$file" "$system/reshard.deb"
fi
cat >"$system/job.toml" <<'TOML'
[source]
path = "/source/tests/data/moe-tp2-pp2-ep2"
optimizer = "drop"
rng = "drop"

[target]
path = "/root/huggingface"
format = "huggingface"
reference = "/source/tests/data/moe-hf-reference"
TOML

began=$(date +%s%N)
lines=0
processor=0
# stage TEXT COMMAND: a shell line in the system; adds its lines and processor time, and prints the sums so far.
stage() {
  local code=0 user system_time
  { TIMEFORMAT='%U %S'; time in_root "$system" bash -euo pipefail -c "$2" >"$work/said" 2>&1; } 2>"$work/time" || code=$?
  [[ $code -eq 0 ]] || stop "$1: exit code $code: $(tail -5 "$work/said")"
  lines=$((lines + $(wc -l <"$work/said")))
  read -r user system_time <"$work/time"
  processor=$(awk -v a="$processor" -v b="$user" -v c="$system_time" 'BEGIN { print a + b + c }')
  awk -v what="$1" -v ns="$(($(date +%s%N) - began))" -v cpu="$processor" -v lines="$lines" \
    'BEGIN { printf "%-28s %7.1f s %7.1f s of processor %6d lines\n", what, ns / 1e9, cpu, lines }'
}

case "$way" in
  wheel)
    program=/root/environment/bin/reshard
    stage "installed" "python3 -m venv /root/environment && /root/environment/bin/pip install reshard"
    ;;
  package)
    program=/usr/bin/reshard
    stage "installed" "apt-get install -y --no-install-recommends /reshard.deb"
    ;;
  build)
    program=/source/build/quick/pipeline/reshard
    stage "packages" "cd /source && scripts/install_packages.sh build"
    stage "built" "cd /source && scripts/build.sh quick reshard"
    ;;
  quickstart-wheel) stage "quickstart.sh --wheel" "cd /source && scripts/quickstart.sh --wheel=/wheels/$(basename "$file")" ;;
  quickstart-build) stage "quickstart.sh --build" "cd /source && scripts/quickstart.sh --build" ;;
esac
if [[ $way == quickstart-* ]]; then
  sed 's/^/   /' "$work/said"
else
  stage "first inspect" "$program inspect /source/tests/data/moe-tp2-pp2-ep2"
  stage "first run" "$program run /job.toml"
fi
