"""python writers_table.py BINARY FOLDER [WORDS...]: what becomes of checkpoints that the PyTorch side writes.

Real DeepSpeed, FSDP2, accelerate, verl's way of saving, peft, transformers, and torchao and torchtitan where they are installed, save tiny models into FOLDER
on gloo processes. Each goes to every format, and `verify` compares the target with its source. A row for each pair says: same, what differs, or the words of
the refusal; then come counts. WORDS: only writers whose name has one of them.
"""

import collections
import json
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path

os.environ |= {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}

import torch

DROP = {"source.optimizer": "drop"}
TARGETS = {
    "huggingface": DROP, "dcp": {}, "torch_dist": {"target.layout.tp": 2}, "megatron": {"target.layout.tp": 2}, "fsdp_dtensor": {}, "hdf5": {}, "deepspeed": {},
    "mistral": DROP}
TUNERS = dict.fromkeys((
    "LoHa", "LoKr", "BOFT", "HRA", "LNTuning", "RandLora", "Delora", "Gralora", "OSF", "Lily", "Peanut", "Pvera", "TinyLora", "Cartridge", "PromptTuning",
    "PrefixTuning", "UniLora", "Hira"), {}) | {
        "AdaLora": dict(total_step=10), "IA3": dict(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
        "OFT": dict(oft_block_size=4, r=0), "Vera": dict(target_modules=["q_proj"]), "VBLoRA": dict(vector_length=8, num_vectors=16),
        "FourierFT": dict(n_frequency=10), "WaveFT": dict(n_frequency=10), "Miss": dict(r=4), "Shira": dict(r=4), "C3A": dict(block_size=8),
        "Psoft": dict(r=4), "Road": dict(group_size=16)}
NAMED_BY_MAPS = ("torch_dist", "megatron", "fsdp_dtensor", "hdf5", "mistral")


class Table:
    def __init__(self, binary, root, words):
        self.binary, self.root, self.words, self.rows = binary, root, words, []

    def wanted(self, writer):
        return not self.words or any(word in writer for word in self.words)

    def note(self, writer, target, result, why=""):
        self.rows.append((writer, target, result, why))
        print(f"| {writer} | {target} | {result} | {why} |", flush=True)

    def command(self, *words):
        return subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True, errors="replace", timeout=300)

    def convert(self, writer, source, form, keys, label=""):
        target = self.root / "targets" / re.sub(r"\W+", "-", f"{writer}-{label or form}")
        job = Path(f"{target}.toml")
        target.parent.mkdir(exist_ok=True)
        values = {"source.path": str(source), "source.rng": "drop", "target.path": str(target), "target.format": form, "target.replace": True} | keys
        job.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
        made = self.command("run", job, "--quiet")
        if made.returncode:
            words = next((line for line in made.stderr.splitlines() if "error:" in line), made.stderr[-300:])
            result = "refused" if made.returncode in (2, 3, 4) else "FAILED"
            self.note(writer, label or form, f"{result} {made.returncode}", without_paths(words))
            return None
        return target

    def row(self, writer, source, config=None, targets=TARGETS):
        for form, keys in targets.items():
            described = {"source.config": str(config)} if config and (form in NAMED_BY_MAPS or "model.map" in keys) else {}
            target = self.convert(writer, source, form, described | keys)
            if target is None:
                continue
            same = self.command("verify", source, target)
            differs = same.returncode != 0
            self.note(writer, form, "DIFFERENT" if differs else "same", without_paths((same.stdout + same.stderr).strip()[-300:]) if differs else "")

    def attempt(self, writer, save):
        """What `save` returns; a writer that fails is a row."""
        try:
            return save()
        except (Exception, SystemExit) as error:
            self.note(writer, "-", "writer fails", without_paths(f"{type(error).__name__}: {error}"[:200]))
            if os.environ.get("WRITERS_TRACE"):
                traceback.print_exc()

    def summary(self):
        counts = collections.Counter(result for _, _, result, _ in self.rows)
        writers = {writer for writer, *_ in self.rows}
        print(f"\n{len(writers)} writers, {len(self.rows)} results:", ", ".join(f"{count} {name}" for name, count in sorted(counts.items())))
        refused = [(target, words) for _, target, result, words in self.rows if result.startswith("refused")]
        why = collections.Counter((target, re.sub(r"'[^']*'|\"[^\"]*\"|\d+", "…", words)[:150]) for target, words in refused)
        for (target, words), count in why.most_common():
            print(f"{count:4} {target}: {words}")


