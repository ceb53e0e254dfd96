"""The jobs of the corpus, as data: what is run, from which input or earlier result, and where the target appears.

A result is a source of later jobs under made/NAME. Jobs whose result a later one needs stand before it.
"""

import json
import random
import zlib

from corpus_inputs import CHANGES, FAMILIES, MESHES, MLITE, RANDOM_PAIRS, TORCH_DIST, TRAINED, config_cases, slug, test_hdf5, test_quantised
from dcp_cases import CHANGES as TORCH_DIST_CHANGES
from dcp_cases import names_of, optimizer_worlds
from peer_types import TE_GROUPED, Layout
from reshard_job import job_text

MEMORY = ["1 MiB", "2 MiB", "64 MiB"]
AGAIN_ONE_IN = 8  # that is run once more on other ranks with other memory
WITH_PREDICTION = [
    "glm4-moe-mtp", "deepseek-v3", "deepseek-v3.2", "glm-5", "glm-4.7-flash", "qwen3-next", "qwen3.5-moe", "nemotron-3-latent",
    "deepseek-v4-published"]
REFUSED_WAYS = {name: ["hf-fsdp"] for name in [*WITH_PREDICTION, "gpt-oss", "gpt-oss-square"]} | {"gpt-oss-mxfp4": ["hf-fsdp", "hf-hdf5"]}
MAP_OF = {"mistral": "llama"}
DROP = {"optimizer": "drop", "rng": "drop"}
FORMATS = ["megatron", "huggingface", "torch_dist", "fsdp_dtensor", "dcp", "hdf5"]


def run_job(name, source, target_format, source_options=None, target_options=None, model=None, run=None, before=None):
    """`reshard run`; the memory, and whether the job is run again in another way, follow from its name."""
    choice = random.Random(zlib.crc32(name.encode()))
    memory, again = choice.choice(MEMORY), []
    if choice.randrange(AGAIN_ONE_IN) == 0 and "memory" not in (run or {}):
        again = [{"ranks": choice.choice([2, 2, 3]), "memory": choice.choice([size for size in MEMORY if size != memory])}]
    text = job_text(source, f"out/{name}", target_format, source_options or {}, target_options or {}, model or {}, {"memory": memory} | (run or {}))
    return job(name, ["run", f"jobs/{name}.toml", "--json"], text, f"out/{name}", memory=memory, again=again, before=before)


def job(name, command, text=None, target=None, memory=None, again=(), before=None):
    return {"name": name, "command": list(command), "text": text, "target": target, "memory": memory, "again": list(again), "before": before}


def plan_of(run):
    """The same job file under `plan`, with a target of its own name: that of the run may be there at the moment."""
    name = f"plan/{run['name']}"
    return job(name, ["plan", f"jobs/{name}.toml", "--json"], run["text"].replace(f'"out/{run["name"]}"', f'"out/{name}"'))


def asked(name, *words):
    return job(name, words)


def layout(sizes):
    return {"layout": sizes.toml() if isinstance(sizes, Layout) else sizes}


# --- families ---------------------------------------------------------------------------------------------------------


def family_jobs(inputs):
    jobs = []
    for name, family in FAMILIES.items():
        source, at = f"inputs/hf/{name}", f"family/{name}"
        model_type = json.loads((inputs / "hf" / name / "config.json").read_text())["model_type"]
        model = {"map": model_type, "unmapped": "keep"} if family.keeps_parts else {}
        names, reference = names_of(family.form), {"reference": source}
        to = {
            "hf-megatron": (source, "megatron", layout(family.a) | names),
            "megatron-dist": (f"made/{at}/hf-megatron", "torch_dist", layout(family.b) | names),
            "dist-megatron": (f"made/{at}/megatron-dist", "megatron", layout(family.b) | names),
            "megatron-hf": (f"made/{at}/dist-megatron", "huggingface", reference), "hf-fsdp": (source, "fsdp_dtensor", layout(family.b) | names)}
        if "hf-fsdp" not in REFUSED_WAYS.get(name, ()):
            to["fsdp-hf"] = (f"made/{at}/hf-fsdp", "huggingface", {})
        jobs += [run_job(f"{at}/{way}", *source_and_format, target_options=options, model=model) for way, (*source_and_format, options) in to.items()]
        jobs.append(run_job(f"{at}/hf-hdf5", source, "hdf5", model=model | {"unmapped": "drop"} if model else {}))
        if "hf-hdf5" not in REFUSED_WAYS.get(name, ()):
            jobs.append(run_job(f"{at}/hdf5-hf", f"made/{at}/hf-hdf5", "huggingface", target_options=reference))
        jobs.append(asked(f"{at}/map", "check-map", MAP_OF.get(model_type, model_type), "--config", source, "--json"))
        if not model:
            jobs.append(asked(f"{at}/ls", "ls", source, "--logical", "--json"))
    return jobs


