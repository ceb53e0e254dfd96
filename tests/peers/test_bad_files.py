"""Files that are not what they seem: pickles, zip archives, safetensors files and their index. Nothing in them may be executed or believed."""

import json

import pytest

import bad_bytes
from bad_job import SOURCE, Case, with_ranks
from bad_sources import FILES, INDEX, shard

SHARD = "mp_rank_01/model_optim_rng.pt"
NORM = "model.norm.weight"


def in_shard(change, *arguments):
    return lambda tree: change(shard(tree, "mp_rank_01"), *arguments)


def in_file(change, *arguments):
    return lambda folder: change(folder / "model.safetensors", *arguments)


def header(edit):
    return in_file(bad_bytes.edit_header, edit)


def cut(length):
    def damage(folder):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:length])

    return damage


def index(change):
    """`change` edits the index in place, or gives a text that takes its place."""
    def damage(folder):
        content = json.loads((folder / INDEX).read_text())
        new = change(content)
        (folder / INDEX).write_text(new if isinstance(new, str) else json.dumps(content))

    return damage


def place(file):
    return index(lambda content: content["weight_map"].update({NORM: file}))


def with_another(path):
    content, data = bad_bytes.read_parts(path)
    content["model.mystery.weight"] = {"dtype": "U8", "shape": [4], "data_offsets": [len(data), len(data) + 4]}
    bad_bytes.write_parts(path, content, data + b"more")


def without_last(path):
    content, data = bad_bytes.read_parts(path)
    last = bad_bytes.by_offset(content)[-1]
    begin, _ = content.pop(last)["data_offsets"]
    bad_bytes.write_parts(path, content, data[:begin])