def without_paths(text):
    return re.sub(r"/\S+/", "", text).replace("\n", " / ").replace("|", "\\|")


# --- DeepSpeed ------------------------------------------------------------------------------------------------------

DEEPSPEED = {f"zero{stage}": {"stage": stage} for stage in range(4)} | {
    "zero1 fp32": {"stage": 1, "dtype": "fp32"}, "zero3 fp32": {"stage": 3, "dtype": "fp32"}, "zero1 one group": {"stage": 1, "groups": 1},
    "zero3 one group": {"stage": 3, "groups": 1}, "zero1 tied": {"stage": 1, "model": "tied"}, "zero3 tied": {"stage": 3, "model": "tied"},
    "zero2 round robin": {"stage": 2, "zero": {"round_robin_gradients": True}}, "zero3 sub groups": {"stage": 3, "zero": {"sub_group_size": 700}},
    "zero3 hpz": {"stage": 3, "zero": {"zero_hpz_partition_size": 2}}, "zero2 plain, frozen": {"stage": 2, "model": "plain"},
    "zero3 plain, frozen": {"stage": 3, "model": "plain"},
    "zero1 gradients fp32": {"stage": 1, "config": {"data_types": {"grad_accum_dtype": "fp32"}}},
    "zero1 autocast": {"stage": 1, "dtype": "fp32", "config": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}},
    "zero3 autocast": {"stage": 3, "dtype": "fp32", "config": {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}},
    "zero1 node pipeline": {"stage": 1, "config": {"checkpoint": {"parallel_write": {"pipeline_stage": True}}}}}


def deepspeed(table):
    import deepspeed_runs as runs

    for world in (1, 2, 3):
        for name, case in DEEPSPEED.items():
            writer = f"deepspeed {name}, {world} ranks"
            if not table.wanted(writer) or (world != 2 and (" " in name or name == "zero0")):
                continue
            folder = table.root / writer.replace(" ", "-").replace(",", "")
            case = {"model": "llama", "folder": str(folder)} | case
            if table.attempt(writer, lambda case=case, writer=writer, world=world: runs.save(world, {writer: case})) is None:
                continue
            config = None
            if case["model"] != "plain":
                config = folder
                runs.llama_config(tied=case["model"] == "tied").save_pretrained(folder)
            table.row(writer, folder, config)
            if case["stage"] > 0:
                universal(table, writer, folder, config)


def universal(table, writer, folder, config):
    save = next(path for path in folder.glob("global_step*") if path.is_dir())
    made = folder.with_name(folder.name + "-universal")
    done = subprocess.run(
        [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder", save, "--output_folder", made, "--num_extract_workers", "1",
         "--num_merge_workers", "1", "--inject_missing_state"], capture_output=True, text=True, timeout=200)
    if done.returncode:
        table.note(writer + ", universal", "-", "writer fails", without_paths(done.stderr.strip().splitlines()[-1][:200]))
    else:
        table.row(writer + ", universal", made, config)


# --- FSDP2, accelerate, verl ----------------------------------------------------------------------------------------

def fsdp(table):
    import dcp_trainers

    for world in (2, 3):
        for form in ("bare", "nest", "app", "accelerate"):
            for tied, groups in ((False, 1), (False, 2), (True, 1)):
                writer = f"fsdp2 {form}, {'tied, ' if tied else ''}{groups} groups, {world} ranks"
                folder = table.root / writer.replace(" ", "-").replace(",", "")
                if not table.wanted(writer) or (world == 3 and (tied or groups == 2)):
                    continue
                folder.mkdir(exist_ok=True)
                if table.attempt(writer, lambda job=(form, tied, groups, str(folder)), world=world: dcp_trainers.save(world, [job]) or True):
                    table.row(writer, folder)