def settings_jobs():
    jobs = []
    for name in map(slug, config_cases.SETTINGS):
        jobs.append(run_job(f"settings/{name}/megatron", f"inputs/settings/{name}", "megatron", target_options=layout("{ tp = 2 }")))
        jobs.append(run_job(f"settings/{name}/hf", f"made/settings/{name}/megatron", "huggingface"))
    return jobs


def quantised_jobs():
    jobs = []
    for model, scheme in test_quantised.CASES:
        _, a, b, form = test_quantised.MODELS[model]
        source, at = f"inputs/quantised/{model}-{scheme}", f"quantised/{model}-{scheme}"
        jobs.append(run_job(f"{at}/megatron", source, "megatron", target_options=layout(a) | names_of(form)))
        jobs.append(run_job(f"{at}/dist", f"made/{at}/megatron", "torch_dist", target_options=layout(b)))
        jobs.append(run_job(f"{at}/hf", f"made/{at}/dist", "huggingface", target_options={"reference": source}))
        dequantised = {"model": {"quant": "dequantise-bf16"}}
        jobs.append(run_job(f"{at}/bf16", source, "megatron", target_options=layout(b) | names_of(form), **dequantised))
        if model == "llama":
            jobs.append(run_job(f"{at}/bf16-hf", f"made/{at}/megatron", "huggingface", {"verify": "off"}, **dequantised))
    mixed = "inputs/quantised/mixed"
    jobs.append(run_job("quantised/mixed/megatron", mixed, "megatron", target_options=layout("{ tp = 2, ep = 2 }") | names_of(TE_GROUPED)))
    jobs.append(run_job("quantised/mixed/hf", "made/quantised/mixed/megatron", "huggingface"))
    jobs.append(run_job("quantised/mixed/emulated", mixed, "megatron", model={"quant": "dequantise-bf16"}, run={"device": "emulated"}))
    jobs.append(run_job("quantised/mixed/bf16-hf", "made/quantised/mixed/megatron", "huggingface", model={"quant": "dequantise-bf16"}))
    jobs.append(run_job("quantised/stored/hdf5", "inputs/quantised/llama-fp8_block", "hdf5", model={"map": "none"}))
    jobs.append(run_job("quantised/stored/hf", "made/quantised/stored/hdf5", "huggingface", model={"map": "none"}))
    return jobs


# --- Megatron to Megatron ---------------------------------------------------------------------------------------------


def layout_jobs():
    rows = [(f"{number:02d}-{name}", target, form) for number, (name, _, _, _, form, target) in enumerate(CHANGES)]
    rows += [(f"random-{number:02d}", target, form) for number, (*_, form, target) in enumerate(RANDOM_PAIRS)]
    jobs = [
        run_job(f"layout/{name}", f"inputs/megatron/{name}", "megatron", target_options=layout(target) | names_of(form))
        for name, target, form in rows]
    jobs += [asked(f"inspect/{name}", "inspect", f"inputs/megatron/{name}", "--json") for name, *_ in rows[::2]]
    for name, source, options in [
            ("full3d", "sample", {"layout": "{ tp = 2 }", "mp_rank_style": "full3d"}),
            ("full3d-ep", "sample", {"layout": "{ ep = 4 }", "mp_rank_style": "full3d"}),
            ("flat", "sample", layout("{ tp = 1 }")), ("ep8", "sample", layout("{ tp = 1, ep = 8 }")),
            ("as-it-is", "sample", layout("{ tp = 2, pp = 2, ep = 2, etp = 2 }")),
            ("local", "sample", {"layout": "{ tp = 2, ep = 2, etp = 1 }", "transformer_impl": "local", "experts": "sequential"}),
            ("dropped", "optimizer", layout("{ pp = 2 }")), ("dropped-moe", "optimizer-moe", layout("{ pp = 2, ep = 4 }")),
            ("core", "core-mla-moe-shared", layout("{ tp = 4, ep = 2, etp = 1 }")),
            ("empty-stages", "00-llama", layout('{ pp = 4, vpp = 2, pipeline = "E|tt|t*3||t|t|tL|" }')),
            ("standalone-loss", "00-llama", layout('{ pp = 3, pipeline = "Ettt|t*5|L" }'))]:
        jobs.append(run_job(f"layout/{name}", f"inputs/megatron/{source}", "megatron", DROP, options))
    return jobs


