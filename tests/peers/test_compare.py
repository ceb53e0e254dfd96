"""`reshard verify A B` and `reshard diff A B`: every planted difference is found where it is, and nothing else; statistics are numpy's."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

import cases
import hf_models
from family_models import FAMILIES, save_family
from numpy_megatron import SHARD_FILE, iteration_folder, write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from reshard_job import BINARY, TIMEOUT_SECONDS
from tensor_patterns import make_globals

DATA = Path(__file__).parents[1] / "data"
DENSE = cases.QWEN3.with_(layers=3)
MOE = cases.QWEN3_MOE.with_(layers=3, experts=4)
LAYOUT = {DENSE: Layout(tp=2, pp=3), MOE: Layout(tp=2, pp=3, ep=2)}
FORM = {DENSE: LOCAL, MOE: TE_GROUPED}


def compare(command, a, b, *arguments, ranks=1):
    """Exit code, document, and what went to stderr."""
    line = [BINARY, command, str(a), str(b), "--json", *arguments]
    if ranks > 1:
        line = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *line]
    outcome = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert outcome.returncode in (0, 1, 2, 3), outcome.stderr
    return outcome.returncode, json.loads(outcome.stdout) if outcome.stdout else None, outcome.stderr


def tree(path, config, tensors, layout=None):
    return write_tree(path, config, layout or LAYOUT[config], FORM[config], tensors)


def folder(path, config, tensors):
    """A Hugging Face folder in several files."""
    return hf_models.save_hf(path, config, tensors, "40KB")


def flipped(tensors, name, element, bit=3):
    """The same tensors but for one bit."""
    changed = tensors[name].clone()
    changed.view(torch.uint8).reshape(-1)[element * changed.element_size()] ^= 1 << bit
    return tensors | {name: changed}


def rows(document):
    """By tensor and layer. A layer's name begins with its number."""
    assert all(("layer" in row) == (re.match(r"\w*layer\.\d+\.", row["name"]) is not None) for row in document["tensors"])
    return {(row["name"].removeprefix(f"layer.{row.get('layer')}."), row.get("layer")): row
            for row in document["tensors"] if row["differing"] + row["differing_in_replicas"] > 0}


def expected_difference(config, before, after):
    """Hugging Face name and flat index of the only element that differs."""
    a, b = hf_models.globals_to_hf(config, before), hf_models.globals_to_hf(config, after)
    found = [(name, int(i)) for name in a for i in torch.nonzero(a[name].flatten().view(torch.int16) != b[name].flatten().view(torch.int16))]
    assert len(found) == 1
    return found[0]


def index_of(config, hf_name, flat, row):
    """Along the logical axes: layer and expert stand in the name, the rest is the stored tensor's row-major order."""
    words = hf_name.split(".")
    front = [int(word) for word in words if word.isdigit()]
    return front + [int(i) for i in numpy.unravel_index(flat, row["shape"][len(front):])]


# --- the same model --------------------------------------------------------------------------------------------------


@pytest.mark.long_but("moe")
@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
def test_forms_of_one_model_are_the_same(config, program, scratch):
    tensors = make_globals(config)
    forms = {
        "hf": folder(scratch / "hf", config, tensors),
        "tree": tree(scratch / "tree", config, tensors),
        "other": tree(scratch / "other", config, tensors, Layout(tp=4)),
    }
    forms["dist"] = program.run(forms["tree"], scratch / "dist", "torch_dist")
    pairs = [("tree", "hf", 1), ("hf", "tree", 2), ("tree", "other", 3), ("dist", "hf", 4), ("other", "dist", 1), ("hf", "hf", 2)]
    pairs += [("dist", "dist", 1)]
    for a, b, ranks in pairs:
        for command in ("verify", "diff") if ranks == 1 else ("verify",):
            code, document, stderr = compare(command, forms[a], forms[b], ranks=ranks)
            assert code == 0 and document["same"], (a, b, document and document["summary"], stderr)
            assert document["tensors_compared"] >= (3 * 8 if "hf" in (a, b) else 8) and document["summary"].startswith("same: ")