PICKLE_SAYS = {
    "deep nesting": ("pickle byte",), "deep marks": ("pickle byte",), "huge long": ("2147483647", "1024"), "missing stop": ("1 more bytes",),
    "empty": ("1 more bytes",), "memo bomb": ("dict",), "memo bomb in args": (), "not a dict": ("dict",), "string beyond the end": ("4294967295",),
}
CASES = [
    *[Case(f"pickle: {name}", "flat", (SHARD, *PICKLE_SAYS[name]), in_shard(bad_bytes.with_pickle, pickle)) for name, pickle in bad_bytes.PICKLES.items()],
    Case("zip: central directory misplaced", "flat", (SHARD, "zip"), in_shard(bad_bytes.wrong_central_directory)),
    Case("zip: entry points elsewhere", "flat", (SHARD, "zip"), in_shard(bad_bytes.wrong_local_header)),
    Case("zip: deflated", "flat", (SHARD, "compressed (method 8)"), in_shard(bad_bytes.deflated)),
    Case("zip: encrypted", "flat", (SHARD, "encrypted"), in_shard(bad_bytes.encrypted)),
    Case("zip: storage missing", "flat", (SHARD, 'storage "0"', "no such"), in_shard(bad_bytes.without_record)),
    Case("zip: storage short", "flat", (SHARD, 'storage "0"', "1536 elements", "3070 bytes"), in_shard(bad_bytes.short_record)),
    Case("zip: big-endian", "flat", (SHARD, "big"), in_shard(bad_bytes.big_endian)),
    *[Case(f"safetensors: cut to {length}", "hf", ("model.safetensors", "bytes"), cut(length)) for length in (0, 7, 8, 100, 5000, -1)],
    Case("safetensors: more bytes than tensors", "hf", ("model.safetensors", "16"), in_file(bad_bytes.extra_bytes)),
    Case("safetensors: overlap", "hf", ("model.safetensors", "5758", "5760", "overlaps"), header(bad_bytes.overlap)),
    Case("safetensors: hole", "hf", ("model.safetensors", "73536", "73472", "no tensor"), header(bad_bytes.hole)),
    Case("safetensors: wrong size", "hf", (NORM, "62", "64"), header(bad_bytes.wrong_size)),
    Case("safetensors: header beyond the file", "hf", ("model.safetensors", "bytes"), in_file(bad_bytes.length_beyond_the_file)),
    Case("safetensors: huge header", "hf", ("model.safetensors", "18446744073709551615"), in_file(bad_bytes.huge_length)),
    Case("safetensors: name twice", "hf", (NORM, "twice"), header(bad_bytes.twice)),
    Case("safetensors: dtype", "hf", (NORM, "BF17"), header(bad_bytes.bad_dtype)),
    Case("safetensors: shape overflow", "hf", (NORM,), header(bad_bytes.shape_overflow)),
    Case("safetensors: negative shape", "hf", (NORM, "-32"), header(bad_bytes.negative_shape)),
    Case("safetensors: not JSON", "hf", ("model.safetensors", "JSON"), header(bad_bytes.no_json)),
    Case("safetensors: nested header", "hf", ("model.safetensors",), header(bad_bytes.nested)),
    Case("safetensors: unknown tensor", "hf", ("model.safetensors", "model.mystery.weight"), in_file(with_another)),
    Case("safetensors: tensor missing", "hf", ("lacks", NORM), in_file(without_last)),
    Case("index: file above the folder", "hf2", (INDEX, NORM, "../model.safetensors"), place("../model.safetensors")),
    Case("index: absolute file", "hf2", (INDEX, NORM, "/etc/passwd"), place("/etc/passwd")),
    Case("index: missing file", "hf2", ("none.safetensors",), place("none.safetensors")),
    Case("index: file is gone", "hf2", (FILES[1],), lambda folder: (folder / FILES[1]).unlink()),
    Case("index: tensor in the other file", "hf2", (NORM, FILES[0], FILES[1]),
         index(lambda content: content["weight_map"].update({NORM: FILES[1 - FILES.index(content["weight_map"][NORM])]}))),
    Case("index: not JSON", "hf2", (INDEX, "JSON"), index(lambda content: "{")),
    Case("index: an array", "hf2", (INDEX,), index(lambda content: "[]")),
    Case("index: no weight_map", "hf2", (INDEX, "weight_map"), index(lambda content: "{}")),
    Case("index: file is a number", "hf2", (INDEX, NORM), place(5)),
    Case("index: tensor not named", "hf2", (NORM,), index(lambda content: content["weight_map"].pop(NORM) and None)),
    Case("index: tensor in no file", "hf2", ("model.extra.weight",), index(lambda content: content["weight_map"].update({"model.extra.weight": FILES[0]}))),
    Case("config: not JSON", "hf", ("config.json", "JSON"), lambda folder: (folder / "config.json").write_text("{]")),
    Case("config: gone", "hf", ("config.json",), lambda folder: (folder / "config.json").unlink()),
]


@pytest.mark.long_but("*-3", "pickle: memo bomb-1", "safetensors: overlap-1", "index: file above the folder-1", "config: not JSON-1")
@with_ranks(CASES)
def test_a_refused_file(case, ranks, bad_jobs):
    case.check(bad_jobs, ranks)


def whole(call):
    return b"\x80\x02" + call + b"."


def as_args(call):
    return bad_bytes.shard_pickle(call)


def inside_args(call):
    return bad_bytes.shard_pickle(bad_bytes.namespace("x", call))


def as_model(call):
    return bad_bytes.shard_pickle(bad_bytes.namespace("x", b"N"), b"}" + bad_bytes.text_of("w") + call + b"s")


@pytest.mark.long_but("whole-bare", "as_args-zip", "inside_args-zip", "as_model-zip")
@pytest.mark.parametrize("packed", [True, False], ids=["zip", "bare"])
@pytest.mark.parametrize("where", [whole, as_args, inside_args, as_model])
def test_a_call_in_a_pickle_is_never_made(where, packed, bad_jobs, scratch):
    marker = scratch / "executed"
    pickle = where(bad_bytes.system_call(f"touch {marker}"))

    def damage(tree):
        path = shard(tree, "mp_rank_01")
        bad_bytes.with_pickle(path, pickle) if packed else path.write_bytes(pickle)

    Case("call", "flat", (SHARD,), damage, SOURCE).check(bad_jobs, 1)
    assert not marker.exists()