# --- every format to every other --------------------------------------------------------------------------------------


MATRIX = {  # source of all, layouts before and after
    "dense": ("inputs/shards/llama", "{ tp = 2, pp = 2 }", "{ pp = 4 }"),
    "moe": ("inputs/megatron/sample", "{ tp = 2, ep = 2, etp = 1 }", "{ tp = 4, pp = 2, ep = 4 }"),
    "tied": ("inputs/shards/llama-tied-f32", "{ tp = 4 }", "{ tp = 1, pp = 2, vpp = 2 }")}
NAMES = {"dense": "inputs/dcp/llama", "moe": "inputs/dcp/qwen3-moe", "tied": "inputs/dcp/llama"}


def matrix_jobs():
    """Three models; a pair that does not exist is recorded with its refusal."""
    jobs = []
    for model, (origin, first, second) in MATRIX.items():
        at = f"matrix/{model}"
        for name in FORMATS:
            source = f"made/{at}/huggingface" if name == "dcp" else origin
            map_of = {"map": "qwen3_moe"} if model == "moe" and name in ("huggingface", "hdf5") else {}
            dropped, sizes = DROP if source.endswith("sample") else {}, layout(first) if is_megatrons(name) else {}
            jobs.append(run_job(f"{at}/{name}", source, name, dropped, sizes, map_of))
        sources = {name: (f"made/{at}/{name}", {}) for name in FORMATS} | {"names": (NAMES[model], {"prefix": "model."})}
        for source, (path, options) in sources.items():
            jobs += [run_job(f"{at}/{source}-to-{name}", path, name, options, layout(second) if is_megatrons(name) else {}) for name in FORMATS]
        jobs += [asked(f"{at}/same-{name}", "verify", f"made/{at}/{FORMATS[0]}", f"made/{at}/{name}", "--json") for name in FORMATS[1:]]
        if model != "tied":
            words = ("inspect", "ls", "digest", "verify", "view")
            jobs += [asked(f"{at}/{word}-{name}", word, f"made/{at}/{name}", "--json") for name in FORMATS for word in words]
            jobs += [asked(f"{at}/init-{name}", "init", f"made/{at}/{name}") for name in FORMATS]
    return jobs


def is_megatrons(name):
    return name in ("megatron", "torch_dist", "fsdp_dtensor")


# --- torch_dist -------------------------------------------------------------------------------------------------------