def verl(table):
    import fsdp_rank_saves
    import test_fsdp_rank_files

    kinds = [kind for kind in test_fsdp_rank_files.KINDS if table.wanted(f"rank files {kind}")]
    root = table.root / "rank-files"
    if kinds and table.attempt("rank files", lambda: fsdp_rank_saves.save(kinds, root)):
        for kind in kinds:
            # Their sizes are odd.
            table.row(f"rank files {kind}", root / kind, targets=dict.fromkeys(TARGETS, {}) | {"huggingface": DROP, "mistral": DROP})


# --- Hugging Face, torch's own writers ------------------------------------------------------------------------------

def huggingface(table):
    import torch.distributed.checkpoint as dcp
    import transformers
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    config = transformers.LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    state = model.state_dict()
    places = {name: number % 2 + 1 for number, name in enumerate(state)}

    def saved(name, save):
        folder = table.root / name.replace(" ", "-")
        folder.mkdir(exist_ok=True)
        if table.wanted(name) and table.attempt(name, lambda: save(folder) or True):
            config.save_pretrained(folder)
            table.row(name, folder)

    saved("transformers one file", model.save_pretrained)
    saved("transformers shards", lambda folder: model.save_pretrained(folder, max_shard_size="20KB"))
    saved("torch.save of a state dict", lambda folder: torch.save(state, folder / "pytorch_model.bin"))
    saved("dcp no_dist", lambda folder: dcp.save(state, checkpoint_id=folder, no_dist=True))
    for consolidated in (False, True):
        saved(f"HuggingFaceStorageWriter {'consolidated' if consolidated else 'files'}", lambda folder, consolidated=consolidated: dcp.save(
            state, no_dist=True, storage_writer=HuggingFaceStorageWriter(
                path=str(folder), fqn_to_index_mapping=places, save_distributed=consolidated, enable_consolidation=consolidated)))


# --- peft -----------------------------------------------------------------------------------------------------------

def lora_settings():
    linear = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    yield "lora", "base", {}
    yield "rslora", "base", {"use_rslora": True}
    yield "dora", "base", {"use_dora": True}
    yield "rank pattern", "base", {"rank_pattern": {"q_proj": 8}, "alpha_pattern": {"q_proj": 32}}
    yield "regex", "base", {"target_modules": r".*layers\.1\..*(q_proj|v_proj)"}
    yield "all linear", "base", {"target_modules": "all-linear"}
    yield "layers", "base", {"layers_to_transform": [1]}
    yield "exclude", "base", {"exclude_modules": ["o_proj"]}
    yield "lora_bias", "base", {"lora_bias": True}
    yield "bias all", "base", {"bias": "all"}
    yield "modules_to_save", "base", {"modules_to_save": ["lm_head"]}
    yield "embedding", "base", {"target_modules": ["q_proj", "embed_tokens"]}
    yield "tokens", "base", {"trainable_token_indices": [1, 5]}
    yield "replication", "base", {"layer_replication": [[0, 2], [1, 2]]}
    for form in ("pissa", "olora", "orthogonal", "gaussian"):
        yield f"init {form}", "base", {"init_lora_weights": form}
    yield "experts' attention", "moe", {"target_modules": ["q_proj", "v_proj"]}
    yield "experts", "moe", {"target_modules": ["q_proj"], "target_parameters": ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]}
    yield "experts' gate", "moe", {"target_modules": [], "target_parameters": ["mlp.experts.gate_up_proj"]}
    yield "router", "moe", {"target_modules": ["q_proj"], "target_parameters": ["mlp.gate.weight"]}
    yield "experts all linear", "moe", {"target_modules": "all-linear"}
    yield "", "", {"target_modules": linear}


