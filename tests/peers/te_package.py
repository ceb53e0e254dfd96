"""A package `transformer_engine` for trainers that do not start without one: its modules' parameters and extra states, by name and shape, and no arithmetic.

te_stand_ins.py computes, for models that this folder builds. Here trainers build them, and only what they store is looked at.
"""

import contextlib
import enum
import importlib.abc
import importlib.machinery
import sys
import types

import torch

PACKAGE = "transformer_engine"
VERSION = "2.8.0"
# What trainers try to import, and do without if they cannot: kernels and optimizers.
ABSENT = ("optimizers", "ep", "tensor.grouped_tensor", "ops.basic", "cpu_offload_v1")


def parameter(shape, dtype, fill=0.0, cut=None, device="cpu"):
    made = torch.nn.Parameter(torch.full(shape, fill, dtype=dtype or torch.get_default_dtype(), device="meta" if device == "meta" else "cpu"))
    made.tensor_model_parallel, made.partition_dim, made.partition_stride = cut is not None, -1 if cut is None else cut, 1
    return made


class Module(torch.nn.Module):
    fp8, fp8_calibration, fp8_meta = False, False, {"fp8_checkpoint": False, "recipe": None}

    def get_extra_state(self):
        return torch.empty(0, dtype=torch.uint8)

    def set_extra_state(self, state):
        pass

    def set_tensor_parallel_group(self, group):
        self.tp_group = group

    def init_fp8_metadata(self, num_gemms=1):
        pass

    def _encode_extra_state(self, _):
        return self.get_extra_state()

    def _decode_extra_state(self, _):
        return None


class AnyLinear(Module):
    """Of each of `names`, a weight and its bias; `column` cuts rows of both, `row` cuts columns."""

    def make(self, names, inputs, outputs, mode, ranks, bias, return_bias, dtype, device):
        self.parallel_mode, self.tp_size, self.return_bias, self.use_bias = mode, ranks, return_bias, bias
        self.in_features = inputs // ranks if mode == "row" else inputs
        self.out_features = outputs // ranks if mode == "column" else outputs
        for name in names:
            cut = {"column": 0, "row": 1}.get(mode)
            self.register_parameter(name, parameter((self.out_features, self.in_features), dtype, cut=cut, device=device))
        for name in (name.replace("weight", "bias") for name in names):
            made = parameter((self.out_features,), dtype, cut=0 if mode == "column" else None, device=device) if bias else None
            if made is None:
                setattr(self, name, torch.empty(0))
            else:
                self.register_parameter(name, made)


class Linear(AnyLinear):
    def __init__(self, in_features, out_features, tp_group=None, tp_size=1, bias=True, return_bias=False, params_dtype=None, parallel_mode=None,
                 sequence_parallel=False, device="cpu", **_):
        super().__init__()
        self.tp_group, self.sequence_parallel = tp_group, sequence_parallel
        self.make(["weight"], in_features, out_features, parallel_mode, tp_size, bias, return_bias, params_dtype, device)


class LayerNormLinear(Linear):
    def __init__(self, in_features, out_features, normalization="LayerNorm", zero_centered_gamma=False, params_dtype=None, device="cpu", **rest):
        super().__init__(in_features, out_features, params_dtype=params_dtype, device=device, **rest)
        of_linear = dict(self._parameters)
        self._parameters.clear()  # those of the norm are registered first: flat buffers have parameters in this order
        self.layer_norm_weight = parameter((in_features,), params_dtype, 0.0 if zero_centered_gamma else 1.0, device=device)
        self.layer_norm_bias = parameter((in_features,), params_dtype, device=device) if normalization == "LayerNorm" else None
        self._parameters.update(of_linear)


class GroupedLinear(AnyLinear):
    """With `single_grouped_weight` and `single_grouped_bias` one parameter for all, whose first axis counts them."""

    def __init__(self, num_gemms, in_features, out_features, tp_group=None, tp_size=1, bias=True, return_bias=False, params_dtype=None,
                 parallel_mode=None, device="cpu", single_grouped_weight=False, single_grouped_bias=False, scale_bias=False, **_):
        super().__init__()
        self.num_gemms, self.tp_group = num_gemms, tp_group
        self.single_grouped_weight, self.single_grouped_bias = single_grouped_weight, single_grouped_bias and bias
        names = [f"weight{index}" for index in range(num_gemms)]
        self.make(names, in_features, out_features, parallel_mode, tp_size, bias, return_bias, params_dtype, device)
        if single_grouped_weight:
            for name in names:
                del self._parameters[name]
            self.weight = parameter((num_gemms, self.out_features, self.in_features), params_dtype, device=device)
        if self.single_grouped_bias:
            for index in range(num_gemms):
                del self._parameters[f"bias{index}"]
            self.bias = parameter((num_gemms, self.out_features), params_dtype, device=device)


