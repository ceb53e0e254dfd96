"""Megatron Lite's models beyond Qwen3-MoE, made from Hugging Face folders as its own loaders make them (experimental/lite of Megatron-LM at
5e846ab3cf44: model/*/lite/checkpoint.py), and saved by torch from gloo processes: every rank with its share, as DTensors on the meshes
[PP, DP, CP, TP] and [PP, EDP, EP, ETP]; or, as `dist_opt` saves, by Megatron-Core's dist_checkpointing."""

import tempfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from gloo_ranks import run_ranks
from mlite_checkpoints import coordinate

NOISE = 7.0  # in the rows after the vocabulary, as training leaves something there

# A parameter is (name, placement on the tensor-parallel axis, tensors): "R" is one tensor that each rank has whole; "S0" is rows of each of the
# tensors, one behind the other; "S1" is columns of one.


def share(placement, tensors, rank, size):
    if placement == "R":
        return tensors[0]
    return torch.cat([tensor.chunk(size, dim=int(placement[1]))[rank] for tensor in tensors])


def of_suffixes(hf, here, suffixes):
    return [hf[here + suffix] for suffix in suffixes]


# --- layers ---------------------------------------------------------------------------------------------------------


def latent_attention(hf, at):
    here, attn = "self_attention.", at + "self_attn."
    return [
        (here + "linear_q_down_proj.weight", "R", [hf[attn + "q_a_proj.weight"]]),
        (here + "linear_q_up_proj.linear.layer_norm_weight", "R", [hf[attn + "q_a_layernorm.weight"]]),
        (here + "linear_q_up_proj.linear.weight", "S0", [hf[attn + "q_b_proj.weight"]]),
        (here + "linear_kv_down_proj.weight", "R", [hf[attn + "kv_a_proj_with_mqa.weight"]]),
        (here + "linear_kv_up_proj.linear.layer_norm_weight", "R", [hf[attn + "kv_a_layernorm.weight"]]),
        (here + "linear_kv_up_proj.linear.weight", "S0", [hf[attn + "kv_b_proj.weight"]]),
        (here + "linear_proj.linear.weight", "S1", [hf[attn + "o_proj.weight"]])]


def sparse_attention(hf, at):
    """GLM-5: the names of its own folder."""
    attn = at + "self_attn."
    return [("self_attention.self_attention." + name[len(attn):], "R", [tensor]) for name, tensor in hf.items() if name.startswith(attn)]


def shared_expert(hf, mlp, name, shared):
    gate_up = of_suffixes(hf, mlp + shared, (".gate_proj.weight", ".up_proj.weight"))
    return [(f"moe.{name}.gate_up.linear.weight", "S0", gate_up), (f"moe.{name}.down.linear.weight", "S1", [hf[f"{mlp}{shared}.down_proj.weight"]])]


def latent_layer(hf, at, attention):
    mlp, norm = at + "mlp.", [hf[at + "post_attention_layernorm.weight"]]
    result = [("input_layernorm.weight", "R", [hf[at + "input_layernorm.weight"]]), *attention(hf, at)]
    if mlp + "gate.weight" not in hf:
        gate_up = of_suffixes(hf, mlp, ("gate_proj.weight", "up_proj.weight"))
        return result + [
            ("mlp.gate_up.linear.layer_norm_weight", "R", norm), ("mlp.gate_up.linear.weight", "S0", gate_up),
            ("mlp.down.linear.weight", "S1", [hf[mlp + "down_proj.weight"]])]
    result += [("mlp_norm.weight", "R", norm), ("moe.router.gate.weight", "R", [hf[mlp + "gate.weight"]])]
    return result + shared_expert(hf, mlp, "shared_expert", "shared_experts")


