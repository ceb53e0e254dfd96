"""python sglang_parameters.py SOURCES FOLDER...: which parameters SGLang's quantised layers have for the weights of folders, and whether they fit.

SOURCES is what scripts/install_peers.sh sglang makes: the package alone, because its dependencies need a GPU. The Python is that of
scripts/install_peers.sh vllm. Each quantised module of a folder that is no expert becomes a linear layer with SGLang's own config and method, which its code chooses from config.json.
What the method registers is compared with what is stored. Prints a line for each folder, and at the end a JSON object: folder -> differences.
"""

import importlib.abc
import importlib.machinery
import json
import sys
import types
from pathlib import Path

ABSENT = ("gguf", "torchvision", "IPython", "orjson", "sgl_kernel")  # for kernels and pictures, which nothing here uses
DTYPES = {"F8_E4M3": "float8_e4m3fn", "F32": "float32", "BF16": "bfloat16", "U8": "uint8", "I8": "int8", "I32": "int32", "I64": "int64"}


class Absent(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, Absent(f"{self.__name__}.{name}"))
        return getattr(self, name)

    def __call__(self, *args, **keys):
        return self


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec):
        return Absent(spec.name)

    def exec_module(self, module):
        module.__path__, module.__version__ = [], "99.0"


sys.meta_path.append(Finder())
sys.path.insert(0, sys.argv[1])
import torch
from safetensors import safe_open
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.layers.linear import ReplicatedLinear
from sglang.srt.layers.quantization import get_quantization_config

torch.cuda.get_device_capability = lambda device=None: (10, 0)  # schemes ask which GPU it is
SCALES = ("_scale", "_scale_inv", "_scale_2", "_packed")
DEFAULTS = {"input_scale"}  # SGLang fills it with 1 where activations are not quantised


def headers(folder):
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        found |= {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in header.items() if name != "__metadata__"}
    return found


def config_of(folder):
    described = json.loads((folder / "config.json").read_text())["quantization_config"]
    method = described["quant_method"]
    if (folder / "hf_quant_config.json").exists():
        described = json.loads((folder / "hf_quant_config.json").read_text())
        found = ModelConfig._parse_modelopt_quant_config(None, described)
        method = found["quant_method"]
        described = found if "ignored_layers" in found or method in ("mxfp8", "fp8") else described
    config = get_quantization_config(method).from_config(described)
    config.packed_modules_mapping = {}
    return config


def fits(stored, parameter):
    """Elements of one module's part; a number may be a vector of one."""
    dtype, shape = stored
    same = tuple(parameter.shape) == shape or (parameter.numel() == 1 and shape in ((), (1,)))
    kind = DTYPES.get(dtype, dtype)
    of = str(parameter.dtype).removeprefix("torch.")
    exact = kind == of or (kind in ("bfloat16", "float32") and of in ("bfloat16", "float32", "float16"))
    return same and exact


def sizes_of(folder, module, parts):
    """[rows, columns] of the weight: packed integers have them in a tensor."""
    if "weight_shape" not in parts:
        dtype, shape = parts.get("weight_packed", parts.get("weight"))
        return shape[0], shape[1] * (2 if dtype == "U8" else 1)
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            if f"{module}.weight_shape" in file.keys():
                return tuple(file.get_tensor(f"{module}.weight_shape").tolist())


def checked_linear(module, parts, config, sizes, wrong):
    rows, columns = sizes
    with torch.device("meta"):
        layer = ReplicatedLinear(columns, rows, bias="bias" in parts, params_dtype=torch.bfloat16, quant_config=config, prefix=module)
    own = dict(layer.named_parameters())
    for name in (own.keys() - DEFAULTS) | parts.keys():
        if name not in own or name not in parts:
            given = parts.get(name) or [str(own[name].dtype), list(own[name].shape)]
            wrong.append(f"{module}.{name} {given} is only {'registered' if name in own else 'stored'}")
        elif not fits(parts[name], own[name]):
            wrong.append(f"{module}.{name}: stored {parts[name]}, registered {own[name].dtype} {list(own[name].shape)}")


def checked(folder, config):
    modules, wrong = {}, []
    stored = headers(folder)
    for name in stored:
        if name.endswith(tuple(f"weight{ending}" for ending in SCALES)) and ".experts." not in name:
            modules[name.rpartition(".")[0]] = {}
    for name, entry in stored.items():
        module, _, part = name.rpartition(".")
        if module in modules:
            modules[module][part] = entry
    for module, parts in modules.items():
        checked_linear(module, parts, config, sizes_of(folder, module, parts), wrong)
    return wrong if modules else ["no quantised module"]


def main(folders):
    result = {}
    for folder in map(Path, folders):
        try:
            result[folder.name] = checked(folder, config_of(folder))
        except Exception as error:
            result[folder.name] = [f"{type(error).__name__}: {error}"]
        print(f"{folder.name:40} " + ("; ".join(result[folder.name][:2]) or "fits"), flush=True)
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[2:])
