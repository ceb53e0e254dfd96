"""More jobs of the corpus: choices of a job file one by one, what `plan` and the other commands say, and jobs that are refused."""

import test_bad_input
import test_bad_targets
from corpus_inputs import DAMAGED, DCP_DAMAGE, HEADERS, MAPS, hdf5_files, slug
from corpus_jobs import DROP, asked, job, layout, run_job
from reshard_job import job_text

SAMPLE, LLAMA, TIED, VISION = "inputs/megatron/sample", "inputs/shards/llama", "inputs/shards/llama-tied-f32", "inputs/hf/qwen3-vl"
TP2 = layout("{ tp = 2 }")
ASKED = {
    "megatron": SAMPLE, "hf": LLAMA, "quantised": "inputs/quantised/mixed", "dist": "inputs/torch_dist/moe", "dcp": "inputs/dcp/grid",
    "container": "inputs/dcp/safetensors", "lite": "inputs/lite/pp2-ep2", "hdf5": "inputs/hdf5/plain",
    "trained": "inputs/torch_dist/trained-reshardable"}
COMPARED = {
    "other": ("made/layout/flat", "inputs/megatron/04-moe"), "same": (SAMPLE, "made/layout/flat"), "names": ("inputs/dcp/grid", "made/dcp/grid/hdf5"),
    "values": ("inputs/quantised/llama-fp8_block", "made/quantised/llama-fp8_block/bf16"),
    "configs": ("inputs/settings/llama-tied", "inputs/settings/llama-rms_norm_eps")}


# --- choices of a job file --------------------------------------------------------------------------------------------


def choice_jobs():
    """(name, source, format, source options, target options, model, run)"""
    foreign = "inputs/damaged/foreign-class"
    rows = [
        ("shard-bytes", LLAMA, "huggingface", {}, {"shard_bytes": "30 KB"}, {}, {}), ("one-shard", LLAMA, "huggingface", {}, {}, {}, {}),
        ("reference", SAMPLE, "huggingface", DROP, {"reference": "inputs/sample-reference"}, {"map": "qwen3_moe"}, {}),
        ("no-reference", SAMPLE, "huggingface", DROP, {"shard_bytes": "100 KB"}, {"map": "qwen3_moe"}, {}),
        ("auto-map", SAMPLE, "huggingface", DROP, {}, {}, {}), ("map-file", LLAMA, "megatron", {}, TP2, {"map": "inputs/maps/llama.toml"}, {}),
        ("map-none", LLAMA, "dcp", {}, {"chunks": "ranks", "ranks": 2}, {"map": "none"}, {}),
        ("true-vocab", SAMPLE, "torch_dist", DROP, TP2, {"true_vocab_size": 300}, {}),
        ("tied-more-tp", TIED, "megatron", {}, layout("{ tp = 4, pp = 2 }"), {}, {}),
        ("replicas-first", SAMPLE, "megatron", DROP | {"replicas": "first"}, TP2, {}, {}),
        ("verify-off", SAMPLE, "megatron", DROP | {"verify": "off"}, TP2, {}, {}),
        ("verify-files", "made/matrix/dense/megatron", "megatron", {"verify": "files"}, TP2, {}, {}),
        ("run-verify-off", LLAMA, "megatron", {}, TP2, {}, {"verify": "off"}),
        ("run-verify-streamed", LLAMA, "megatron", {}, TP2, {}, {"verify": "streamed"}),
        ("transport-mpi", SAMPLE, "megatron", DROP, TP2, {}, {"transport": "mpi"}),
        ("emulated", SAMPLE, "megatron", DROP, TP2, {}, {"device": "emulated"}),
        ("emulated-dcp", "inputs/dcp/strided", "dcp", {}, {"chunks": "ranks", "ranks": 3}, {}, {"device": "emulated"}),
        ("emulated-hdf5", SAMPLE, "hdf5", DROP, {}, {}, {"device": "emulated"}),
        ("emulated-bf16", "inputs/quantised/llama-nvfp4", "megatron", {}, TP2, {"quant": "dequantise-bf16"}, {"device": "emulated"}),
        ("vision-kept", VISION, "torch_dist", {}, TP2, {"unmapped": "keep"}, {}),
        ("vision-dropped", VISION, "torch_dist", {}, TP2, {"unmapped": "drop"}, {}),
        ("vision-dropped-hf", VISION, "huggingface", {}, {}, {"unmapped": "drop"}, {}),
        ("vision-as-it-is", VISION, "huggingface", {}, {}, {"map": "none"}, {}),
        ("foreign-kept", foreign, "megatron", DROP, TP2, {"foreign_classes": "keep"}, {}),
        ("foreign-dropped", foreign, "megatron", DROP, TP2, {"foreign_classes": "drop"}, {}),
        ("fsdp-grouped", SAMPLE, "fsdp_dtensor", DROP, TP2 | {"experts": "grouped"}, {}, {}),
        ("fsdp-sequential", SAMPLE, "fsdp_dtensor", DROP, TP2 | {"experts": "sequential", "chunk_bytes": "8 KiB"}, {}, {}),
        ("dequantise-dcp", "inputs/dcp/grid", "dcp", {}, {}, {"quant": "dequantise-bf16"}, {}),
        ("te-names", LLAMA, "megatron", {}, TP2 | {"transformer_impl": "transformer_engine"}, {}, {}),
        ("local-names", LLAMA, "torch_dist", {}, TP2 | {"transformer_impl": "local"}, {}, {})]
    jobs = [run_job(f"choice/{name}", *rest) for name, *rest in rows]
    flat = "inputs/sound/flat"
    return jobs + [run_job("choice/replaced", flat, "megatron", target_options=TP2 | {"replace": True}, before="inputs/sound/dense")]