def adapters(table):
    import peft
    import transformers

    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8)
    experts = dict(moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
    bases = {
        "base": transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)),
        "moe": transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes, **experts))}
    for name, model in bases.items():
        model.to(torch.bfloat16).save_pretrained(table.root / name)
    *given, (_, _, usual) = lora_settings()

    def adapter(writer, base, config_of):
        folder = table.root / writer.replace(" ", "-").replace("'", "")

        def save():
            torch.manual_seed(1)
            model = peft.get_peft_model(type(bases[base]).from_pretrained(table.root / base, dtype=torch.float32), config_of())
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.requires_grad:
                        parameter.add_(torch.randn_like(parameter) * 0.02)
            model.save_pretrained(folder)
            return True

        if not table.wanted(writer) or not table.attempt(writer, save):
            return
        table.row(writer, folder, table.root / base, {"torch_dist": {"target.layout.tp": 2}, "huggingface": {}})
        merged = table.convert(writer, table.root / base, "huggingface", {"source.adapter": str(folder), "model.adapter": "merge"}, "merged")
        if merged:
            same = table.command("verify", table.root / base, merged, "--adapter", folder)
            table.note(writer, "merged", "same" if same.returncode == 0 else "DIFFERENT", "" if same.returncode == 0 else without_paths(same.stdout[-200:]))

    for name, base, settings in given:
        adapter(f"peft {name}", base, lambda settings=settings: peft.LoraConfig(**({"r": 4, "lora_alpha": 8} | usual | settings)))
    for name in TUNERS:
        kind = getattr(peft, f"{name}Config", None)
        if kind is None:
            continue
        fields = kind.__dataclass_fields__
        keys = {"target_modules": ["q_proj", "v_proj"]} if "target_modules" in fields and name != "LNTuning" else {}
        keys |= TUNERS[name]
        keys |= {"num_virtual_tokens": 3} if "num_virtual_tokens" in fields else {}
        keys |= {"task_type": "CAUSAL_LM"} if "task_type" in fields else {}
        adapter(f"peft {name}", "base", lambda kind=kind, keys=keys: kind(**keys))


# --- torchao --------------------------------------------------------------------------------------------------------

def torchao(table):
    try:
        from torchao import quantization
        from transformers import LlamaConfig, LlamaForCausalLM, TorchAoConfig
    except ImportError as error:
        return table.note("torchao", "-", "writer fails", without_paths(str(error)))
    plain = table.root / "torchao-base"
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(plain)
    for name in ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig", "Int4WeightOnlyConfig", "IntxWeightOnlyConfig"):
        writer, folder = f"torchao {name}", table.root / f"torchao-{name}"

        def save(name=name, folder=folder):
            config = TorchAoConfig(getattr(quantization, name)())
            LlamaForCausalLM.from_pretrained(plain, quantization_config=config, dtype=torch.bfloat16).save_pretrained(folder)
            return True

        if table.wanted(writer) and table.attempt(writer, save):
            table.row(writer, folder)


# --- torchtitan -----------------------------------------------------------------------------------------------------

TITAN = {  # model, fused wq, wk and wv, optimizers, settings of its CheckpointManager
    "dense": ("dense", True, "adamw", {}), "dense, qkv apart": ("dense", False, "adamw", {}), "dense, two groups": ("dense", False, "groups", {}),
    "experts": ("experts", True, "adamw", {}), "experts, qkv apart": ("experts", False, "groups", {}),
    "dense, weights alone": ("dense", True, "adamw", dict(last_save_model_only=True, export_dtype="bfloat16")),
    "dense, asynchronous": ("dense", False, "adamw", dict(last_save_model_only=False, async_mode="async")),
    "experts, last save for Hugging Face": ("experts", True, "adamw", dict(last_save_in_hf=True, export_dtype="bfloat16"))}



def torchtitan(table):
    try:
        import titan_runs
    except ImportError as error:
        return table.note("torchtitan", "-", "writer fails", without_paths(str(error)))
    for name, (kind, *of) in TITAN.items():
        writer, root = f"torchtitan {name}", table.root / f"torchtitan-{re.sub('[^a-z]+', '-', name.lower())}"
        if not table.wanted(writer):
            continue
        titan_runs.hf_config(kind).save_pretrained(root)
        if table.attempt(writer, lambda job=(kind, *of, str(root)): titan_runs.save(2, [job]) or True):
            saved = root / "checkpoint" / "step-3"
            own = {} if list(saved.glob("*.safetensors")) else {"model.map": "torchtitan_qwen3"}
            table.row(writer, saved, root, {form: keys | (own if form != "dcp" else {}) for form, keys in TARGETS.items()})


def main():
    binary, root, *words = sys.argv[1:]
    table = Table(os.path.abspath(binary), Path(root).resolve(), words)
    table.root.mkdir(exist_ok=True)
    for write in (huggingface, fsdp, verl, deepspeed, adapters, torchao, torchtitan):
        write(table)
    table.summary()


if __name__ == "__main__":
    main()
