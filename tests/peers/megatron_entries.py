"""The entries of one chunk's state dict, in the order in which Megatron's modules register them."""

from dataclasses import dataclass

EXTRA_LINEAR, EXTRA_NORM, EXTRA_NONE = "extra of a linear", "extra of a norm", "extra that is always None"


@dataclass(frozen=True)
class Entry:
    """`source` names a global tensor; extra states have none. `rule` says how TP (or ETP for experts) cuts the global tensor."""

    name: str
    source: str = None
    rule: str = "whole"  # whole | rows | columns | halves | vocab, or an EXTRA_* kind
    is_expert: bool = False


def chunk_entries(config, layout, form, chunk, ep):
    entries = []
    if chunk.has_embedding:
        entries.append(Entry("embedding.word_embeddings.weight", "embed", "vocab"))
    for local, layer in enumerate(chunk.layers):
        entries += layer_entries(config, form, f"decoder.layers.{local}.", f"layers.{layer}.", layer, expert_ids(config, layout, ep))
    if chunk.has_head:
        entries.append(Entry("decoder.final_layernorm.weight", "final_norm"))
        entries += norm_extra(form, "decoder.final_layernorm")
        entries += head_entries(config, chunk)
    return entries


def expert_ids(config, layout, ep):
    """Global ids of the experts of EP rank `ep`: contiguous blocks."""
    per_rank = config.experts // layout.ep
    return range(ep * per_rank, (ep + 1) * per_rank)


def head_entries(config, chunk):
    """A tied model keeps a copy of the embedding under the head's name where the last stage is not the first one."""
    entries = []
    if not config.tied:
        entries.append(Entry("output_layer.weight", "head", "vocab"))
    elif not chunk.has_embedding:
        entries.append(Entry("output_layer.weight", "embed", "vocab"))
    return entries + [Entry("output_layer._extra_state", rule=EXTRA_NONE)]


def layer_entries(config, form, here, layer_source, layer, experts):
    fused = form.impl == "te"
    entries = [] if fused else [Entry(here + "input_layernorm.weight", layer_source + "attn_norm")]
    entries += attention_entries(config, form, here + "self_attention.", layer_source)
    if config.is_moe(layer) or not fused:
        entries.append(Entry(here + "pre_mlp_layernorm.weight", layer_source + "mlp_norm"))
        entries += norm_extra(form, here + "pre_mlp_layernorm")
    if config.is_moe(layer):
        entries.append(Entry(here + "mlp.router.weight", layer_source + "router"))
        return entries + expert_entries(config, form, here + "mlp.experts.", layer_source, experts)
    return entries + dense_entries(config, form, here + "mlp.", layer_source)


def attention_entries(config, form, here, source):
    entries = [Entry(here + "core_attention._extra_state", rule=EXTRA_LINEAR)] if form.impl == "te" else []
    entries += linear(here + "linear_proj", source + "proj", "columns")
    if form.impl == "te":
        entries.append(Entry(here + "linear_qkv.layer_norm_weight", source + "attn_norm"))
    entries.append(Entry(here + "linear_qkv.weight", source + "qkv", "rows"))
    if config.qkv_bias:
        entries.append(Entry(here + "linear_qkv.bias", source + "qkv_bias", "rows"))
    entries.append(Entry(here + "linear_qkv._extra_state", rule=EXTRA_LINEAR))
    for norm in ("q", "k") if config.qk_norm else ():
        entries.append(Entry(f"{here}{norm}_layernorm.weight", f"{source}{norm}_norm"))
        entries += norm_extra(form, f"{here}{norm}_layernorm")
    return entries


def dense_entries(config, form, here, source):
    norm = [Entry(here + "linear_fc1.layer_norm_weight", source + "mlp_norm")] if form.impl == "te" else []
    return norm + linear(here + "linear_fc1", source + "fc1", fc1_rule(config)) + linear(here + "linear_fc2", source + "fc2", "columns")


def expert_entries(config, form, here, source, experts):
    entries = []
    if form.experts == "grouped":
        for layer, rule in (("fc1", fc1_rule(config)), ("fc2", "columns")):
            for local, expert in enumerate(experts):
                entries.append(Entry(f"{here}linear_{layer}.weight{local}", f"{source}experts.{expert}.{layer}", rule, True))
            entries.append(Entry(f"{here}linear_{layer}._extra_state", rule=EXTRA_LINEAR))
        return entries
    for local, expert in enumerate(experts):
        at = f"{here}local_experts.{local}.linear_"
        entries += linear(at + "fc1", f"{source}experts.{expert}.fc1", fc1_rule(config), True)
        entries += linear(at + "fc2", f"{source}experts.{expert}.fc2", "columns", True)
    return entries


def linear(name, source, rule, is_expert=False):
    return [Entry(name + ".weight", source, rule, is_expert), Entry(name + "._extra_state", rule=EXTRA_LINEAR)]


def norm_extra(form, name):
    return [Entry(name + "._extra_state", rule=EXTRA_NORM)] if form.impl == "te" and form.norm_extra_state else []


def fc1_rule(config):
    """A gated fc1 holds two matrices: every rank stores its gate rows, then its up rows."""
    return "halves" if config.gated else "rows"
