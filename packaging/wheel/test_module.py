"""Checks the Python module `reshard` on the sample checkpoint: python test_module.py tests/data. Needs the extra `numpy`; works in a temporary folder."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import ml_dtypes
import numpy

import reshard

SAMPLES = Path(sys.argv[1]).resolve()
SOURCE = SAMPLES / "moe-tp2-pp2-ep2"
JOB = {
    "source": {"path": SOURCE, "optimizer": "drop", "rng": "drop"},
    "target": {"path": "from-python", "format": "huggingface", "reference": SAMPLES / "moe-hf-reference"},
}


def raises(kind, code, part, function, *arguments, **settings):
    try:
        function(*arguments, **settings)
    except kind as error:
        assert type(error) is kind, error
        assert error.code == code and part in error.sentence, error
    else:
        raise AssertionError(f"{function.__name__} did not raise {kind.__name__}")


def stored(name):
    """A tensor of the Hugging Face folder, read without the program."""
    for file in Path("from-python").glob("*.safetensors"):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        entry = json.loads(data[8 : 8 + size]).get(name)
        if entry:
            begin, end = entry["data_offsets"]
            return numpy.frombuffer(data[8 + size + begin : 8 + size + end], dtype=ml_dtypes.bfloat16).reshape(entry["shape"])
    raise AssertionError(f"no {name}")


def commands():
    found = reshard.inspect(SOURCE, expert_parallel_size=2)
    assert found["format"] == "megatron" and found["sound"] is True
    assert reshard.inspect(SOURCE, tensor_parallel_size=8)["sound"] is False

    planned = reshard.plan(JOB, set={"run.memory": "64 MiB"})
    assert planned["type"] == "plan" and not Path("from-python").exists()
    assert reshard.run(JOB)["type"] == "result"
    assert reshard.verify(SOURCE, "from-python")["same"] is True
    assert reshard.verify("from-python")["sound"] is True

    two = reshard.run(JOB, set={"target.path": "by-two"}, ranks=2)
    assert two["ranks"] == 2
    assert reshard.digest("by-two", ranks=2)["total"] == reshard.digest("from-python")["total"]

    raises(reshard.SourceError, 3, "does not exist", reshard.inspect, "nowhere")
    raises(reshard.TargetError, 4, "exists already", reshard.run, JOB)
    raises(reshard.JobError, 2, "unknown key", reshard.plan, JOB, set={"run.nothing": 1})
    raises(reshard.JobError, 2, "cannot hold", reshard.plan, {"source": {"path": object()}})
    raises(reshard.JobError, 2, "ranks", reshard.run, JOB, ranks=0)


def tensors():
    opened = reshard.open(SOURCE)
    assert "layer.3.experts.gate" in opened and "layer.3.nothing" not in opened
    info = opened.tensors["experts.gate"]
    layer = opened["layer.3.experts.gate"]
    assert layer.dtype == ml_dtypes.bfloat16 and layer.shape == info.shape[1:], (layer.shape, info)
    assert numpy.array_equal(layer.view("u2"), opened["experts.gate"][3].view("u2"))
    expert = opened["layer.3.expert.5.experts.gate"]
    assert numpy.array_equal(expert.view("u2"), stored("model.layers.3.mlp.experts.5.gate_proj.weight").view("u2"))
    expert[0, 0] = 1  # a private copy
    both = opened.read("experts.gate", "experts.up", layer=1)
    assert set(both) == {"experts.gate", "experts.up"} and both["experts.up"].shape == info.shape[1:]
    raises(reshard.JobError, 2, "layer", opened.read, "experts.gate", layer=99)
    try:
        opened["nothing"]
    except KeyError:
        pass
    else:
        raise AssertionError("a tensor that is not there was read")


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    commands()
    if subprocess.run([reshard.program_path(), "extract", "--help"], capture_output=True).returncode == 0:
        tensors()
    else:
        print("test_module: reshard.open was not tested: this program has no command extract")
