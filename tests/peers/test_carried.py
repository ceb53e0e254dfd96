"""What a target's pickles name: no code of a source, and no class that is not known to be plain data unless the job says so.

Whoever loads a target imports what its pickles name and calls what they call, so the program refuses what it does not know."""

import io
import os
import pickle
import pickletools
import random
import re
import shutil
import zipfile
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp

import bad_bytes
import dcp_reading
import unknown_classes
from bad_bytes import text_of
from numpy_megatron import SHARD_FILE

DATA = Path(__file__).resolve().parent.parent / "data"
SAMPLE = DATA / "moe-tp2-pp2-ep2"
ATTRIBUTE = "rotary_seq_len_interpolation_factor"
DROPPED_STATE = {"optimizer": "drop", "rng": "drop"}
TARGETS = {"megatron": {"layout": "{ tp = 1 }"}, "torch_dist": {"layout": "{ tp = 1 }"}, "fsdp_dtensor": {"layout": "{ tp = 1 }"}}

PLAIN = {
    "__builtin__ bytes", "__builtin__ set", "_codecs encode", "_io BytesIO", "argparse Namespace", "collections OrderedDict",
    "megatron.core.enums ModelType", "megatron.core.transformer.enums AttnBackend", "numpy dtype", "numpy ndarray",
    "numpy._core.multiarray _reconstruct", "signal Signals", "torch BFloat16Storage", "torch ByteStorage", "torch FloatStorage", "torch LongStorage",
    "torch Size", "torch bfloat16", "torch float32", "torch._utils _rebuild_tensor_v2", "torch.storage UntypedStorage"}


# --- holes ------------------------------------------------------------------------------------------------------------