def test_norms_that_are_stored_without_their_one_are_the_same(program, scratch):
    source = save_family(scratch / "hf", FAMILIES["gemma3"])
    assert json.loads((source / "config.json").read_text())["model_type"].startswith("gemma3")
    there = program.run(source, scratch / "there", "megatron", target_options={"layout": "{ tp = 2 }"}, model={"unmapped": "keep"})
    for a, b in ((source, there), (there, source)):
        code, document, stderr = compare("verify", a, b, ranks=2)
        assert code == 0, (document and document["summary"], stderr)
    norm = next(file for file in source.glob("*.safetensors") if any("input_layernorm" in name for name in load_file(file)))
    tensors = load_file(norm)
    key = next(name for name in tensors if "input_layernorm" in name)
    tensors[key][7] += 1 / 8
    save_file(tensors, norm, metadata={"format": "pt"})
    for command in ("verify", "diff"):
        code, document, _ = compare(command, source, there)
        (row,) = rows(document).values()
        assert code == 1 and row["differing"] + row["differing_in_replicas"] >= 1 and row["first"]["index"][1:] == [7]
        assert row["first"]["a"]["name"] == key


def test_a_plain_dcp_checkpoint_against_a_folder_and_a_tree(program, scratch):
    tensors = make_globals(DENSE)
    hf, megatron = folder(scratch / "hf", DENSE, tensors), tree(scratch / "tree", DENSE, tensors)
    dcp.save(hf_models.globals_to_hf(DENSE, tensors), checkpoint_id=scratch / "dcp", no_dist=True)
    code, document, _ = compare("verify", scratch / "dcp", hf, ranks=2)
    assert code == 0 and document["tensors_by"] == "stored names"
    code, document, stderr = compare("verify", scratch / "dcp", megatron)
    assert code == 2 and "--config-a" in stderr
    code, document, stderr = compare("verify", megatron, scratch / "dcp", "--config-b", str(hf))
    assert code == 0 and document["tensors_by"] == "map", stderr


def test_a_folder_without_config_takes_that_of_the_other_side(program, scratch):
    """Also where a Megatron checkpoint carries it; else the advice names an option that the command has."""
    tensors = make_globals(DENSE)
    hf, megatron = folder(scratch / "hf", DENSE, tensors), tree(scratch / "tree", DENSE, tensors)
    config = (hf / "config.json").rename(scratch / "config.json")
    for sides, option in (((hf, megatron), "a"), ((megatron, hf), "b")):
        code, _, stderr = compare("verify", *sides)
        assert code == 3 and f"give --config-{option}" in stderr and "source.config" not in stderr, stderr
    (megatron / "huggingface").mkdir()
    shutil.copy(config, megatron / "huggingface")
    assert compare("verify", hf, megatron)[0] == 0 and compare("verify", megatron, hf)[0] == 0
    code, document, stderr = compare("verify", megatron, hf, "--map", "none")
    assert code == 2 and "--map none" in stderr


# --- planted differences ---------------------------------------------------------------------------------------------


