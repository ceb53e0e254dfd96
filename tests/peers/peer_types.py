"""What a test model is, how it is cut into ranks, and which spelling its parameters have on disk."""

from dataclasses import dataclass, replace
from math import lcm


@dataclass(frozen=True)
class ModelConfig:
    """A tiny decoder-only model. `experts` > 0 makes the layers of `moe_layers` (all when None) mixture-of-experts layers."""

    family: str = "llama"
    layers: int = 4
    hidden: int = 32
    heads: int = 4
    groups: int = 2
    head_dim: int = 8
    ffn: int = 48
    vocab: int = 90
    vocab_divisor: int = 8
    experts: int = 0
    expert_ffn: int = 24
    top_k: int = 2
    moe_layers: tuple = None
    gated: bool = True
    qkv_bias: bool = False
    qk_norm: bool = False
    tied: bool = False
    dtype: str = "bfloat16"
    rope_base: int = 10000
    norm_eps: float = 1e-6

    def is_moe(self, layer):
        return self.experts > 0 and (self.moe_layers is None or layer in self.moe_layers)

    @property
    def qkv_rows(self):
        return (self.heads + 2 * self.groups) * self.head_dim

    def padded_vocab(self, tp):
        """Megatron pads the vocabulary to a multiple that depends on TP, so a pure TP change alters global shapes."""
        unit = self.vocab_divisor * tp
        return -(-self.vocab // unit) * unit

    def with_(self, **changes):
        return replace(self, **changes)


@dataclass(frozen=True)
class Layout:
    """Parallel sizes of a checkpoint. `pipeline` is Megatron's layout string and replaces vpp and the stage counts."""

    tp: int = 1
    pp: int = 1
    vpp: int = 1
    ep: int = 1
    etp: int = 1
    first_stage_layers: int = None
    last_stage_layers: int = None
    pipeline: str = None

    @property
    def ranks_per_stage(self):
        """Dense ranks count tp first, expert ranks etp then ep, over the same processes: both patterns repeat after the lcm."""
        return lcm(self.tp, self.etp * self.ep)

    @property
    def world(self):
        return self.ranks_per_stage * self.pp

    def grid_pairs(self):
        """The (tp, ep) pairs that some process has; other combinations never exist on disk."""
        return sorted({(r % self.tp, (r // self.etp) % self.ep) for r in range(self.ranks_per_stage)})

    def toml(self):
        fields = ["tp", "pp", "vpp", "ep", "etp", "first_stage_layers", "last_stage_layers"]
        known = [f"{name} = {getattr(self, name)}" for name in fields if getattr(self, name) is not None]
        if self.pipeline:
            known.append(f'pipeline = "{self.pipeline}"')
        return "{ " + ", ".join(known) + " }"

    def label(self):
        text = f"tp{self.tp}pp{self.pp}v{self.vpp}ep{self.ep}x{self.etp}"
        if self.first_stage_layers is not None:
            text += f"first{self.first_stage_layers}"
        if self.last_stage_layers is not None:
            text += f"last{self.last_stage_layers}"
        return text + ("layout" if self.pipeline else "")


@dataclass(frozen=True)
class Form:
    """How parameters are spelled: `impl` local or te (Transformer Engine), `experts` sequential or grouped (te only)."""

    impl: str = "local"
    experts: str = "sequential"
    extra_state: str = "tensor"  # te: "tensor" (TE >= 2) or "bytes" (TE 1); local modules always store None
    norm_extra_state: bool = False  # te: recent versions also store one per norm module

    def label(self):
        return f"{self.impl}-{self.experts}" + ("-norms" if self.norm_extra_state else "")


LOCAL = Form()
TE_GROUPED = Form("te", "grouped")
TE_SEQUENTIAL = Form("te", "sequential")
