"""What a message says is so, and the step that it proposes works: one row for each kind of input that once met the words of another."""

import json
import os
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file

from family_models import FAMILIES, save_family
from peer_types import Layout
from reshard_job import command

LLAMA = FAMILIES["llama"]
PROJECTIONS = "proj.weight"


@pytest.fixture
def program(program):
    attempt = program.attempt
    program.attempt = lambda *places, ranks=1, **options: attempt(*places, ranks=ranks, **options)
    return program


@pytest.fixture
def folder(scratch):
    return save_family(scratch / "folder", LLAMA)


def rewrite(folder, change, quantisation=None):
    """Replaces the tensors of a folder of one file by those that `change` makes of each."""
    file = folder / "model.safetensors"
    tensors = {}
    for name, tensor in load_file(file).items():
        tensors |= change(name, tensor)
    save_file(tensors, file, metadata={"format": "pt"})
    if quantisation is not None:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"quantization_config": quantisation}))
    return tensors


def of_projections(parts):
    """Each projection becomes these parts, all else stays."""
    return lambda name, tensor: parts(name.removesuffix("weight"), tensor) if name.endswith(PROJECTIONS) else {name: tensor}


def gptq(module, weight):
    rows, columns = weight.shape
    return {
        module + "qweight": torch.zeros(columns // 8, rows, dtype=torch.int32), module + "qzeros": torch.zeros(1, rows // 8, dtype=torch.int32),
        module + "scales": torch.ones(1, rows, dtype=torch.float16), module + "g_idx": torch.zeros(columns, dtype=torch.int32)}


def awq(module, weight):
    rows, columns = weight.shape
    return {module + "qweight": torch.zeros(columns, rows // 8, dtype=torch.int32), module + "qzeros": torch.zeros(1, rows // 8, dtype=torch.int32),
            module + "scales": torch.ones(1, rows, dtype=torch.float16)}


def nf4(module, weight):
    return {module + "weight": torch.zeros(weight.numel() // 2, 1, dtype=torch.uint8), module + "weight.absmax": torch.ones(weight.numel() // 64 + 1),
            module + "weight.quant_map": torch.ones(16), module + "weight.quant_state.bitsandbytes__nf4": torch.zeros(8, dtype=torch.uint8)}


def int8_of_bitsandbytes(module, weight):
    return {module + "weight": weight.to(torch.int8), module + "SCB": torch.ones(weight.shape[0])}


def torchao(module, weight):
    return {module + "_weight_qdata": weight.to(torch.int8), module + "_weight_scale": torch.ones(weight.shape[0])}


def int3_of_compressed_tensors(module, weight):
    rows, columns = weight.shape
    return {module + "weight_packed": torch.zeros(rows, columns * 3 // 32, dtype=torch.int32), module + "weight_scale": torch.ones(rows, 1)}


def asymmetric_int4(module, weight):
    rows, columns = weight.shape
    return {module + "weight_packed": torch.zeros(rows, columns // 8, dtype=torch.int32), module + "weight_scale": torch.ones(rows, 1, dtype=torch.bfloat16),
            module + "weight_zero_point": torch.zeros(rows // 8, 1, dtype=torch.int32), module + "weight_shape": torch.tensor([rows, columns])}


OTHER_FORMS = {
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4}, "gptq (4 bits)"),
    "awq": (awq, {"quant_method": "awq", "bits": 4}, "awq (4 bits)"),
    "auto-round": (gptq, {"quant_method": "auto-round", "bits": 4}, "auto-round (4 bits)"),
    "nf4": (nf4, {"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes"),
    "int8": (int8_of_bitsandbytes, {"quant_method": "bitsandbytes", "load_in_8bit": True}, "bitsandbytes"),
    "torchao": (torchao, {"quant_method": "torchao"}, "torchao"),
    "w3a16": (int3_of_compressed_tensors, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors (pack-quantized)"),
    "w4-asymmetric": (asymmetric_int4, {"quant_method": "compressed-tensors", "format": "pack-quantized"}, "compressed-tensors (pack-quantized)"),
}  # fmt: skip


def same_files(a, b):
    return load_file(a / "model.safetensors").keys() == load_file(b / "model.safetensors").keys()


def are_kept(program, folder, target):
    """All files are the same, and the job has stated why names were kept."""
    for name in ("model.safetensors", "config.json"):
        assert (target / name).read_bytes() == (folder / name).read_bytes(), name
    outcome = program.attempt(folder, target.with_name("again"), "huggingface")
    assert outcome.returncode == 0 and "names and bytes are kept as they are" in outcome.stderr, outcome.stderr
    outcome = command("suspects", folder)
    assert outcome.returncode in (0, 1), outcome.stderr


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_a_form_of_weights_that_no_map_has_is_named_and_kept_by_names(form, program, folder, scratch):
    parts, settings, words = OTHER_FORMS[form]
    rewrite(folder, of_projections(parts), settings)
    outcome = program.attempt(folder, scratch / "out", "torch_dist")
    assert outcome.returncode == 3, outcome.stderr
    assert f"the model is quantised by {words}, and no map describes" in outcome.stderr, outcome.stderr
    assert 'model.map = "none" keeps the stored tensors as they are, in a Hugging Face folder, DCP or HDF5' in outcome.stderr
    for target in ("huggingface", "dcp", "hdf5"):
        program.run(folder, scratch / target, target, ranks=1)
    are_kept(program, folder, scratch / "huggingface")


@pytest.mark.parametrize("lost", ["model.layers.1.input_layernorm.weight", "model.layers.1."])
def test_what_else_a_form_without_a_map_lacks_is_refused(lost, program, folder, scratch):
    rewrite(folder, of_projections(int3_of_compressed_tensors), {"quant_method": "compressed-tensors", "format": "pack-quantized"})
    file = folder / "model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if not name.startswith(lost)}, file, metadata={"format": "pt"})
    outcome = program.attempt(folder, scratch / "out", "huggingface")
    assert outcome.returncode == 3 and f"lacks '{lost}" in outcome.stderr, outcome.stderr


def test_blocks_that_straddle_heads_are_named(program, folder, scratch):
    """The scales are there: it is no incomplete download."""
    def in_blocks(module, weight):
        rows, columns = ((size + block - 1) // block for size, block in zip(weight.shape, (5, 128)))
        return {module + "weight": weight.to(torch.float8_e4m3fn), module + "weight_scale_inv": torch.ones(rows, columns)}

    rewrite(folder, of_projections(in_blocks), {"quant_method": "fp8", "weight_block_size": [5, 128]})
    outcome = program.attempt(folder, scratch / "out", "torch_dist")
    assert outcome.returncode == 3, outcome.stderr
    assert "Its scales are there, and cannot be cut as the weight is: " in outcome.stderr and "blocks of 5 straddle" in outcome.stderr, outcome.stderr
    program.run(folder, scratch / "kept", "huggingface", ranks=1)
    are_kept(program, folder, scratch / "kept")


def test_the_scale_of_an_expert_that_others_have_is_named(program, scratch):
    folder = save_family(scratch / "experts", FAMILIES["qwen3-moe"])
    lost = []

    def nvfp4(name, weight):
        if ".experts." not in name:
            return {name: weight}
        rows, columns = weight.shape
        parts = {name: torch.zeros(rows, columns // 2, dtype=torch.uint8), name + "_scale": torch.ones(rows, -(-columns // 16)).to(torch.float8_e4m3fn),
                 name + "_scale_2": torch.tensor(0.5), name.removesuffix("weight") + "input_scale": torch.tensor(0.5)}
        if ".layers.2." in name and ".experts.1." in name:
            lost.append(name.removesuffix("weight") + "input_scale")
            parts.pop(lost[-1])
        return parts

    rewrite(folder, nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16})
    outcome = program.attempt(folder, scratch / "out", "torch_dist")
    assert outcome.returncode == 3, outcome.stderr
    assert any(f"lacks '{name}', which other stored parts of the same weight have" in outcome.stderr for name in lost), outcome.stderr
    program.run(folder, scratch / "kept", "huggingface", ranks=1)
    are_kept(program, folder, scratch / "kept")


def save_dcp(state, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dcp.save(state, checkpoint_id=str(folder), no_dist=True)
    return folder


def test_the_prefix_that_is_proposed_is_the_complete_one(program, folder, scratch):
    """Where the job has a part of it already; without any it is found."""
    weights = load_file(folder / "model.safetensors")
    source = save_dcp({"model": {"base_model": {"model": weights}}}, scratch / "source")
    named = {"config": folder / "config.json"}
    outcome = program.attempt(source, scratch / "out", "torch_dist", source_options=named | {"prefix": "model."})
    assert outcome.returncode == 3, outcome.stderr
    assert 'Set source.prefix = "model.base_model.model."' in outcome.stderr, outcome.stderr
    for name, prefix in (("found", {}), ("stated", {"prefix": "model.base_model.model."})):
        program.run(source, scratch / name, "torch_dist", source_options=named | prefix, ranks=1)


def test_optimizer_state_without_weights_is_named(program, scratch):
    source = save_dcp({"optim": {"state": {"a.weight": {"exp_avg": torch.ones(4, 4), "exp_avg_sq": torch.ones(4, 4)}}}}, scratch / "optimizer_0")
    outcome = program.attempt(source, scratch / "out", "torch_dist", source_options={"config": save_family(scratch / "folder", LLAMA) / "config.json"})
    assert outcome.returncode == 3, outcome.stderr
    assert "holds optimizer state alone" in outcome.stderr, outcome.stderr


def test_an_adapter_of_another_kind_is_named(program, folder, scratch):
    adapter = scratch / "adapter"
    adapter.mkdir()
    save_file({"base_model.model.model.layers.0.self_attn.q_proj.hada_w1_a": torch.ones(4, 2)}, adapter / "adapter_model.safetensors")
    for kind, step in (("LOHA", "merge_and_unload"), ("PREFIX_TUNING", "It changes no weight")):
        (adapter / "adapter_config.json").write_text(json.dumps({"peft_type": kind, "r": 2, "base_model_name_or_path": "nowhere"}))
        for options in ({}, {"config": folder / "config.json"}):
            outcome = program.attempt(adapter, scratch / "out", "torch_dist", source_options=options)
            assert outcome.returncode == 3, outcome.stderr
            assert f'peft_type is "{kind}"' in outcome.stderr and step in outcome.stderr, outcome.stderr


def test_names_in_drop_of_the_family_leave_tensors_of_megatron_out(program, folder, scratch):
    """The step that the message about a name without an entry proposes."""
    source = program.run(folder, scratch / "source", "megatron", target_options={"layout": Layout().toml()}, ranks=1)
    (file,) = source.rglob("model_optim_rng.pt")
    state = torch.load(file, weights_only=False)
    state["model"]["mtp.layers.0.enorm.weight"] = torch.ones(4)
    torch.save(state, file)
    for record in ("reshard.json", "SHA256SUMS"):
        (source / record).unlink()
    outcome = program.attempt(source, scratch / "out", "huggingface")
    assert outcome.returncode == 3, outcome.stderr
    assert "add its name to `drop` in a copy of llama.toml, and name the copy with model.map." in outcome.stderr, outcome.stderr
    maps = os.environ.get("RESHARD_MAPS") or os.path.join(os.environ.get("RESHARD_SOURCE_DIR", os.getcwd()), "configs", "models")
    text = (scratch / "copy.toml", open(os.path.join(maps, "llama.toml")).read())
    text[0].write_text('drop = [ "mtp.*" ]\n' + text[1])
    program.run(source, scratch / "out", "huggingface", model={"map": scratch / "copy.toml"}, ranks=1)
    assert same_files(folder, scratch / "out")


FOLDERS = {
    "mistral": ("consolidated.safetensors", "and no params.json"),
    "orbax-run": ("10/state/_METADATA", "is an Orbax checkpoint"),
    "megatron": ("common.pt", "no .metadata, which is written last"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FOLDERS)
def test_the_folder_of_another_program_is_named(kind, scratch):
    name, words = FOLDERS[kind]
    file = scratch / kind / name
    file.parent.mkdir(parents=True)
    if file.suffix == ".safetensors":
        save_file({"norm.weight": torch.ones(2)}, file)
    else:
        torch.save({}, file)
    outcome = command("inspect", scratch / kind)
    assert outcome.returncode == 3 and words in outcome.stderr, outcome.stderr


def test_a_folder_of_saves_beside_a_config_names_them(folder, scratch):
    root = scratch / "accelerate"
    save_dcp({"model": {"a.weight": torch.ones(2, 2)}}, root / "pytorch_model_fsdp_0")
    save_dcp({"model": {"a.weight": torch.ones(2, 2)}}, root / "pytorch_model_fsdp_1")  # of a run with two models
    shutil.copy(folder / "config.json", root)
    outcome = command("inspect", root)
    assert outcome.returncode == 3 and f"such as {root}/pytorch_model_fsdp_1." in outcome.stderr, outcome.stderr


def test_suspects_of_weights_without_a_config_work_as_proposed(folder):
    (folder / "config.json").unlink()
    outcome = command("suspects", folder)
    assert outcome.returncode == 3 and "keep the stored names with --map none" in outcome.stderr, outcome.stderr
    assert command("suspects", folder, "--map", "none").returncode == 0


def test_dashes_are_standard_output_and_extracts_are_no_checkpoint(folder, scratch, monkeypatch):
    monkeypatch.chdir(scratch)
    assert command("init", folder, "-o", "-").stdout.startswith("#")
    assert not (scratch / "-").exists()
    (scratch / "out").mkdir()
    assert command("extract", folder, "embed", "-o", scratch / "out" / "embed.safetensors").returncode == 0
    assert command("view", folder, "-o", scratch / "out" / "page.html").returncode == 0




def test_an_index_is_rebuilt_by_request(program, scratch):
    """Lost, or of another save: the headers tell."""
    folder = save_family(scratch / "folder", LLAMA)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = [names[0::2], names[1::2]]
    for number, held in enumerate(shards, 1):
        save_file({name: tensors[name] for name in held}, folder / f"model-{number:05}-of-00002.safetensors", metadata={"format": "pt"})
    lost = program.attempt(folder, scratch / "lost", "huggingface")
    assert lost.returncode == 3 and 'set source.index = "rebuild"' in lost.stderr, lost.stderr
    index = folder / "model.safetensors.index.json"
    for stale in (None, {name: "model-00001-of-00002.safetensors" for name in names}):
        if stale:
            index.write_text(json.dumps({"weight_map": stale}))
        program.run(folder, scratch / f"out-{bool(stale)}", "huggingface", source_options={"index": "rebuild"})
        made = load_file(scratch / f"out-{bool(stale)}" / "model.safetensors")
        assert made.keys() == tensors.keys() and all(torch.equal(made[name], tensors[name]) for name in tensors)
    listed = {name: f"model-{number:05}-of-00002.safetensors" for number, held in enumerate(shards, 1) for name in held[:-1]}
    index.write_text(json.dumps({"weight_map": listed}))
    short = program.attempt(folder, scratch / "short", "dcp", target_options={"map": "llama"})
    assert short.returncode == 3 and 'is in a file, and the index does not list it' in short.stderr and 'source.index = "rebuild"' in short.stderr, short.stderr
    index.write_text(json.dumps({"weight_map": {name: "model-00001-of-00002.safetensors" for name in shards[0]}}))
    half = program.attempt(folder, scratch / "half", "dcp", target_options={"map": "llama"})
    assert half.returncode == 3 and "The index does not name model-00002-of-00002.safetensors, which is in the folder" in half.stderr, half.stderr
    save_file({names[0]: tensors[names[0]]}, folder / "again.safetensors")
    twice = program.attempt(folder, scratch / "twice", "huggingface", source_options={"index": "rebuild"})
    assert twice.returncode == 3 and f"'{names[0]}' is in several files" in twice.stderr, twice.stderr
    (folder / "again.safetensors").unlink()
    (folder / "model-00002-of-00002.safetensors").unlink()
    missing = program.attempt(folder, scratch / "missing", "huggingface", source_options={"index": "rebuild"})
    assert missing.returncode == 3 and "holds 1 of the 2 files model-*-of-2" in missing.stderr, missing.stderr
    for path in folder.glob("*.safetensors"):
        path.unlink()
    empty = program.attempt(folder, scratch / "empty", "huggingface", source_options={"format": "huggingface", "index": "rebuild"})
    assert empty.returncode == 3 and "holds no *.safetensors file" in empty.stderr, empty.stderr
    program.run(scratch / "out-True", scratch / "dcp", "dcp")
    other = program.attempt(scratch / "dcp", scratch / "no", "huggingface", source_options={"index": "rebuild"})
    assert other.returncode == 2 and "which has no index of Hugging Face" in other.stderr, other.stderr
