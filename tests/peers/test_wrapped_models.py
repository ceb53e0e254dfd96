"""Models that peft has wrapped, as FSDP2 saves them: merged, the base model alone, and the adapter alone, against peft itself."""

import json
import shutil

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import dcp_reading
import lora_models
import wrapped_saves
from lora_models import tensors_of
from reshard_job import command, manifest_of
from tensor_patterns import same_bits

pytest.importorskip("peft", reason="peft is not installed")

WORLD = 2
LORA = ("lora", "pattern", "bf16")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = wrapped_saves.save(list(wrapped_saves.KINDS), tmp_path_factory.mktemp("wrapped"), WORLD, ["flat", "nested", "ranks"])
    for kind in wrapped_saves.KINDS:
        for form in ("flat", "nested", "ranks"):
            shutil.copy(root / kind / "adapter" / "adapter_config.json", root / kind / form)
    return root


@pytest.fixture(scope="module")
def of_one_rank(tmp_path_factory):
    return wrapped_saves.save(["lora", "dora"], tmp_path_factory.mktemp("wrapped-one"), 1, ["flat"])


def taken(program, source, target, use, target_format="huggingface", **options):
    return program.run(source, target, target_format, model={"adapter": use} | options.pop("model", {}), **options)


def refused(program, source, target, use, *words, code=3, target_format="huggingface", **options):
    outcome = program.attempt(source, target, target_format, model={"adapter": use} | options.pop("model", {}), **options)
    assert outcome.returncode == code, outcome.stderr
    for word in words:
        assert word in outcome.stderr, outcome.stderr
    assert not target.exists()


def assert_same(found, wanted):
    assert set(found) == set(wanted)
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype and same_bits(found[name], tensor), name


def scale_of(folder):
    """alpha / r, or alpha / sqrt(r), by module, as adapter_config.json states them."""
    config = json.loads((folder / "adapter_config.json").read_text())

    def scale(module, rank):
        alphas = [alpha for key, alpha in (config.get("alpha_pattern") or {}).items() if module.endswith(key)]
        return (alphas or [config["lora_alpha"]])[0] / (rank ** 0.5 if config["use_rslora"] else rank)
    return scale


def merged_with_magnitudes(base, adapter):
    """The definition of docs/formats/merged-adapters.md for DoRA."""
    tensors, factors = tensors_of(base), load_file(adapter / "adapter_model.safetensors")
    for name, a in factors.items():
        if ".lora_A." not in name:
            continue
        module = name.removeprefix("base_model.model.").split(".lora_A.")[0]
        b, magnitude = factors[name.replace(".lora_A.", ".lora_B.")], factors[name.split(".lora_A.")[0] + ".lora_magnitude_vector"]
        weight = tensors[module + ".weight"]
        scale = torch.tensor(scale_of(adapter)(module, a.shape[0]), dtype=torch.float32)
        total = weight.float() + scale * lora_models.product(b, a)
        squares = torch.zeros(total.shape[0], dtype=torch.float64)
        for column in total.double().T:
            squares = squares + column * column
        tensors[module + ".weight"] = ((magnitude.float() / squares.sqrt().float())[:, None] * total).to(weight.dtype)
    return tensors


def close_to_peft(found, folder, ulps=8):
    for name, tensor in tensors_of(folder / "merged").items():
        assert torch.allclose(found[name].float(), tensor.float(), rtol=ulps * torch.finfo(tensor.dtype).eps, atol=ulps * torch.finfo(tensor.dtype).eps), name


@pytest.mark.parametrize("form", ["flat", "nested", "ranks"])
@pytest.mark.parametrize("kind", LORA)
def test_merged(kind, form, saved, program, scratch):
    folder = saved / kind
    target = taken(program, folder / form, scratch / "merged", "merge", source_options={"prefix": "model."} if form == "nested" else {})
    wanted = lora_models.merged_tensors(folder / "base", folder / "adapter", scale_of(folder / "adapter"))
    assert_same(tensors_of(target), wanted)
    close_to_peft(tensors_of(target), folder)
    assert manifest_of(target)["source"]["adapter"]["modules"] > 0