def delta_attention(hf, at, sizes):
    here, keys, values, heads = at + "linear_attn.", sizes["keys"], sizes["values"], sizes["value_heads"]
    q, k, v = hf[here + "in_proj_qkv.weight"].split([keys, keys, values])
    parts = [q, k, v, *of_suffixes(hf, here, ("in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight"))]
    assert parts[-1].shape[0] == heads
    return [
        ("linear_attn.in_proj.linear.layer_norm_weight", "R", [hf[at + "input_layernorm.weight"]]),
        ("linear_attn.in_proj.linear.weight", "S0", parts),
        ("linear_attn.conv1d.weight", "S0", list(hf[here + "conv1d.weight"].split([keys, keys, values]))),
        ("linear_attn.dt_bias", "S0", [hf[here + "dt_bias"]]), ("linear_attn.A_log", "S0", [hf[here + "A_log"]]),
        ("linear_attn.norm.weight", "R", [hf[here + "norm.weight"] - 1]),
        ("linear_attn.o_proj.linear.weight", "S1", [hf[here + "out_proj.weight"]])]


def gated_attention(hf, at, sizes):
    here, groups, dim = at + "self_attn.", sizes["groups"], sizes["dim"]
    hidden = hf[here + "q_proj.weight"].shape[1]
    heads = hf[here + "q_proj.weight"].reshape(-1, 2, dim, hidden)  # a head's query, then its gate
    query, gate = (heads[:, part].reshape(groups, -1, hidden) for part in (0, 1))
    key, value = (hf[f"{here}{name}_proj.weight"].reshape(groups, dim, hidden) for name in "kv")
    return [
        ("full_attn.qkv.linear.layer_norm_weight", "R", [hf[at + "input_layernorm.weight"]]),
        ("full_attn.qkv.linear.weight", "S0", [torch.cat([query, gate, key, value], dim=1).reshape(-1, hidden)]),
        *[(f"full_attn.{name}_norm.weight", "R", [hf[f"{here}{name}_norm.weight"]]) for name in "qk"],
        ("full_attn.proj.linear.weight", "S1", [hf[here + "o_proj.weight"]])]


def delta_layer(hf, at, sizes):
    linear = at + "linear_attn.A_log" in hf
    mlp = at + "mlp."
    return [
        *(delta_attention if linear else gated_attention)(hf, at, sizes),
        ("mlp_norm.weight", "R", [hf[at + "post_attention_layernorm.weight"]]), ("moe.router.gate.weight", "R", [hf[mlp + "gate.weight"]]),
        *shared_expert(hf, mlp, "shared_expert", "shared_expert"),
        ("moe.shared_expert.shared_gate.weight", "R", [hf[mlp + "shared_expert_gate.weight"]])]


V4_NAMES = {
    "attn_norm.weight": "input_layernorm.weight", "ffn_norm.weight": "post_attention_layernorm.weight", "attn.attn_sink": "self_attn.self_attn.sinks",
    "ffn.gate.weight": "mlp.gate.gate.weight", "ffn.shared_experts.w2.weight": "mlp.shared_experts.down.weight"}


def v4_layer(hf, at):
    """Of a published folder: `at` is "layers.3." or "mtp.0.". What only dist_opt saves have is left out: tables and biases that choose experts."""
    result = [("mlp.shared_experts.gate_up.weight", "R", [torch.cat(of_suffixes(hf, at + "ffn.shared_experts.", ("w1.weight", "w3.weight")))])]
    for name, tensor in hf.items():
        if not name.startswith(at):
            continue
        rest = name[len(at):]
        if rest in V4_NAMES:
            rest = V4_NAMES[rest]
        elif rest.startswith("attn."):
            rest = "self_attn.self_" + rest
        elif rest.startswith("hc_head_"):
            rest = "hc_head.hc_" + rest[len("hc_head_"):]
        elif rest.startswith("hc_"):
            part, kind = rest[len("hc_"):].split("_")
            rest = f"{part}_hc.{kind}"
        elif rest.startswith("ffn."):
            continue
        result.append((rest, "R", [tensor]))
    return result