class RMSNorm(Module):
    has_bias = False

    def __init__(self, normalized_shape=None, eps=1e-5, sequence_parallel=False, zero_centered_gamma=False, params_dtype=None, dtype=None, hidden_size=None,
                 device="cpu", **_):
        super().__init__()
        shape = hidden_size if normalized_shape is None else normalized_shape
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        self.eps, dtype = eps, params_dtype or dtype
        self.weight = parameter(shape, dtype, 0.0 if zero_centered_gamma else 1.0, device=device)
        self.bias = parameter(shape, dtype, device=device) if self.has_bias else None
        for each in self.parameters():
            each.sequence_parallel = sequence_parallel


class LayerNorm(RMSNorm):
    has_bias = True


class DotProductAttention(Module):
    def __init__(self, num_attention_heads=None, tp_size=1, softmax_type="vanilla", **_):
        super().__init__()
        self.softmax_offset = parameter((num_attention_heads // tp_size,), torch.float32, cut=0) if softmax_type == "learnable" else None


class Recipe:
    def __init__(self, *_, **__):
        pass

    def delayed(self):
        return False


class NoFp8:
    """Whatever is asked: FP8 is off."""

    def __getattr__(self, name):
        return lambda *_, **__: False


@contextlib.contextmanager
def nothing(*_, **__):
    yield


def contents():
    recipes = {name: type(name, (Recipe,), {}) for name in (
        "DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling", "NVFP4BlockScaling", "CustomRecipe")}
    modules = {module.__name__: module for module in (Linear, LayerNormLinear, GroupedLinear, RMSNorm, LayerNorm, DotProductAttention)}
    off = {name: nothing for name in ("autocast", "fp8_autocast", "fp8_model_init", "quantized_model_init")}
    return {
        "": {"__version__": VERSION},
        "common.recipe": {"Recipe": Recipe, "Format": enum.Enum("Format", "E4M3 HYBRID E5M2"), **recipes},
        "pytorch": modules | off,
        "pytorch.module.base": {"TransformerEngineBaseModule": Module},
        "pytorch.fp8": {"FP8GlobalStateManager": NoFp8(), **off},
        "pytorch.attention": {"DotProductAttention": DotProductAttention},
        "pytorch.ops": {"Sequential": torch.nn.Sequential, "GroupedLinear": GroupedLinear},
        "pytorch.distributed": {"is_fp8_activation_recompute_enabled": lambda: False},
        # In torch these are tensors, and trainers ask of each weight whether it is one.
        "pytorch.tensor": {"QuantizedTensor": type("QuantizedTensor", (torch.Tensor,), {})},
        "pytorch.float8_tensor": {"Float8Tensor": type("Float8Tensor", (torch.Tensor,), {})},
    }


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Every module of a package; a name that is asked for and not in `contents` is a class without members."""

    def __init__(self, package, contents, absent=()):
        self.package, self.contents, self.absent = package, contents, absent

    def find_spec(self, name, path, target=None):
        if name != self.package and not name.startswith(self.package + "."):
            return None
        inner = name.removeprefix(PACKAGE + ".").removeprefix("pytorch.")
        if any(inner == absent or inner.startswith(absent + ".") for absent in self.absent):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        vars(module).update(self.contents.get(spec.name.removeprefix(self.package).lstrip("."), {}))

        def missing(name):
            if name.startswith("__") or name in self.absent:
                raise AttributeError(name)
            is_module = name.islower() and not name.startswith("_")
            vars(module)[name] = value = importlib.import_module(f"{spec.name}.{name}") if is_module else type(name, (torch.nn.Module,), {})
            return value

        module.__getattr__ = missing
        return module

    def exec_module(self, module):
        pass


def install(*others):
    """And empty packages of these names, which trainers import for what is not used here: data, requests, logs."""
    sys.meta_path.insert(0, Finder(PACKAGE, contents(), ABSENT))
    sys.meta_path[:0] = [Finder(name, {}) for name in others]