def test_dora(saved, of_one_rank, program, scratch):
    for number, source in enumerate((saved / "dora" / "flat", saved / "dora" / "ranks", of_one_rank / "dora" / "flat")):
        if number == 2:
            shutil.copy(saved / "dora" / "adapter" / "adapter_config.json", source)
        target = taken(program, source, scratch / f"merged{number}", "merge")
        assert_same(tensors_of(target), merged_with_magnitudes(saved / "dora" / "base", saved / "dora" / "adapter"))
        close_to_peft(tensors_of(target), saved / "dora")
        assert not (target / "adapter_config.json").exists()  # transformers would look for the adapter
    # peft's own folder, through the map of the family
    target = taken(program, saved / "dora" / "base", scratch / "of-folder", "merge", source_options={"adapter": saved / "dora" / "adapter"})
    assert_same(tensors_of(target), merged_with_magnitudes(saved / "dora" / "base", saved / "dora" / "adapter"))


def test_into_megatron(saved, program, scratch):
    for kind in ("lora", "dora", "saved"):
        folder = saved / kind
        layout = {"layout": "{ tp = 2, pp = 2 }"}
        base = {"config": folder / "base" / "config.json"}
        target = taken(program, folder / "flat", scratch / kind, "merge", "megatron", target_options=layout, source_options=base)
        merged = taken(program, folder / "flat", scratch / f"{kind}-hf", "merge")
        shutil.copy(folder / "base" / "config.json", merged)
        same = command("verify", merged, target)
        assert same.returncode == 0, same.stdout + same.stderr


def test_modules_that_were_trained_completely(saved, program, scratch):
    folder = saved / "saved"
    merged = tensors_of(taken(program, folder / "ranks", scratch / "merged", "merge"))
    close_to_peft(merged, folder)
    assert same_bits(merged["lm_head.weight"], load_file(folder / "adapter" / "adapter_model.safetensors")["base_model.model.lm_head.weight"])
    assert_same(tensors_of(taken(program, folder / "ranks", scratch / "base", "drop")), tensors_of(folder / "base"))


@pytest.mark.parametrize("kind", ["lora", "saved", "dora", "tokens", "embedding"])
def test_base_and_adapter_apart(kind, saved, program, scratch):
    import peft
    from transformers import AutoModelForCausalLM

    folder = saved / kind
    assert_same(tensors_of(taken(program, folder / "ranks", scratch / "base", "drop")), tensors_of(folder / "base"))
    adapter = taken(program, folder / "flat", scratch / "adapter", "only")
    assert_same(load_file(adapter / "adapter_model.safetensors"), load_file(folder / "adapter" / "adapter_model.safetensors"))
    assert (adapter / "adapter_config.json").read_bytes() == (folder / "adapter" / "adapter_config.json").read_bytes()
    loaded = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base"), adapter)
    own = peft.PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder / "base"), folder / "adapter")
    words = torch.arange(10).reshape(1, 10)
    with torch.no_grad():
        assert torch.equal(loaded(words).logits, own(words).logits)


def test_a_distributed_checkpoint_stays_one(saved, program, scratch):
    folder = saved / "lora"
    for form, before in (("flat", ""), ("nested", "model.")):
        target = taken(program, folder / form, scratch / form, "drop", "dcp")
        assert_same(dcp_reading.whole_tensors(target), {before + name: tensor for name, tensor in tensors_of(folder / "base").items()})
        target = taken(program, folder / form, scratch / f"{form}-merged", "merge", "dcp")
        wanted = lora_models.merged_tensors(folder / "base", folder / "adapter", scale_of(folder / "adapter"))
        assert_same(dcp_reading.whole_tensors(target), {before + name: tensor for name, tensor in wanted.items()})