# --- models -----------------------------------------------------------------------------------------------------------


class LiteModel:
    """One model by the names of Megatron Lite: `layer(n)` and `expert(n, e)` of a decoder layer or, behind the last, of multi-token prediction."""

    def __init__(self, kind, hf, config):
        self.kind, self.hf, self.config = kind, hf, config
        text = config.get("text_config", config)
        self.layers, self.vocab = text["num_hidden_layers"], text["vocab_size"]
        self.v4 = kind == "deepseek_v4"
        self.root = next((root for root in ("model.language_model.", "model.") if root + "norm.weight" in hf), "")
        if kind == "qwen3_5":
            self.sizes = {
                "keys": text["linear_num_key_heads"] * text["linear_key_head_dim"], "values": text["linear_num_value_heads"] * text["linear_value_head_dim"],
                "value_heads": text["linear_num_value_heads"], "groups": text["num_key_value_heads"], "dim": text["head_dim"]}

    def at(self, layer):
        return f"mtp.{layer - self.layers}." if self.v4 and layer >= self.layers else f"{self.root}layers.{layer}."

    @property
    def depths(self):
        probe = "mtp.{}.norm.weight" if self.v4 else self.root + "layers.{}.enorm.weight"
        return sum(probe.format(depth + (0 if self.v4 else self.layers)) in self.hf for depth in range(4))

    def layer(self, layer):
        at = self.at(layer)
        if self.v4:
            return v4_layer(self.hf, at)
        if self.kind == "qwen3_5":
            return delta_layer(self.hf, at, self.sizes)
        return latent_layer(self.hf, at, latent_attention if self.kind == "kimi_k2" else sparse_attention)

    def expert(self, layer, expert):
        """Gate, up, down; nothing in a dense layer."""
        mlp = f"{self.at(layer)}{'ffn' if self.v4 else 'mlp'}.experts."
        if mlp + "gate_up_proj" in self.hf:
            return [*self.hf[mlp + "gate_up_proj"][expert].chunk(2), self.hf[mlp + "down_proj"][expert]]
        names = ("w1", "w3", "w2") if self.v4 else ("gate_proj", "up_proj", "down_proj")
        here = [f"{mlp}{expert}.{name}.weight" for name in names]
        return [self.hf[name] for name in here] if here[0] in self.hf else []

    def experts(self, layer):
        return sum(1 for expert in range(64) if self._has_expert(layer, expert))

    def _has_expert(self, layer, expert):
        mlp = f"{self.at(layer)}{'ffn' if self.v4 else 'mlp'}.experts."
        stacked = self.hf.get(mlp + "gate_up_proj")
        return expert < len(stacked) if stacked is not None else f"{mlp}{expert}.{'w1' if self.v4 else 'gate_proj'}.weight" in self.hf

    def top(self):
        """Of the first stage, and of the last."""
        if self.v4:
            last = [("norm.weight", "R", [self.hf["norm.weight"]]), ("lm_head.col.linear.weight", "S0", [self.padded("head.weight")])]
            last += [(f"hc_head.hc_{part}", "R", [self.hf[f"hc_head_{part}"]]) for part in ("fn", "base", "scale")]
            return [("embed_tokens.embedding.weight", "S0", [self.padded("embed.weight")])], last
        last = [("norm.weight", "R", [self.hf[self.root + "norm.weight"]]), ("head.col.linear.weight", "S0", [self.padded("lm_head.weight")])]
        return [("embed.embedding.weight", "S0", [self.padded(self.root + "embed_tokens.weight")])], last

    def padded(self, name):
        tensor = self.hf[name]
        missing = -tensor.shape[0] % 128
        return torch.cat([tensor, torch.full((missing, tensor.shape[1]), NOISE, dtype=tensor.dtype)])

    def prediction(self, depth):
        """Multi-token prediction beside its layer."""
        if self.v4:
            return []
        at, here = self.at(self.layers + depth), f"mtp.layers.{depth}."
        return [
            *[(f"{here}{name}.weight", "R", [self.hf[f"{at}{name}.weight"]]) for name in ("enorm", "hnorm")],
            (here + "eh_proj.linear.weight", "S0", [self.hf[at + "eh_proj.weight"]]),
            (here + "final_layernorm.weight", "R", [self.hf[at + "shared_head.norm.weight"]])]

    def stage(self, layout, stage):
        """Prefix of the names of a layer -> its number, and what else the stage has."""
        layers = {f"layers.{local}.": layer for local, layer in enumerate(layout.stages(self.layers)[stage])}
        first, last = self.top()
        others = first if stage == 0 else []
        if stage == layout.pp - 1:
            others = others + last
            for depth in range(self.depths):
                layers[f"mtp.{depth}." if self.v4 else f"mtp.layers.{depth}.transformer_layer."] = self.layers + depth
                others = others + self.prediction(depth)
            if self.depths and layout.pp > 1:
                others = others + [("mtp_embed.embedding.weight", "S0", first[0][2])]
        return layers, others