def torch_dist_jobs():
    jobs = []
    for name in TORCH_DIST:
        target, source, at = TORCH_DIST_CHANGES[name][3], f"inputs/torch_dist/{name}", f"dist/{name}"
        jobs.append(run_job(f"{at}/dist", source, "torch_dist", target_options=layout(target)))
        jobs.append(run_job(f"{at}/megatron", source, "megatron", {"rng": "drop"}, layout(target)))
        jobs.append(run_job(f"{at}/fsdp", source, "fsdp_dtensor", {"rng": "drop"}, layout(target)))
        jobs.append(run_job(f"{at}/hdf5", source, "hdf5", {"rng": "drop"}))
        jobs.append(run_job(f"{at}/back", f"made/{at}/hdf5", "torch_dist", target_options=layout(target)))
        jobs.append(run_job(f"{at}/names", source, "dcp", target_options={"chunks": "whole"}, model={"map": "none"}))
        jobs += [asked(f"{at}/{word}", word, source, "--json") for word in ("inspect", "ls", "digest")]
    for name, (world, _) in TRAINED.items():
        target, source = optimizer_worlds(world)[1].layout, f"inputs/torch_dist/trained-{name}"
        jobs.append(run_job(f"trained/{name}/dist", source, "torch_dist", target_options=layout(target)))
        jobs.append(run_job(f"trained/{name}/dropped", source, "torch_dist", DROP, layout(target)))
        jobs.append(run_job(f"trained/{name}/as-it-is", source, "torch_dist", model={"map": "none"}))
        jobs.append(run_job(f"trained/{name}/megatron", source, "megatron", DROP, layout(target)))
        jobs.append(run_job(f"trained/{name}/refused", source, "megatron", target_options=layout(target)))
        jobs.append(asked(f"trained/{name}/ls", "ls", source, "--json"))
    for name, sizes in (("dense", "{ pp = 2 }"), ("moe", "{ ep = 4 }")):
        jobs.append(run_job(f"trained/flattened-{name}", f"inputs/torch_dist/flattened-{name}", "torch_dist", target_options=layout(sizes)))
    for name, source, options in [
            ("separate", "moe", {"layers": "separate"}), ("stacked", "dense", {"layers": "stacked"}),
            ("small-chunks", "dense", {"chunk_bytes": "4 KiB"}),
            ("integrity", "dense", {"integrity": "always"}), ("grouped", "moe", names_of(TE_GROUPED)),
            ("local", "moe-grouped", {"transformer_impl": "local", "experts": "sequential"})]:
        jobs.append(run_job(f"dist/option/{name}", f"inputs/torch_dist/{source}", "torch_dist", {"rng": "drop"}, layout("{ tp = 2 }") | options))
    stacked = layout("{ ep = 2 }") | {"layers": "stacked"}
    jobs.append(run_job("dist/option/back-to-stacked", "made/dist/option/separate", "torch_dist", target_options=stacked))
    jobs.append(run_job("dist/option/integrity-kept", "made/dist/option/integrity", "torch_dist", {"verify": "files"}, layout("{ pp = 2 }")))
    return jobs


# --- DCP, Megatron Lite, HDF5 -----------------------------------------------------------------------------------------


def dcp_jobs():
    jobs, ways = [], {"source": {}, "whole": {"chunks": "whole"}, "ranks": {"chunks": "ranks", "ranks": 3}, "prefix": {"prefix": "app."}}
    ways |= {f"mesh-{name}": mesh.target_options() for name, mesh in MESHES.items()}
    for source in MESHES:
        jobs += [run_job(f"dcp/{source}/{name}", f"inputs/dcp/{source}", "dcp", target_options=options) for name, options in ways.items()]
        jobs.append(run_job(f"dcp/{source}/hdf5", f"inputs/dcp/{source}", "hdf5"))
        jobs.append(run_job(f"dcp/{source}/back", f"made/dcp/{source}/hdf5", "dcp", target_options=ways["ranks"]))
        jobs.append(run_job(f"dcp/{source}/hf", f"inputs/dcp/{source}", "huggingface", {"prefix": "model.float32."}))
    for name in ("safetensors", "experts", "objects", "fsdp2", "fsdp2-tp", "llama", "qwen3-moe"):
        jobs += [run_job(f"dcp/{name}/{way}", f"inputs/dcp/{name}", "dcp", target_options=ways[way]) for way in ("source", "whole", "ranks")]
        jobs.append(run_job(f"dcp/{name}/hdf5", f"inputs/dcp/{name}", "hdf5", DROP, model={"map": "none"}))
        jobs.append(run_job(f"dcp/{name}/hf", f"inputs/dcp/{name}", "huggingface", DROP, model={"map": "none"}))
        jobs += [asked(f"dcp/{name}/{word}", word, f"inputs/dcp/{name}", "--json") for word in ("inspect", "ls")]
    for name in ("llama", "qwen3-moe"):
        config = {"prefix": "model.", "config": f"inputs/dcp/{name}"}
        jobs.append(run_job(f"dcp/{name}/megatron", f"inputs/dcp/{name}", "megatron", config, layout("{ tp = 2, pp = 2 }")))
        jobs.append(run_job(f"dcp/{name}/dist", f"inputs/dcp/{name}", "torch_dist", config, layout("{ pp = 2 }")))
        jobs.append(run_job(f"dcp/{name}/shards", f"inputs/dcp/{name}", "huggingface", {"prefix": "model."}, {"shard_bytes": "60 KiB"}))
    jobs.append(run_job("dcp/grid/unread", "inputs/dcp/grid", "dcp", {"objects": "unread"}, ways["whole"]))
    jobs.append(asked("dcp/diff", "diff", "inputs/dcp/llama", "made/dcp/llama/whole", "--json"))
    return jobs