def test_what_verl_saves_beside_its_files_states_the_scale(saved, program, scratch):
    shutil.copytree(saved / "lora" / "ranks", scratch / "ranks")
    (scratch / "ranks" / "adapter_config.json").unlink()
    refused(program, scratch / "ranks", scratch / "target", "merge", "nothing beside it states the scale of its adapter", code=2)
    (scratch / "ranks" / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 12, "task_type": "CAUSAL_LM"}))
    wanted = lora_models.merged_tensors(saved / "lora" / "base", saved / "lora" / "adapter", lambda module, rank: 12 / 4)
    assert_same(tensors_of(taken(program, scratch / "ranks", scratch / "merged", "merge")), wanted)
    adapter = taken(program, scratch / "ranks", scratch / "adapter", "only")
    made = json.loads((adapter / "adapter_config.json").read_text())
    assert (made["r"], made["lora_alpha"]) == (4, 12)
    (scratch / "ranks" / "lora_train_meta.json").write_text(json.dumps({"r": 8, "lora_alpha": 12}))
    refused(program, scratch / "ranks", scratch / "target", "merge", "states rank 8")
    (scratch / "ranks" / "lora_train_meta.json").unlink()
    assert_same(tensors_of(taken(program, scratch / "ranks", scratch / "stated", "merge", model={"lora_alpha": "12"})), wanted)
    (scratch / "ranks" / "lora_adapter").mkdir()
    shutil.copy(saved / "lora" / "adapter" / "adapter_config.json", scratch / "ranks" / "lora_adapter")
    assert_same(tensors_of(taken(program, scratch / "ranks", scratch / "beside", "merge")), wanted)


def test_what_is_not_understood_is_refused_by_name(saved, program, scratch):
    target = scratch / "target"
    for use in ("merge", "drop", "only"):
        refused(program, saved / "ia3" / "flat", target, use, "not understood", "ia3_l")
    refused(program, saved / "tokens" / "flat", target, "merge", "trainable_tokens_delta.default")
    refused(program, saved / "embedding" / "flat", target, "merge", "lora_embedding_A.default")
    refused(program, saved / "lora" / "flat", target, "keep", "peft has wrapped", ".base_layer.weight", code=2)
    refused(program, saved / "lora" / "base", target, "drop", "holds no model that peft has wrapped", code=2)
    refused(program, saved / "lora" / "flat", target, "merge", "holds an adapter of its own", code=2, source_options={"adapter": saved / "lora" / "adapter"})
    refused(program, saved / "dora" / "adapter", target, "keep", "DoRA", target_format="megatron", source_options={"config": saved / "dora" / "base"})


LAYER = "base_model.model.model.layers.0.mlp."
UP = {LAYER + "up_proj.base_layer.weight": (6, 4), LAYER + "up_proj.lora_A.default.weight": (2, 4), LAYER + "up_proj.lora_B.default.weight": (6, 2)}