def rank_parameters(model, layout, rank):
    """Name in the rank's own module tree -> local tensor, and its placements on [PP, DP, CP, TP] or [PP, EDP, EP, ETP]."""
    stage, _, _, tp = coordinate(rank, layout.dense_shape())
    _, _, ep, etp = coordinate(rank, layout.expert_shape())
    layers, others = model.stage(layout, stage)
    result = {}
    for name, placement, tensors in others + [(at + name, *rest) for at, layer in layers.items() for name, *rest in model.layer(layer)]:
        result[name] = share(placement, tensors, tp, layout.tp), ["R", "R", "R", placement], False
    block = "mlp" if model.v4 else "moe"
    for at, layer in layers.items():
        count = model.experts(layer) // layout.ep
        for local in range(count):
            gate, up, down = model.expert(layer, ep * count + local)
            here = f"{at}{block}.experts."
            result[f"{here}fc1.weight{local}"] = share("S0", [gate, up], etp, layout.etp), ["R", "R", "S0", "S0"], True
            result[f"{here}fc2.weight{local}"] = share("S1", [down], etp, layout.etp), ["R", "R", "S0", "S1"], True
    return result


# --- saving -----------------------------------------------------------------------------------------------------------


def save_on_rank(rank, model, layout, folder, sharded):
    """`sharded`: tensors that no axis cuts are cut by rows over data-parallel ranks, as FSDP2 has them; some ranks get none."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

    ranks = torch.arange(layout.world)
    dense = DeviceMesh("cpu", ranks.reshape(layout.dense_shape()), mesh_dim_names=("pp", "dp", "cp", "tp"))
    experts = DeviceMesh("cpu", ranks.reshape(layout.expert_shape()), mesh_dim_names=("pp", "edp", "ep", "etp"))
    stage = coordinate(rank, layout.dense_shape())[0]
    prefix = f"model_pp{stage}" if layout.pp > 1 else "model"
    state = {"step": 12}
    for name, (local, words, of_experts) in rank_parameters(model, layout, rank).items():
        mesh = experts if of_experts else dense
        placements = [Replicate() if word == "R" else Shard(int(word[1:])) for word in words]
        if sharded and set(words) == {"R"} and layout.tp == 1:
            state[f"{prefix}.{name}"] = distribute_tensor(local.clone(), dense["dp"], [Shard(0)])
        else:
            state[f"{prefix}.{name}"] = DTensor.from_local(local.clone().contiguous(), mesh, placements, run_check=False)
    dcp.save(state, checkpoint_id=folder)


def on_ranks(function, model, layout, *arguments):
    """Ranks read the model from a file: so many tensors cannot be handed to a process."""
    with tempfile.NamedTemporaryFile() as file:
        torch.save(model, file.name)
        return run_ranks(on_rank, layout.world, (function, file.name, layout, *arguments), "mlite_models")


def on_rank(rank, function, file, *arguments):
    return function(rank, torch.load(file, weights_only=False), *arguments)


def save(model, layout, folder, sharded=False):
    on_ranks(save_on_rank, model, layout, str(folder), sharded)
    return Path(folder)


def save_dist_opt_on_rank(rank, model, layout, folder, buffers):
    """As primitive/ckpt/distckpt.py: names alone without pipeline stages. Buffers go along: (stage, name) -> tensor that all its ranks have."""
    from dcp_models import prepare_distributed_checkpoints

    prepare_distributed_checkpoints()
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing.mapping import ShardedTensor

    stage = coordinate(rank, layout.dense_shape())[0]
    prefix = f"model_pp{stage}." if layout.pp > 1 else ""
    state = {"step": 12}
    parameters = rank_parameters(model, layout, rank)
    for (of_stage, name), tensor in buffers.items():
        if of_stage == stage:
            parameters[name] = tensor, ["R", "R", "R", "R"], False
    for name, (local, words, of_experts) in parameters.items():
        shape = layout.expert_shape() if of_experts else layout.dense_shape()
        place = coordinate(rank, shape)
        fragments = {}
        for axis, word in enumerate(words):
            if word != "R":
                at, size = fragments.get(int(word[1:]), (0, 1))
                fragments[int(word[1:])] = at * shape[axis] + place[axis], size * shape[axis]
        replica = (0, *[0 if words[axis] != "R" else place[axis] for axis in ((2, 1) if of_experts else (3, 1))])
        offsets = [(dim, at, size) for dim, (at, size) in fragments.items()]
        state[prefix + name] = ShardedTensor.from_rank_offsets(prefix + name, local.clone().contiguous(), *offsets, replica_id=replica)
    Path(folder).mkdir(parents=True, exist_ok=True)
    dist_checkpointing.save(state, folder, validate_access_integrity=False)


def save_dist_opt(model, layout, folder, buffers=None):
    on_ranks(save_dist_opt_on_rank, model, layout, str(folder), buffers or {})
    return Path(folder)


# --- loading ----------------------------------------------------------------------------------------------------------


def load_on_rank(rank, model, layout, folder):
    """What Megatron Lite's loader would put into the parameters of a rank: a strict load into empty DTensors of its own placements."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    ranks = torch.arange(layout.world)
    dense = DeviceMesh("cpu", ranks.reshape(layout.dense_shape()))
    experts = DeviceMesh("cpu", ranks.reshape(layout.expert_shape()))
    prefix = f"model_pp{coordinate(rank, layout.dense_shape())[0]}" if layout.pp > 1 else "model"
    state, wanted = {"step": 0}, rank_parameters(model, layout, rank)
    for name, (local, words, of_experts) in wanted.items():
        placements = [Replicate() if word == "R" else Shard(int(word[1:])) for word in words]
        empty = torch.full_like(local, 3.0).contiguous()
        state[f"{prefix}.{name}"] = DTensor.from_local(empty, experts if of_experts else dense, placements, run_check=False)
    dcp.load(state, checkpoint_id=folder)
    assert state["step"] == 0
    return [name for name, (local, _, _) in wanted.items() if not torch.equal(without_padding(state[f"{prefix}.{name}"].to_local(), local), local_values(local))]


def without_padding(loaded, expected):
    """Rows after the vocabulary are noise on one side and zero on the other."""
    return torch.where(expected == NOISE, torch.zeros_like(loaded), loaded) if loaded.ndim == 2 else loaded


def local_values(expected):
    return torch.where(expected == NOISE, torch.zeros_like(expected), expected) if expected.ndim == 2 else expected


def differing_when_loaded(model, layout, folder):
    return on_ranks(load_on_rank, model, layout, str(folder))
