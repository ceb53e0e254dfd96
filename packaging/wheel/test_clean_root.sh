#!/bin/bash
# Installs a wheel in a Debian system that has Python and nothing else, and times it from nothing to the first result. Downloads about 100 MiB; needs root and
# debootstrap. Exit code 77: this machine cannot do it.
#   packaging/wheel/test_clean_root.sh [WHEEL [CODENAME]]     default: the newest in build/dist, and the Debian release of this machine
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
# shellcheck source=packaging/clean_root.sh
source "$root/packaging/clean_root.sh"

skip() {
  echo "test_clean_root: skipped: $*"
  exit 77
}

stop() {
  echo "test_clean_root: $*" >&2
  exit 1
}

began=$(date +%s%N)
say() { awk -v ns="$(($(date +%s%N) - began))" -v text="$*" 'BEGIN { printf "== %6.1f s  %s\n", ns / 1e9, text }'; }

wheel=${1:-$(find "$root/build/dist" -name 'reshard-*.whl' 2>/dev/null | sort | tail -1)}
[[ -n $wheel ]] || skip "no wheel in build/dist. packaging/wheel/build.sh makes one."
reason=$(why_no_clean_root)
[[ -z $reason ]] || skip "$reason"
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT

make_clean_root "$work/root" "${2:-}" >"$work/log" 2>&1 || stop "debootstrap failed: $(tail -5 "$work/log")"
in_root "$work/root" apt-get update -qq >"$work/log" 2>&1 || stop "apt-get update failed: $(tail -5 "$work/log")"
in_root "$work/root" apt-get install -y -qq --no-install-recommends python3-venv >"$work/log" 2>&1 || stop "apt cannot install python3-venv: $(tail -5 "$work/log")"
cp "$wheel" "$work/root/"
# The packages that the wheel requires come along, so that the clean system needs no settings of pip.
python=$(in_root "$work/root" python3 -c 'import platform; print(platform.python_version())')
python3 -m pip download -q --disable-pip-version-check --only-binary :all: --python-version "$python" --dest "$work/root/wheels" "${wheel}[numpy]" >"$work/log" 2>&1 ||
  skip "pip cannot download what the wheel requires: $(tail -1 "$work/log")"
cp -r "$root/tests/data/moe-tp2-pp2-ep2" "$root/tests/data/moe-hf-reference" "$work/root/opt/"
cp "$root/packaging/wheel/test_module.py" "$work/root/opt/"
cat >"$work/root/opt/job.toml" <<'TOML'
[source]
path = "/opt/moe-tp2-pp2-ep2"
optimizer = "drop"
rng = "drop"

[target]
path = "/tmp/huggingface"
format = "huggingface"
reference = "/opt/moe-hf-reference"
TOML
for tool in cc g++ mpirun cmake; do
  if in_root "$work/root" sh -c "command -v $tool" >/dev/null; then stop "the clean system has $tool"; fi
done
say "a system with $(in_root "$work/root" ldd --version | head -1) and Python $python; the clock starts again"
began=$(date +%s%N)
in_root "$work/root" python3 -m venv /opt/env || stop "no virtual environment"
in_root "$work/root" /opt/env/bin/pip install -q --no-index --find-links /wheels reshard >"$work/log" 2>&1 || stop "pip cannot install the wheel: $(tail -5 "$work/log")"
say "installed"
in_root "$work/root" /opt/env/bin/reshard inspect /opt/moe-tp2-pp2-ep2 >"$work/log" || stop "inspect failed: $(tail -5 "$work/log")"
say "first inspect, $(wc -l <"$work/log") lines"
in_root "$work/root" sh -c '/opt/env/bin/reshard run /opt/job.toml && /opt/env/bin/reshard verify /opt/moe-tp2-pp2-ep2 /tmp/huggingface' >"$work/log" 2>&1 || stop "run or verify failed: $(tail -5 "$work/log")"
say "first run and verify, $(wc -l <"$work/log") lines"
in_root "$work/root" sh -c '/opt/env/bin/pip install -q --no-index --find-links /wheels "reshard[numpy]" &&
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 /opt/env/bin/python /opt/test_module.py /opt' ||
  stop "the Python module failed"
say "the Python module, with two ranks"