def test_models_that_are_incomplete_or_of_another_adapter_are_refused(program, scratch):
    def told(*words, change=None, without="", config=None, use="merge", **options):
        folder, shapes = scratch / f"source{program.count}", {name: shape for name, shape in UP.items() if not without or without not in name}
        dcp.save({name: torch.ones(shape) for name, shape in shapes.items()} | (change or {}), checkpoint_id=folder, no_dist=True)
        stated = {"peft_type": "LORA", "r": 2, "lora_alpha": 4} | (config or {})
        (folder / "adapter_config.json").write_text(json.dumps(stated))
        refused(program, folder, scratch / "target", use, *words, target_format="dcp", ranks=1, **options)

    again = {name.replace("default", "other"): torch.ones(shape) for name, shape in UP.items()}
    told("holds several adapters (default, other)", change=again)
    told("holds several models that peft has wrapped, behind '', 'ema.'", change={f"ema.{name}": torch.ones(shape) for name, shape in UP.items()}, code=2)
    state = {"optimizer": {"state": {LAYER + "up_proj.lora_A.default.weight": {"exp_avg": torch.ones(2, 4)}}}}
    told("holds optimizer state of the adapter", change=state, code=2)
    told('bias = "all" in its adapter_config.json', config={"bias": "all"}, use="drop")
    told("/none/adapter.json is no file. Name an adapter_config.json", source_options={"adapter": "/none/adapter.json"}, code=2)
    told("'model.layers.0.mlp.up_proj' has no lora_A", without="lora_A")
    told("'model.layers.0.mlp.up_proj' has no lora_magnitude_vector, and an adapter with use_dora has both", config={"use_dora": True})
    told("its adapter adapts 'model.layers.0.mlp.up_proj', of which it holds no weight", without="base_layer", change={
        LAYER + "down_proj.base_layer.weight": torch.ones(4, 6)})
    told("lora_A.default.weight' and no weight of the base model that it belongs to", without="base_layer", use="drop", change={
        LAYER + "down_proj.base_layer.weight": torch.ones(4, 6)})
    told("has A [2, 5] and B [6, 2], which do not fit", change={LAYER + "up_proj.lora_A.default.weight": torch.ones(2, 5)})
    told("up_proj.lora_A.weight' is F64 [2, 4], expected 2 dimensions", change={LAYER + "up_proj.lora_A.default.weight": torch.ones(2, 4).double()})
    told("has one of lora_A and lora_B, and its adapter_config.json states use_dora = false", without="lora_A", use="only")
    told("has no lora_magnitude_vector, and its adapter_config.json states use_dora = true", config={"use_dora": True}, use="only")
    told("has a lora_A of rank 2, and its adapter_config.json states r = 5", config={"r": 5}, use="only")
    told("has a lora_A of rank 3 and a lora_B of rank 2", change={LAYER + "up_proj.lora_A.default.weight": torch.ones(3, 4)}, use="only")


def test_commands_read_by_a_job(saved, program, scratch):
    folder = saved / "lora"
    merged = taken(program, folder / "flat", scratch / "merged", "merge")
    job = scratch / "read.toml"
    job.write_text('[source]\n[model]\nadapter = "merge"\n')
    assert command("verify", folder / "flat", merged, "--source-a", job).returncode == 0
    assert command("diff", folder / "flat", merged, "--source-a", job).returncode == 0
    for sides in ((folder / "flat", merged), (merged, folder / "flat")):
        recorded = command("verify", *sides)
        assert recorded.returncode == 0 and "is read with the model.adapter of" in recorded.stdout, recorded.stdout + recorded.stderr
    digest = json.loads(command("digest", folder / "flat", "--source", job, "--json").stdout)
    assert digest["total"] == json.loads(command("digest", merged, "--map", "none", "--json").stdout)["total"]
    assert "base_layer" not in command("ls", folder / "flat", "--source", job).stdout
    merging = command("suspects", folder / "flat", "--source", job)
    assert merging.returncode == 2 and "suspects are looked for in stored weights" in merging.stderr
    alone = command("verify", folder / "flat", "--source-a", job)
    assert alone.returncode == 2 and "a checkpoint is verified as it was written. Remove the key from" in alone.stderr
    name = "model.layers.0.mlp.up_proj.weight"
    said = command("extract", folder / "flat", name, "--source", job, "-o", scratch / "one.safetensors")
    assert said.returncode == 0, said.stderr
    assert same_bits(load_file(scratch / "one.safetensors")[name], tensors_of(merged)[name])
    job.write_text('[source]\n[model]\nadapter = "drop"\n')
    assert command("verify", folder / "ranks", folder / "base", "--source-a", job).returncode == 0
    assert command("suspects", folder / "flat", "--source", job).returncode in (0, 1)
    for table, key, value in (("source", "average", '["a", "b"]'), ("model", "quant", '"dequantise-bf16"')):
        job.write_text(f"[{table}]\n{key} = {value}\n")
        said = command("digest", folder / "base", "--source", job)
        assert said.returncode == 2 and f"[{table}] {key}" in said.stderr and "Name a job without the key" in said.stderr, said.stderr
    both = command("digest", folder / "flat", "--source", job, "--map", "llama")
    assert both.returncode == 2 and "--source says how the checkpoint is read" in both.stderr
