"""scripts/install_nccl.sh fetches NCCL where CMake finds a CUDA Toolkit, and nothing elsewhere."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "install_nccl.sh"


def program(path, text):
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("toolkit", [False, True])
def test_nccl_is_fetched_for_a_toolkit_alone(toolkit, tmp_path):
    """An nvcc on PATH is no toolkit. What would fetch is a stand-in."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    tools = tmp_path / "tools"
    tools.mkdir()
    program(tools / "nvcc", "exit 1")
    program(tools / "python3", f"touch {tmp_path}/fetched; exit 1")
    found = "set(CUDAToolkit_FOUND TRUE)\nset(CUDAToolkit_INCLUDE_DIRS /none /of these)\n" if toolkit else "set(CUDAToolkit_FOUND FALSE)\n"
    (tmp_path / "FindCUDAToolkit.cmake").write_text(found)
    program(tools / "cmake", f'exec {shutil.which("cmake")} "$@" -DCMAKE_MODULE_PATH={tmp_path}')
    program(tools / "g++", "exit 1")  # there is no nccl.h
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}", "CXX": shutil.which("g++")}
    outcome = subprocess.run([tmp_path / "scripts" / "install_nccl.sh"], capture_output=True, text=True, env=environment, timeout=120)
    assert (tmp_path / "fetched").exists() == toolkit, outcome.stdout + outcome.stderr
    assert ("no CUDA Toolkit" in outcome.stdout) != toolkit