@pytest.mark.long_but("0")
@pytest.mark.parametrize("seed", range(8))
def test_a_flipped_bit_is_found(seed, program, scratch):
    random = numpy.random.default_rng(seed)
    config = (DENSE, MOE)[seed % 2]
    before = make_globals(config)
    name = sorted(before)[random.integers(len(before))]
    after = flipped(before, name, int(random.integers(before[name].numel())), int(random.integers(8)))
    makers = (tree, folder)
    a = makers[seed // 2 % 2](scratch / "a", config, before)
    b = makers[seed // 4 % 2](scratch / "b", config, after)
    hf_name, flat = expected_difference(config, before, after)
    value = hf_models.globals_to_hf(config, before)[hf_name].flatten()[flat].item()
    options = () if makers[seed // 2 % 2] is tree else ("--map", config.family)  # else folders are compared by stored names
    for left, right, side, ranks in ((a, b, "a", 1 + seed % 4), (b, a, "b", 1)):
        code, document, stderr = compare("verify", left, right, *options, ranks=ranks)
        assert code == 1, stderr
        (row,) = rows(document).values()
        assert row["differing"] == 1 and document["tensors_differing"] == 1
        assert row["first"]["index"] == index_of(config, hf_name, flat, row)
        assert float(row["first"][f"{side}_value"]) == pytest.approx(value, rel=1e-6)
        for path, place in ((left, row["first"]["a"]), (right, row["first"]["b"])):
            assert place["file"].startswith(str(path))
            if place["file"].endswith(".safetensors"):
                assert place["name"] == hf_name
        with open(row["first"]["a"]["file"], "rb") as one, open(row["first"]["b"]["file"], "rb") as other:
            one.seek(row["first"]["a"]["offset"])
            other.seek(row["first"]["b"]["offset"])
            assert bin(int.from_bytes(one.read(2), "little") ^ int.from_bytes(other.read(2), "little")).count("1") == 1


def test_a_training_checkpoint_and_its_export_have_the_same_weights(program, scratch):
    """Megatron's own checkpoint with the state of its optimizer, against a folder without."""
    shutil.unpack_archive(DATA / "flattened-optimizer.tar.xz", scratch)
    training = scratch / "dense"
    export = program.run(training, scratch / "hf", "huggingface", source_options={"optimizer": "drop", "rng": "drop"}, model={"map": "llama"})
    for a, b in ((training, export), (export, training)):
        code, document, _ = compare("verify", a, b)
        assert code == 0 and document["header_differences"] == []
        assert any('source.optimizer = "drop"' in note and "36 tensors" in note for note in document["notes"]), document["notes"]
    (export / "reshard.json").unlink()  # which says what the job left out
    for a, b in ((training, export), (export, training)):
        code, document, _ = compare("verify", a, b)
        assert code == 1 and {row["kind"] for row in document["header_differences"]} == {"missing" if a == training else "extra"}
        missing = 3 * document["tensors_compared"]  # two moments and a master weight of each weight, counted layer by layer like these
        assert document["summary"].startswith(f"different: {missing} of {missing // 3 + missing} tensors ({missing} "), document["summary"]
        code, document, _ = compare("verify", a, b, "--weights-only")
        assert code == 0 and document["same"] and document["header_differences"] == []
        said = "36 tensors of optimizer state" if a == training else "36 in b"
        assert any(said in note for note in document["notes"]), document["notes"]
    state = load_file(export / "model.safetensors")
    state["model.norm.weight"][3] += 1
    save_file(state, export / "model.safetensors", metadata={"format": "pt"})
    code, document, _ = compare("verify", training, export, "--weights-only")
    assert code == 1 and [row["name"] for row in document["tensors"]] == ["final_norm"]
    assert compare("verify", training, training, "--weights-only")[0] == 0
    assert subprocess.run([BINARY, "verify", training, "--weights-only"], capture_output=True, timeout=TIMEOUT_SECONDS).returncode == 2


@pytest.mark.long
def test_swapped_layers_are_found(program, scratch):
    before = make_globals(DENSE)
    after = before | {"layers.0.fc2": before["layers.2.fc2"], "layers.2.fc2": before["layers.0.fc2"]}
    code, document, _ = compare("verify", folder(scratch / "a", DENSE, before), tree(scratch / "b", DENSE, after), ranks=3)
    assert code == 1 and set(rows(document)) == {("ffn.down", 0), ("ffn.down", 2)}
    for row in rows(document).values():
        changed = (before["layers.0.fc2"].view(torch.int16) != before["layers.2.fc2"].view(torch.int16)).sum().item()
        assert row["differing"] == changed and row["elements"] == before["layers.0.fc2"].numel()


def test_a_flip_in_one_replica_is_found(program, scratch):
    tensors = make_globals(DENSE)
    hf, megatron = folder(scratch / "hf", DENSE, tensors), tree(scratch / "tree", DENSE, tensors)
    shard = iteration_folder(megatron) / "mp_rank_01_001" / SHARD_FILE
    content = torch.load(shard, weights_only=False)
    key = "decoder.layers.0.input_layernorm.weight"
    content["model"][key].view(torch.uint8)[2 * 5] ^= 4
    torch.save(content, shard)
    code, document, _ = compare("verify", hf, megatron, ranks=2)
    ((name, layer),) = rows(document)
    row = rows(document)[name, layer]
    assert code == 1 and layer == 1 and row["differing"] + row["differing_in_replicas"] == 1 and row["first"]["index"] == [1, 5]
    assert row["first"]["b"]["file"] == str(shard) and row["first"]["b"]["name"] == key


# --- what headers say ------------------------------------------------------------------------------------------------


def changed_folder(source, target, change):
    """A copy with one file, whose tensors `change` has gone over."""
    target.mkdir()
    tensors = {}
    for file in sorted(source.glob("*.safetensors")):
        tensors |= load_file(file)
    shutil.copy(source / "config.json", target)
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_header_differences(program, scratch):
    source = folder(scratch / "a", DENSE, make_globals(DENSE))
    norm = "model.layers.1.input_layernorm.weight"

    def faults(change, command="verify"):
        shutil.rmtree(scratch / "b", ignore_errors=True)
        code, document, stderr = compare(command, source, changed_folder(source, scratch / "b", change))
        assert document is not None, stderr
        return code, [(each["kind"], each["tensor"]) for each in document["header_differences"]]

    assert faults(lambda tensors: None) == (0, [])
    assert faults(lambda tensors: tensors.pop(norm)) == (1, [("missing", norm)])
    assert faults(lambda tensors: tensors.update(more=torch.zeros(3))) == (1, [("extra", "more")])
    assert faults(lambda tensors: tensors.update({norm: tensors[norm][:-1].clone()})) == (1, [("shape", norm)])
    assert faults(lambda tensors: tensors.update({norm: tensors[norm].float()})) == (1, [("dtype", norm)])
    assert faults(lambda tensors: tensors.update({norm: tensors[norm].float()}), "diff") == (0, [])
    assert faults(lambda tensors: tensors.update({norm: tensors[norm].view(torch.int16)}), "diff") == (1, [("dtype", norm)])


def test_rows_are_limited_and_totals_are_not(program, scratch):
    tensors = make_globals(DENSE)
    a, b = folder(scratch / "a", DENSE, tensors), folder(scratch / "b", DENSE, make_globals(DENSE, salt="other"))
    for command in ("verify", "diff"):
        outcome = subprocess.run([BINARY, command, str(a), str(b), "--limit", "2"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
        lines = outcome.stdout.splitlines()
        count = len(hf_models.globals_to_hf(DENSE, tensors))
        assert outcome.returncode == 1 and lines[-1].startswith(f"different: {count} of {count} tensors") and f"{count - 2} more rows" in lines[-2]


# --- statistics ------------------------------------------------------------------------------------------------------

FORMATS = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "e4m3": torch.float8_e4m3fn,
           "e5m2": torch.float8_e5m2, "i8": torch.int8, "i64": torch.int64, "bool": torch.bool}  # fmt: skip


def noisy(seed):
    """Two versions of a tensor of every format. A few numbers of the wider formats are no numbers."""
    generator = torch.Generator().manual_seed(seed)
    a, b = {}, {}
    for name, dtype in FORMATS.items():
        values = torch.randn(60, 171, generator=generator, dtype=torch.float64) * (1 if dtype.is_floating_point else 30)
        change = torch.randn(60, 171, generator=generator, dtype=torch.float64) * (torch.rand(60, 171, generator=generator) < 0.1)
        a[name], b[name] = (values > 0, values + change > 0) if dtype == torch.bool else (values.to(dtype), (values + change).to(dtype))
        if name in ("bf16", "f16", "f32", "f64", "e5m2"):
            for tensor, places in ((a[name], (3, 77)), (b[name], (3, 500))):
                flat = tensor.view(-1)
                flat[places[0]], flat[places[1]], flat[places[1] + 1] = float("nan"), float("inf"), float("-inf")
    return a, b


def statistics(a, b):
    with numpy.errstate(all="ignore"):
        a, b = a.double().numpy().ravel(), b.double().numpy().ravel()
        finite = numpy.isfinite(a) & numpy.isfinite(b)
        change = numpy.where(finite, numpy.abs(a - b), 0)
        relative = numpy.where(change > 0, change / numpy.maximum(numpy.abs(a), numpy.abs(b)), 0)
    return {
        "finite_max_abs": change.max(), "finite_max_rel": relative.max(), "finite_mean_abs": change.sum() / finite.sum(), "finite": int(finite.sum()),
        "max_abs_at": list(numpy.unravel_index(change.argmax(), (60, 171))), "max_rel_at": list(numpy.unravel_index(relative.argmax(), (60, 171))),
        "max_a": numpy.abs(a[numpy.isfinite(a)]).max(), "max_b": numpy.abs(b[numpy.isfinite(b)]).max(),
        "nan_a": int(numpy.isnan(a).sum()), "nan_b": int(numpy.isnan(b).sum()), "infinite_a": int(numpy.isinf(a).sum()),
        "infinite_b": int(numpy.isinf(b).sum()), "non_finite_differing": int(((a != b) & ~(numpy.isnan(a) & numpy.isnan(b)) & ~finite).sum()),
    }  # fmt: skip


BOUNDS = [float(f"1e{power}") for power in range(-10, 4)]
CLASSES = ["below 1e-10", *(f"1e{power}" for power in range(-10, 3)), "1e3 and more"]


def histogram(a, b):
    """How many finite elements differ by which power of ten."""
    a, b = a.double().numpy().ravel(), b.double().numpy().ravel()
    finite = numpy.isfinite(a) & numpy.isfinite(b)
    change = numpy.abs(a[finite] - b[finite])
    classes, counts = numpy.unique(numpy.searchsorted(BOUNDS, change[change > 0], side="right"), return_counts=True)
    zero = {"0": int((change == 0).sum())} if (change == 0).any() else {}
    return zero | {CLASSES[number]: int(count) for number, count in zip(classes, counts)}


@pytest.mark.long_but("3")
@pytest.mark.parametrize("ranks", [1, 3])
def test_statistics_are_those_of_numpy(ranks, program, scratch):
    a, b = noisy(ranks)
    dcp.save(a, checkpoint_id=scratch / "a", no_dist=True)
    (scratch / "b").mkdir()
    save_file(b, scratch / "b" / "model.safetensors", metadata={"format": "pt"})
    (scratch / "b" / "config.json").write_text("{}")
    code, document, stderr = compare("diff", scratch / "a", scratch / "b", ranks=ranks)
    assert code == 1, stderr
    for row in document["tensors"]:
        x, y = a[row["name"]], b[row["name"]]
        size = x.element_size()
        bits = (x.contiguous().view(torch.uint8).reshape(-1, size) != y.contiguous().view(torch.uint8).reshape(-1, size)).any(dim=1)
        assert row["differing"] == bits.sum().item() and row["first"]["index"] == list(numpy.unravel_index(bits.int().argmax(), (60, 171)))
        for key, value in statistics(x, y).items():
            assert row[key] == (pytest.approx(value, rel=1e-12) if key == "finite_mean_abs" else value), (row["name"], key)
        for key in ("max_abs", "max_rel", "mean_abs"):
            assert row[key] == (None if row["non_finite_differing"] else row["finite_" + key]), (row["name"], key)
        assert row["histogram"] == histogram(x, y), row["name"]
    everything = {}
    for name in FORMATS:
        for key, count in histogram(a[name], b[name]).items():
            everything[key] = everything.get(key, 0) + count
    assert document["histogram"] == everything
    text = subprocess.run([BINARY, "diff", scratch / "a", scratch / "b", "--histogram"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS).stdout
    assert [line.split()[:2] for line in text.splitlines() if line.endswith("#")][0] == ["0", str(everything["0"])]
    assert {row["name"] for row in document["tensors"]} == set(FORMATS)


@pytest.mark.long
def test_values_of_different_dtypes(program, scratch):
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(40, 30, generator=generator)
    dcp.save({"w": values, "v": values.bfloat16(), "u": values.bfloat16()}, checkpoint_id=scratch / "a", no_dist=True)
    dcp.save({"w": values.bfloat16(), "v": values.bfloat16().float(), "u": values.bfloat16().double()}, checkpoint_id=scratch / "b", no_dist=True)
    code, document, _ = compare("diff", scratch / "a", scratch / "b", ranks=2)
    (row,) = rows(document).values()
    rounding = (values.double() - values.bfloat16().double()).abs()
    assert code == 1 and row["name"] == "w" and row["max_abs"] == rounding.max().item()
    assert row["differing"] == (rounding > 0).sum().item() and row["mean_abs"] == pytest.approx(rounding.mean().item(), rel=1e-12)


def test_zeros_of_both_signs_differ_by_nothing(program, scratch):
    dcp.save({"w": torch.tensor([0.0, float("nan"), 1.0])}, checkpoint_id=scratch / "a", no_dist=True)
    dcp.save({"w": torch.tensor([-0.0, float("nan"), 1.0])}, checkpoint_id=scratch / "b", no_dist=True)
    code, document, _ = compare("diff", scratch / "a", scratch / "b")
    (row,) = rows(document).values()
    assert code == 1 and row["differing"] == 1 and row["max_abs"] == 0 and row["max_rel"] == 0 and row["max_abs_at"] is None


def test_a_tensor_with_nan_is_the_first_row(program, scratch):
    before = {"large": torch.ones(4), "small": torch.ones(4)}
    dcp.save(before, checkpoint_id=scratch / "a", no_dist=True)
    dcp.save({"large": -before["large"], "small": torch.tensor([1, 1, float("nan"), 1])}, checkpoint_id=scratch / "b", no_dist=True)
    outcome = subprocess.run([BINARY, "diff", scratch / "a", scratch / "b", "--limit", "1"], capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert outcome.returncode == 1 and "small (NaN 0 / 1" in outcome.stdout and "large" not in outcome.stdout, outcome.stdout
    (line,) = [line for line in outcome.stdout.splitlines() if "small" in line]
    assert line.split()[:3] == ["-", "-", "-"], "a NaN on one side is at no distance"
    (row,) = [row for row in compare("diff", scratch / "a", scratch / "b")[1]["tensors"] if row["name"] == "small"]
    assert row["max_abs"] is row["max_rel"] is row["mean_abs"] is None and row["finite_max_abs"] == 0


def test_what_is_no_checkpoint(program, scratch):
    good = folder(scratch / "good", DENSE, make_globals(DENSE))
    (scratch / "empty").mkdir()
    assert compare("verify", good, scratch / "empty")[0] == 3
    assert compare("verify", scratch / "missing", good)[0] == 3