def lite_jobs():
    jobs, model = [], {"map": "mlite_qwen3_moe"}
    for name in (*MLITE, "sidecars"):
        options = {"config": "inputs/lite/config"} | (DROP if name == "sidecars" else {}) | ({"etp": 2} if name == "etp2" else {})
        jobs.append(run_job(f"lite/{name}/hf", f"inputs/lite/{name}", "huggingface", options, model=model))
        jobs.append(run_job(f"lite/{name}/dist", f"inputs/lite/{name}", "torch_dist", options, layout("{ tp = 2, ep = 2 }"), model))
        jobs.append(run_job(f"lite/{name}/megatron", f"inputs/lite/{name}", "megatron", options, layout("{ ep = 4, pp = 3 }"), model))
        jobs.append(run_job(f"lite/{name}/hdf5", f"inputs/lite/{name}", "hdf5", options, model=model))
        jobs.append(asked(f"lite/{name}/inspect", "inspect", f"inputs/lite/{name}", "--json"))
    return jobs + [run_job("lite/wrong-etp", "inputs/lite/etp2", "huggingface", {"config": "inputs/lite/config"}, model=model)]


def hdf5_jobs():
    jobs, config = [], {"config": "inputs/hdf5/plain-config/config.json"}
    for name, (model, sizes, form) in test_hdf5.MODELS.items():
        source, at = f"inputs/megatron/{name}", f"hdf5/{name}"
        jobs.append(run_job(f"{at}/hdf5", source, "hdf5", model={"map": model.family}))
        jobs.append(run_job(f"{at}/args-alone", source, "hdf5"))
        jobs.append(run_job(f"{at}/megatron", f"made/{at}/args-alone", "megatron", target_options=layout(sizes) | names_of(form)))
        jobs.append(run_job(f"{at}/hf", f"made/{at}/hdf5", "huggingface"))
        jobs.append(run_job(f"{at}/hf-args", source, "huggingface", model={"map": model.family}))
    jobs += [
        run_job("hdf5/parts/hdf5", "inputs/megatron/first-dense", "hdf5", target_options={"part_bytes": "64 KiB"}, model={"map": "qwen3_moe"}),
        run_job("hdf5/parts/whole", "made/hdf5/parts/hdf5", "hdf5"), run_job("hdf5/parts/dist", "made/hdf5/parts/hdf5", "torch_dist"),
        run_job("hdf5/io/independent", "inputs/megatron/grouped", "hdf5", target_options={"io": "independent"}),
        run_job("hdf5/io/collective", "inputs/megatron/grouped", "hdf5", target_options={"io": "collective"}),
        run_job("hdf5/plain/megatron", "inputs/hdf5/plain", "megatron", config, layout("{ tp = 2, pp = 2, vpp = 2 }")),
        run_job("hdf5/plain/hdf5", "inputs/hdf5/plain", "hdf5", config, model={"map": "llama"}),
        run_job("hdf5/plain/hf", "inputs/hdf5/plain", "huggingface", target_options={"reference": "inputs/hdf5/plain-config"}),
        run_job("hdf5/plain/dcp", "inputs/hdf5/plain", "dcp", target_options={"chunks": "ranks", "ranks": 3}),
        run_job("hdf5/nested/hf", "inputs/hdf5/nested", "huggingface", model={"map": "none"}),
        run_job("hdf5/nested/hdf5", "inputs/hdf5/nested", "hdf5"),
        run_job("hdf5/typed/dcp", "inputs/hdf5/typed", "dcp", target_options={"chunks": "whole"}),
        run_job("hdf5/names/hdf5", "inputs/hf/strange-names", "hdf5", model={"map": "none"}),
        run_job("hdf5/names/hf", "made/hdf5/names/hdf5", "huggingface", model={"map": "none"})]
    return jobs


# --- all --------------------------------------------------------------------------------------------------------------


def run_jobs(inputs):
    return [
        *family_jobs(inputs), *settings_jobs(), *quantised_jobs(), *layout_jobs(), *matrix_jobs(), *torch_dist_jobs(), *dcp_jobs(), *lite_jobs(),
        *hdf5_jobs()]