def call(function, command):
    module, name = function
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n(" + text_of(command) + b"tR"


HOLES = {  # name -> (opcodes that run a command when they are unpickled, what the refusal names)
    "a function": (lambda command: call(("os", "system"), command), "os.system"),
    "a dotted name": (lambda command: call(("pathlib", "os.system"), command), "pathlib.os.system"),
    "a dotted name of a foreign module": (lambda command: call(("our_framework", "os.system"), command), "our_framework.os.system"),
    "an argument that torch calls":
        (lambda command: b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\nc__builtin__\nint\n(" + text_of(command) + b"tNtR", "os.system"),
    "an argument that a dict calls": (lambda command: b"ccollections\ndefaultdict\ncos\nsystem\n\x85R", "os.system"),
    "a package that evaluates": (lambda command: call(("sympy", "sympify"), f"__import__('os').system('{command}')"), "sympy.sympify"),
}
FOREIGN = b"cunknown_classes\nPlain\n)\x81}" + text_of("x") + b"K\x01sb"


def planted(folder, value):
    """The sample with these opcodes as an attribute of args, in every shard."""
    shutil.copytree(SAMPLE, folder)
    key = re.escape(text_of(ATTRIBUTE)) + b"(q.|r....)N"
    for path in folder.rglob(SHARD_FILE):
        with zipfile.ZipFile(path) as archive:
            name = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            old = archive.read(name)
        new, count = re.subn(key, lambda match: match.group()[:-1] + value, old, flags=re.DOTALL)
        assert count == 1
        bad_bytes.with_pickle(path, new)
    return folder


def torch_archives(root):
    """The bytes of every torch file and item below a folder."""
    for path in sorted(Path(root).rglob("*")):
        if path.suffix == ".pt":
            yield path.name, path.read_bytes()
    for path in sorted(Path(root).rglob(".metadata")):
        yield from dcp_reading.object_bytes(path.parent).items()


def pickles(root):
    for name, data in torch_archives(root):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            yield name, archive.read(next(entry for entry in archive.namelist() if entry.endswith("/data.pkl")))


def names_in(root):
    """Every class and function that a target's pickles name; each that is named by two strings would be missed, so there are none."""
    found = set()
    for name, data in pickles(root):
        for opcode, argument, _ in pickletools.genops(data):
            assert opcode.name not in ("STACK_GLOBAL", "INST", "OBJ", "EXT1", "EXT2", "EXT4"), (name, opcode.name)
            if opcode.name == "GLOBAL":
                found.add(argument)
    return found


def args_of(root):
    if shards := sorted(Path(root).rglob(SHARD_FILE)):
        return torch.load(shards[0], weights_only=False)["args"]
    if common := sorted(Path(root).rglob("common.pt")):
        return torch.load(common[0], weights_only=False)["args"]
    return dcp_reading.objects(next(Path(root).rglob(".metadata")).parent)["args"]


# --- args -------------------------------------------------------------------------------------------------------------


@pytest.mark.long_but(
    "a function-refuse", "a dotted name of a foreign module-keep", "an argument that torch calls-refuse", "a package that evaluates-keep")
@pytest.mark.parametrize("choice", ["refuse", "keep"])
@pytest.mark.parametrize("hole", HOLES)
def test_code_in_args_is_refused_whatever_the_job_says(hole, choice, program, scratch):
    opcodes, named = HOLES[hole]
    marker = scratch / "executed"
    source = planted(scratch / "source", opcodes(f"touch {marker}"))
    outcome = program.attempt(
        source, scratch / "there", "megatron", ranks=1, source_options=DROPPED_STATE, target_options=TARGETS["megatron"], model={"foreign_classes": choice})
    assert outcome.returncode == 3, outcome.stdout + outcome.stderr
    assert f'"{named}"' in outcome.stderr and "'args'" in outcome.stderr
    assert not (scratch / "there").exists() and not marker.exists()


@pytest.mark.long_but("a dotted name-torch_dist", "an argument that torch calls-megatron")
@pytest.mark.parametrize("target_format", TARGETS)
@pytest.mark.parametrize("hole", ["a dotted name", "an argument that torch calls"])
def test_code_in_args_can_be_left_out(hole, target_format, program, scratch):
    opcodes, named = HOLES[hole]
    marker = scratch / "executed"
    source = planted(scratch / "source", opcodes(f"touch {marker}"))
    options = dict(ranks=1, source_options=DROPPED_STATE, target_options=TARGETS[target_format])
    assert program.attempt(source, scratch / "refused", target_format, **options).returncode == 3
    outcome = program.attempt(source, scratch / "there", target_format, model={"foreign_classes": "drop"}, **options)
    assert outcome.returncode == 0, outcome.stderr
    assert f"args.{ATTRIBUTE}" in outcome.stderr and named in outcome.stderr
    args = args_of(scratch / "there")
    assert not hasattr(args, ATTRIBUTE) and args.num_layers == 4 and not marker.exists()
    assert names_in(scratch / "there") - PLAIN == set()


def test_a_class_of_another_package_in_args(program, scratch):
    source = planted(scratch / "source", FOREIGN)
    options = dict(ranks=1, source_options=DROPPED_STATE, target_options=TARGETS["megatron"])
    outcome = program.attempt(source, scratch / "there", "megatron", **options)
    assert outcome.returncode == 3
    assert '"unknown_classes.Plain"' in outcome.stderr and "foreign_classes" in outcome.stderr
    program.run(source, scratch / "kept", "megatron", model={"foreign_classes": "keep"}, **options)
    assert vars(args_of(scratch / "kept"))[ATTRIBUTE] == unknown_classes.Plain(x=1)
    assert names_in(scratch / "kept") - PLAIN == {"unknown_classes Plain"}
    outcome = program.attempt(source, scratch / "left", "megatron", model={"foreign_classes": "drop"}, **options)
    assert outcome.returncode == 0 and f"args.{ATTRIBUTE}" in outcome.stderr
    assert not hasattr(args_of(scratch / "left"), ATTRIBUTE)


@pytest.mark.long_but("megatron", "torch_dist")
@pytest.mark.parametrize("target_format", TARGETS)
def test_a_target_names_only_what_is_known_to_be_plain_data(target_format, program, scratch):
    there = program.run(SAMPLE, scratch / "there", target_format, source_options=DROPPED_STATE, target_options=TARGETS[target_format])
    named = names_in(there)
    assert {"argparse Namespace", "torch bfloat16"} <= named and named - PLAIN == set()


# --- the common state -------------------------------------------------------------------------------------------------


def with_common(root, change):
    """Changes the common state of a torch_dist checkpoint."""
    path = next(Path(root).rglob("common.pt"))
    content = torch.load(path, weights_only=False)
    change(content)
    torch.save(content, path)


class Runs:
    """Unpickling it runs a command."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("model_map", ["auto", "none"])
def test_the_common_state(model_map, program, scratch):
    marker = scratch / "executed"
    source = program.run(SAMPLE, scratch / "source", "torch_dist", source_options=DROPPED_STATE, target_options=TARGETS["torch_dist"])
    with_common(source, lambda content: content.update(note=Runs(f"touch {marker}"), settings=unknown_classes.Plain(x=1)))
    layout = {} if model_map == "none" else TARGETS["torch_dist"]
    options = dict(ranks=1, target_options=layout)
    for choice in ("refuse", "keep"):
        outcome = program.attempt(source, scratch / "there", "torch_dist", model={"map": model_map, "foreign_classes": choice}, **options)
        assert outcome.returncode == 3 and '"posix.system"' in outcome.stderr, outcome.stderr
    there = program.run(source, scratch / "left", "torch_dist", model={"map": model_map, "foreign_classes": "drop"}, **options)
    content = torch.load(next(there.rglob("common.pt")), weights_only=False)
    assert content["args"].num_layers == 4 and not {"note", "settings"} & set(content) and not marker.exists()
    assert names_in(there) - PLAIN == set()


def test_what_a_pickle_drops_does_not_travel_with_its_bytes(program, scratch):
    """The common state is copied as it is where nothing in it changes: then all that its bytes hold counts, and else it is written again."""
    marker = scratch / "executed"
    source = program.run(SAMPLE, scratch / "source", "torch_dist", source_options=DROPPED_STATE, target_options=TARGETS["torch_dist"])
    path = next(source.rglob("common.pt"))
    bad_bytes.repacked(path, lambda name, data: b"\x80\x02cantigravity\nfly\n0" + data[2:] if name == "data.pkl" else data)
    there = program.run(source, scratch / "there", "torch_dist", ranks=1, model={"map": "none"})
    assert names_in(there) - PLAIN == set() and not marker.exists()


# --- objects of DCP checkpoints ---------------------------------------------------------------------------------------


def state():
    """Objects as frameworks store them: generators' states, bytes, parameter groups, settings."""
    numpy_state = numpy.random.RandomState(7).get_state()
    return {
        "weight": torch.arange(6.0),
        "rng_state": [{"random": random.Random(7).getstate(), "numpy": numpy_state, "torch": torch.arange(16, dtype=torch.uint8)}],
        "extra_state": io.BytesIO(pickle.dumps({"scale": 1.5})),
        "optim": {"param_groups": [{"lr": 1e-4, "betas": (0.9, 0.95), "params": [0, 1], "fused": None}]},
        "shape": torch.Size([2, 3]), "dtype": torch.bfloat16, "step": 5, "names": {"a", "b"}, "raw": b"\x00\xff",
    }


def saved(folder, **more):
    dcp.save(state() | more, checkpoint_id=str(folder), no_dist=True)
    return folder


def test_honest_objects_are_carried(program, scratch):
    source = saved(scratch / "source")
    there = program.run(source, scratch / "there", "dcp", ranks=3)
    assert dcp_reading.object_bytes(there) == dcp_reading.object_bytes(source)
    assert names_in(there) - PLAIN == set()


def test_an_object_that_runs_code_is_refused_by_name(program, scratch):
    marker = scratch / "executed"
    source = saved(scratch / "source", hook={"deep": [Runs(f"touch {marker}")]})
    place = next(place for index, place in dcp_reading.catalogue(source).storage_data.items() if index.fqn.startswith("hook"))
    for choice in ("refuse", "keep"):
        outcome = program.attempt(source, scratch / "there", "dcp", ranks=2, model={"foreign_classes": choice})
        assert outcome.returncode == 3, outcome.stderr
        assert '"posix.system"' in outcome.stderr and '"hook' in outcome.stderr and f"byte {place.offset}" in outcome.stderr
    outcome = program.attempt(source, scratch / "left", "dcp", model={"foreign_classes": "drop"})
    assert outcome.returncode == 0 and "hook" in outcome.stderr
    assert set(dcp_reading.object_bytes(scratch / "left")) == {key for key in dcp_reading.object_bytes(source) if not key.startswith("hook")}
    there = program.run(source, scratch / "unread", "dcp", source_options={"objects": "unread"})
    assert dcp_reading.object_bytes(there) == dcp_reading.object_bytes(source)
    assert not marker.exists()


def test_an_object_with_a_class_of_another_package(program, scratch):
    source = saved(scratch / "source", settings=unknown_classes.Plain(x=1))
    outcome = program.attempt(source, scratch / "there", "dcp")
    assert outcome.returncode == 3 and '"unknown_classes.Plain"' in outcome.stderr and "foreign_classes" in outcome.stderr
    there = program.run(source, scratch / "kept", "dcp", model={"foreign_classes": "keep"})
    assert dcp_reading.object_bytes(there) == dcp_reading.object_bytes(source)
    outcome = program.attempt(source, scratch / "left", "dcp", model={"foreign_classes": "drop"})
    assert outcome.returncode == 0 and "settings" not in dcp_reading.object_bytes(scratch / "left")


def test_objects_are_looked_at_on_the_way_back_from_hdf5(program, scratch):
    source = saved(scratch / "source", settings=unknown_classes.Plain(x=1))
    box = program.run(source, scratch / "box", "hdf5", source_options={"objects": "unread"})
    outcome = program.attempt(box, scratch / "there", "dcp")
    assert outcome.returncode == 3 and '"unknown_classes.Plain"' in outcome.stderr, outcome.stderr


def test_an_object_that_cannot_be_read_is_refused_by_name(program, scratch):
    source = saved(scratch / "source")
    place = next(place for index, place in dcp_reading.catalogue(source).storage_data.items() if index.fqn == "step")
    with open(source / place.relative_path, "r+b") as file:
        file.seek(place.offset)
        data = file.read(place.length)
        start = data.index(b"\x80\x02K\x05.")
        file.seek(place.offset + start)
        file.write(b"\x80\x02K\x06.")  # its checksum is another one now
    outcome = program.attempt(source, scratch / "there", "dcp")
    assert outcome.returncode == 3 and '"step"' in outcome.stderr and f"byte {place.offset}" in outcome.stderr and "unread" in outcome.stderr
    program.run(source, scratch / "unread", "dcp", source_options={"objects": "unread"})
