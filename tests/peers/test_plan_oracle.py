"""Random models through random formats, layouts and boxes: the slow model of `plan_oracle.py` says where every element must lie, and looks there."""

import os
import random
from dataclasses import replace

import pytest
import torch

import cases
import dcp_reading
import hf_models
import plan_oracle
import random_layouts
from dcp_cases import names_of
from dcp_worlds import Mesh, expected_grid
from hdf5_reading import read_container
from logical_tensors import logical_tensors
from numpy_megatron import SHARD_FILE, iteration_folder, read_tree, write_tree
from peer_types import LOCAL, TE_GROUPED, TE_SEQUENTIAL, Layout
from plan_oracle import NOT_NULL, assert_same_places, numbered
from tree_checks import is_norm_extra, with_written_divisor

SEED = int(os.environ.get("RESHARD_TEST_SEED", "20240921"))
COUNT = int(os.environ.get("RESHARD_TEST_WALKS", "40"))
RANKS = (1, 2, 3, 5)
FORMATS = ("megatron", "torch_dist", "huggingface", "hdf5", "fsdp_dtensor", "dcp")
FIRST = ("megatron", "torch_dist", "huggingface", "dcp")  # those that the oracle writes itself
SMALL = dict(layers=4, dtype="float32")
MODELS = {
    "llama": cases.LLAMA.with_(**SMALL, heads=8, groups=2), "tied": cases.LLAMA_TIED.with_(**SMALL), "square": cases.LLAMA_SQUARE.with_(**SMALL),
    "biases": cases.QWEN2.with_(**SMALL), "norms": cases.QWEN3.with_(**SMALL), "norms-bf16": cases.QWEN3.with_(layers=4, vocab=91),
    "moe": cases.QWEN3_MOE.with_(**SMALL), "moe-odd": cases.QWEN3_MOE.with_(layers=3, experts=6, expert_ffn=20, vocab=77, dtype="float32"),
    "mixed": cases.QWEN3_MOE_MIXED.with_(layers=4, moe_layers=(1, 2), dtype="float32"), "mixtral-f16": cases.MIXTRAL.with_(layers=3, dtype="float16")}