def asked_jobs():
    """The other commands, JSON and text."""
    jobs = []
    for name, path in ASKED.items():
        jobs += [asked(f"text/{word}-{name}", word, path) for word in ("inspect", "ls", "init", "digest")]
        jobs += [asked(f"asked/ls-logical-{name}", "ls", path, "--logical", "--json"), asked(f"asked/view-{name}", "view", path, "--json")]
    for name, (a, b) in COMPARED.items():
        jobs += [asked(f"asked/{word}-{name}", word, a, b, "--json") for word in ("verify", "diff")] + [asked(f"text/verify-{name}", "verify", a, b)]
    for name, path in (("sample", "made/layout/flat"), ("first", "inputs/megatron/first-dense")):
        jobs.append(asked(f"asked/replicas-{name}", "verify", path, "--replicas", "--json"))
    jobs += [asked(f"asked/map-{path.stem}", "check-map", path.stem, "--json") for path in sorted(MAPS.glob("*.toml"))]
    jobs += [asked(f"asked/size-{size}", "inspect", SAMPLE, "--expert-parallel-size", size, "--json") for size in ("2", "4", "0", "two")]
    return jobs + [asked("text/defaults", "--print-defaults"), asked("text/help", "--help"), asked("text/help-run", "run", "--help")]


# --- refused ----------------------------------------------------------------------------------------------------------


def refused_sources():
    flat, whole = {"target_options": layout("{ tp = 1 }")}, {"target_options": {"chunks": "whole"}}
    jobs = [run_job(f"refused/{name}", f"inputs/damaged/{name}", "megatron", **flat, run={"memory": "1 MiB"}) for name in DAMAGED]
    jobs += [asked(f"refused/inspect-{name}", "inspect", f"inputs/damaged/{name}", "--json") for name in list(DAMAGED)[::3]]
    jobs += [run_job(f"refused/{name}", f"inputs/damaged/{name}", "dcp") for name in [f"hdf5-{slug(each)}" for each, *_ in hdf5_files.REFUSED[::2]]]
    jobs += [run_job(f"refused/{name}", f"inputs/damaged/{name}", "dcp", **whole) for name in [f"dcp-{slug(each)}" for each in DCP_DAMAGE]]
    headers = [f"hf-cut-{count}" for count in (0, 5, 100, 3000, -1)] + [f"hf-{name}" for name in HEADERS]
    jobs += [run_job(f"refused/{name}", f"inputs/damaged/{name}", "megatron", **flat) for name in headers]
    return jobs + [asked(f"refused/inspect-{name}", "inspect", f"inputs/damaged/{name}", "--json") for name in headers]


def refused_layouts():
    jobs = []
    for case in test_bad_input.LAYOUT_CASES:
        options, target_format = case.options, case.options.get("target_format", "megatron")
        target_options = (layout("{ tp = 1 }") if target_format == "megatron" else {}) | options.get("target_options", {})
        run = {"memory": options["memory"]} if "memory" in options else None
        source, name = f"inputs/sound/{case.kind}", f"refused/layout-{slug(case.name)}"
        jobs.append(run_job(name, source, target_format, options.get("source_options"), target_options, options.get("model"), run))
    return jobs


def refused_job_files():
    jobs = []
    for number, line in enumerate(test_bad_targets.JOB_LINES):
        name = f"refused/line-{number:02d}"
        text = job_text("inputs/sound/dense", f"out/{name}", "megatron", {}, {}, {}, {}).split("[model]")[0] + line + "\n"
        jobs.append(job(name, ["run", f"jobs/{name}.toml", "--json"], text, f"out/{name}", "512 MiB"))
    name = "refused/all-mistakes"
    text = '[source]\npath = 3\nfromat = "megatron"\n[target]\nformat = "gguf"\nlayout.tp = "x"\n[run]\nmemory = true\n'
    jobs.append(job(name, ["run", f"jobs/{name}.toml", "--json"], text))
    jobs += [setting_job(number, setting) for number, setting in enumerate(("target.layout.tp", "target.layuot.tp=2", "tp=2", "run.memory=lots"))]
    jobs += [asked("refused/no-job-file", "run", "none.toml", "--json"), asked("refused/no-command", "frobnicate", "--json")]
    return jobs + [asked("refused/no-option", "run", "none.toml", "--frobnicate")]