class Walk:
    """One model on its way: what is there now, how it is laid out, and what of it must be where."""

    def __init__(self, config, program, scratch, generator):
        self.config, self.program, self.scratch, self.generator = config, program, scratch, generator
        self.model = numbered(config)
        self.tensors = self.model.tensors
        self.path, self.format, self.form, self.count = None, None, None, 0

    def layout(self):
        while True:
            layout = random_layouts.random_layout(self.generator, self.config)
            stages = (layout.first_stage_layers or 0) + (layout.last_stage_layers or 0)
            experts = not self.config.experts or (self.config.experts % layout.ep == 0 and self.config.expert_ffn % layout.etp == 0)
            if experts and stages < self.config.layers:
                return layout

    def begin(self, kind):
        layout, form, self.format = self.layout(), self.random_form(), kind
        self.form = form
        self.path = self.scratch / "first"
        if kind == "megatron":
            write_tree(self.path, self.config, layout, form, self.tensors, enums=NOT_NULL)
        elif kind == "torch_dist":
            plan_oracle.write_torch_dist(self.path, self.config, self.tensors, layout, form, self.generator)
        elif kind == "huggingface":
            plan_oracle.write_hf(self.path, self.config, self.tensors, self.generator)
        else:
            plan_oracle.write_boxes(self.path, hf_models.globals_to_hf(self.config, self.tensors), self.generator)
            hf_models.hf_config(self.config).save_pretrained(self.path)

    def random_form(self):
        return self.generator.choice([LOCAL, TE_SEQUENTIAL, TE_GROUPED] if self.config.experts else [LOCAL, TE_SEQUENTIAL])

    def go(self, kind, layout=None):
        """Converts what is there, and looks at every element of what has become of it."""
        self.count += 1
        target = self.scratch / f"{self.count}-{kind}"
        options = {"ranks": self.generator.choice(RANKS), "memory": self.generator.choice(["4 MiB", "64 MiB"]), "target_options": {}}
        if self.format == "dcp" and kind not in ("dcp", "huggingface"):  # those two keep its names
            options["source_options"] = {"config": self.path}
        if kind == "huggingface" and self.format != "dcp":
            options["model"] = {"map": self.config.family}
        getattr(self, "to_" + kind)(target, options, layout or self.layout())
        self.path, self.format = target, kind

    def run(self, target, kind, options):
        return self.program.run(self.path, target, kind, **options)

    def named(self, kind, options, layout):
        """A target with Megatron's names, in any form."""
        form = self.form if self.format == kind else self.random_form()  # a format keeps its own names
        options["target_options"] |= {"layout": layout.toml()} | names_of(form)
        return form

    def to_megatron(self, target, options, layout):
        form = self.named("mp_rank", options, layout)
        self.run(target, "megatron", options)
        config = with_written_divisor(self.config, target)
        found = read_tree(target, config, layout, replace(form, norm_extra_state=has_norm_extras(target)))
        self.look(found, self.tensors, target)

    def to_torch_dist(self, target, options, layout):
        self.form = form = self.named("torch_dist", options, layout)
        self.run(target, "torch_dist", options)
        dcp_reading.check_catalogue(iteration_folder(target))
        self.look(plan_oracle.read_whole(iteration_folder(target), self.config), plan_oracle.dist_tensors(self.config, self.tensors, form), target)

    def to_fsdp_dtensor(self, target, options, layout):
        self.form = form = self.named("fsdp_dtensor", options, layout)
        self.run(target, "fsdp_dtensor", options)
        self.look(plan_oracle.read_whole(iteration_folder(target), self.config), plan_oracle.fsdp_tensors(self.config, self.tensors, form), target)

    def to_huggingface(self, target, options, _):
        options["target_options"]["shard_bytes"] = self.generator.choice([20_000, 100_000, 10_000_000])
        self.run(target, "huggingface", options)
        self.look(hf_models.read_hf(target), hf_models.globals_to_hf(self.config, self.tensors), target)

    def to_hdf5(self, target, options, _):
        options["target_options"]["part_bytes"] = self.generator.choice([50_000, 10_000_000])
        self.run(target, "hdf5", options)
        found, _ = read_container(target)
        expected = logical_tensors(self.config, self.tensors)
        self.look({name: values for name, (values, _, _) in found.items()}, {name: each.values for name, each in expected.items()}, target)
        assert {name: rest for name, (_, *rest) in found.items()} == {name: [each.axes, each.domain] for name, each in expected.items()}

    def to_dcp(self, target, options, _):
        """The family's names, cut by the placements of a random mesh: FSDP2, tensor parallelism, both, replicas."""
        sizes = self.generator.choice([(2,), (3,), (2, 2), (4, 2)])
        placements = [self.generator.choice(["S0", "S0", "R", "S1"]) for _ in sizes]
        mesh = Mesh(tuple(zip(("dp", "tp"), sizes)), (("*norm*", " ".join("R" for _ in sizes)), ("*bias*", " ".join("R" for _ in sizes)), ("*", " ".join(placements))))
        options["target_options"] |= mesh.target_options()
        if self.format not in ("huggingface", "dcp"):
            options["target_options"]["map"] = self.config.family
        self.run(target, "dcp", options)
        expected = hf_models.globals_to_hf(self.config, self.tensors)
        self.look(dcp_reading.whole_tensors(target), expected, target)
        dcp_reading.check_catalogue(target)
        grids = dcp_reading.grids(target)
        assert {name: grids[name] for name in expected} == {name: expected_grid(mesh, name, tensor.shape) for name, tensor in expected.items()}
        hf_models.hf_config(self.config).save_pretrained(target)

    def look(self, found, expected, target):
        assert_same_places(found, expected, self.model, f"seed {SEED}, {target.name}")


def has_norm_extras(root):
    """Whether norms of a tree have states of their own, in any of its files: some hold no norm."""
    contents = [torch.load(path, weights_only=False) for path in iteration_folder(root).rglob(SHARD_FILE)]
    return any(is_norm_extra(name) for content in contents for key, state in content.items() if key.startswith("model") for name in state)


def test_one_model_through_every_format(program, scratch):
    walk = Walk(MODELS["mixed"].with_(layers=3, experts=4, vocab=77), program, scratch, random.Random(1))
    walk.begin("megatron")
    for kind, layout in (("torch_dist", Layout(tp=2, pp=3)), ("huggingface", None), ("hdf5", None), ("fsdp_dtensor", Layout(ep=2)), ("dcp", None),
                         ("megatron", Layout(tp=4, pp=3, ep=2))):
        walk.go(kind, layout)


@pytest.mark.long
@pytest.mark.parametrize("number", range(COUNT))
def test_random_walks(number, program, scratch):
    generator = random.Random(SEED * 1000 + number)
    name = generator.choice(sorted(MODELS))
    walk = Walk(MODELS[name], program, scratch, generator)
    walk.begin(generator.choice(FIRST))
    for _ in range(4):
        walk.go(generator.choice(FORMATS))


def test_the_oracle_names_an_element_in_a_wrong_place():
    model = numbered(MODELS["llama"])
    found = {name: tensor.clone() for name, tensor in model.tensors.items()}
    qkv = found["layers.1.qkv"]
    qkv[3, 5], qkv[4, 5] = qkv[4, 5].clone(), qkv[3, 5].clone()
    with pytest.raises(AssertionError, match=r"layers\.1\.qkv\[3, 5\] holds layers\.1\.qkv\[4, 5\], and layers\.1\.qkv\[3, 5\] belongs there \(2 of"):
        assert_same_places(found, model.tensors, model, "here")