def setting_job(number, setting):
    made = run_job(f"refused/setting-{number}", "inputs/sound/dense", "megatron", target_options=TP2)
    return made | {"command": [*made["command"], "--set", setting], "again": []}


def refused_choices():
    """(name, source, format, source options, target options, model)"""
    dense, hf, grid = "inputs/sound/dense", "inputs/sound/hf", "inputs/dcp/grid"
    rows = [
        ("no-source", "inputs/nothing", "dcp", {}, {}, {}), ("no-checkpoint", "inputs/damaged", "dcp", {}, {}, {}),
        ("unknown-format", dense, "gguf", {}, {}, {}),
        ("unknown-source-format", dense, "megatron", {"format": "gguf"}, {}, {}), ("optimizer", "inputs/megatron/optimizer", "megatron", {}, TP2, {}),
        ("rng", "inputs/megatron/optimizer", "megatron", {"optimizer": "drop"}, TP2, {}),
        ("rng-dist", "inputs/torch_dist/dense", "megatron", {}, TP2, {}),
        ("vision", VISION, "megatron", {}, TP2, {}), ("foreign", "inputs/damaged/foreign-class", "megatron", DROP, TP2, {}),
        ("sidecars", "inputs/lite/sidecars", "huggingface", {"config": "inputs/lite/config"}, {}, {"map": "mlite_qwen3_moe"}),
        ("lite-no-config", "inputs/lite/ep2", "huggingface", {}, {}, {"map": "mlite_qwen3_moe"}),
        ("lite-etp", "inputs/lite/one", "huggingface", {"config": "inputs/lite/config", "etp": 5}, {}, {"map": "mlite_qwen3_moe"}),
        ("lite-map-on-hf", LLAMA, "torch_dist", {}, TP2, {"map": "mlite_qwen3_moe"}), ("wrong-map", LLAMA, "megatron", {}, TP2, {"map": "mixtral"}),
        ("wrong-config", SAMPLE, "huggingface", DROP | {"config": LLAMA}, {}, {"map": "qwen3_moe"}),
        ("no-map", "inputs/hf/strange-names", "megatron", {}, TP2, {}),
        ("block-cut", "inputs/quantised/qwen3_moe-fp8_block", "megatron", {}, layout("{ tp = 8 }"), {}),
        ("quantised-hdf5", "inputs/quantised/llama-nvfp4", "hdf5", {}, {}, {}), ("prefix-of-nothing", grid, "dcp", {"prefix": "nothing."}, {}, {}),
        ("prefix-elsewhere", hf, "megatron", {"prefix": "model."}, TP2, {}), ("mesh-missing", grid, "dcp", {}, {"chunks": "mesh"}, {}),
        ("mesh-words", grid, "dcp", {}, {"chunks": "mesh", "mesh": "dp=two", "placements": "*: S0"}, {}),
        ("placement-words", grid, "dcp", {}, {"chunks": "mesh", "mesh": "dp=2", "placements": "*: S9"}, {}),
        ("placement-count", grid, "dcp", {}, {"chunks": "mesh", "mesh": "dp=2 tp=2", "placements": "*: S0"}, {}),
        ("no-placement", grid, "dcp", {}, {"chunks": "mesh", "mesh": "dp=2", "placements": "x: S0"}, {}),
        ("ranks-zero", grid, "dcp", {}, {"chunks": "ranks", "ranks": 0}, {}), ("dcp-to-megatron", grid, "megatron", {}, TP2, {}),
        ("path-twice", dense, "megatron", {}, TP2 | {"path": "x"}, {}), ("fsdp-mtp", "inputs/hf/deepseek-v3", "fsdp_dtensor", {}, {}, {}),
        ("dp-reshardable", "inputs/torch_dist/trained-dp-reshardable", "torch_dist", {}, layout("{ pp = 2 }"), {}),
        ("map-words", LLAMA, "megatron", {}, TP2, {"map": "inputs/maps/broken.toml"})]
    jobs = [run_job(f"refused/{name}", *rest) for name, *rest in rows]
    jobs.append(run_job("refused/existing", "inputs/sound/flat", "megatron", target_options=TP2, before="inputs/sound/dense"))
    occupied = {"target_options": TP2 | {"replace": True}, "before": "inputs/hdf5/plain-config"}
    jobs.append(run_job("refused/no-checkpoint-replaced", "inputs/sound/flat", "megatron", **occupied))
    broken = [
        ["inspect", "none"], ["ls", "none"], ["digest", "none"], ["verify", "none", dense], ["verify", grid, dense], ["diff", hf, grid],
        ["check-map", "lama"], ["view", "none"], ["init", "none"], ["verify", dense], ["check-map", "inputs/maps/broken.toml"]]
    for number, words in enumerate(broken):
        jobs.append(asked(f"refused/asked-{number:02d}-{words[0]}", *words, "--json"))
    return jobs


# --- all --------------------------------------------------------------------------------------------------------------


def more_jobs():
    return [*choice_jobs(), *asked_jobs(), *refused_sources(), *refused_layouts(), *refused_job_files(), *refused_choices()]
