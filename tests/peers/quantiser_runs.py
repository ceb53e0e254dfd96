"""python quantiser_runs.py FOLDER [PATTERN...]: small models, quantised and saved by the libraries that do so, FOLDER/NAME for each case.

A case is named LIBRARY-KIND-MODEL, such as "llmcompressor-w4a16-qwen3"; patterns have '*'. Libraries change classes of transformers, so each runs in a process
of its own. They need an environment with nvidia-modelopt, llmcompressor, torchao, bitsandbytes and auto-round. `quantised_matrix.py` then shows what becomes
of the folders.
"""

import copy
import fnmatch
import logging
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

VOCABULARY = 256
HEADS = dict(num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCABULARY, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DENSE = dict(HEADS, hidden_size=256, intermediate_size=640, head_dim=64, num_hidden_layers=2)
TIED = dict(DENSE, tie_word_embeddings=True)
AWKWARD = dict(DENSE, hidden_size=192, intermediate_size=328, head_dim=40)
ROUTED = dict(HEADS, hidden_size=128, intermediate_size=256, moe_intermediate_size=128, head_dim=32, num_hidden_layers=2, num_experts_per_tok=2)
MOE = dict(ROUTED, num_experts=4)
LOCAL = dict(ROUTED, intermediate_size=128, num_local_experts=4)
DEEPSEEK = dict(ROUTED, num_key_value_heads=4, n_routed_experts=4, n_shared_experts=1, n_group=1, topk_group=1, first_k_dense_replace=1)
MLA = dict(DEEPSEEK, q_lora_rank=64, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=32, v_head_dim=32)
DELTA = dict(MOE, num_hidden_layers=4, shared_expert_intermediate_size=128, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
             linear_value_head_dim=32)
NEMOTRON = dict(HEADS, hidden_size=128, intermediate_size=256, head_dim=32, layers_block_type=["mamba", "attention", "moe"], mamba_num_heads=8,
                mamba_head_dim=16, n_groups=2, ssm_state_size=16, moe_intermediate_size=64, moe_shared_expert_intermediate_size=64, n_routed_experts=4,
                num_experts_per_tok=2)
# model -> class of its config, sizes
MODELS = {
    "qwen3": ("Qwen3", DENSE), "qwen3_tied": ("Qwen3", TIED), "qwen3_awkward": ("Qwen3", AWKWARD), "llama": ("Llama", DENSE), "llama_tied": ("Llama", TIED),
    "llama_awkward": ("Llama", AWKWARD), "gemma3_text": ("Gemma3Text", dict(DENSE, sliding_window=32)), "phi3": ("Phi3", dict(DENSE)),
    "qwen3_moe": ("Qwen3Moe", MOE), "mixtral": ("Mixtral", LOCAL), "gpt_oss": ("GptOss", LOCAL), "llama4": ("Llama4Text", dict(
        LOCAL, intermediate_size_mlp=256, num_experts_per_tok=1)),
    "granite_moe": ("GraniteMoe", LOCAL), "minimax_m2": ("MiniMaxM2", dict(LOCAL, rotary_dim=32)), "glm4_moe": ("Glm4Moe", DEEPSEEK),
    "deepseek_v2": ("DeepseekV2", MLA), "deepseek_v3": ("DeepseekV3", MLA), "qwen3_next": ("Qwen3Next", DELTA), "qwen3_5_moe": ("Qwen3_5MoeText", DELTA),
    "nemotron_h": ("NemotronH", NEMOTRON),
}
VISION = dict(hidden_size=32, out_hidden_size=256, depth=2, num_heads=2, num_hidden_layers=2, num_attention_heads=2, head_dim=16, intermediate_size=64,
              image_size=28, patch_size=14)
VISION_MODELS = {"qwen3_vl": ("Qwen3VL", dict(VISION, deepstack_visual_indexes=[0, 1], num_position_embeddings=16)), "qwen2_5_vl": ("Qwen2_5_VL", VISION),
                 "gemma3": ("Gemma3", VISION), "mistral3": ("Mistral3", VISION)}
OF_ATTENTION, OF_MLP, HEAD = "re:.*self_attn.*proj$", "re:.*mlp.*proj$", ["lm_head", "re:.*gate$"]


def filled(model, name):
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                scale = torch.ones if key.endswith("norm.weight") else torch.zeros
                tensor.copy_((torch.randn(tensor.shape, generator=numbers) * 0.05 + scale(tensor.shape)).to(tensor.dtype))
    model.config.architectures = [type(model).__name__]
    return model


def made(name):
    if name in VISION_MODELS:
        word, vision = VISION_MODELS[name]
        config = getattr(transformers, f"{word}Config")(text_config=dict(DENSE), vision_config=vision, tie_word_embeddings=False)
        return filled(AutoModelForImageTextToText.from_config(config, dtype=torch.bfloat16), name)
    word, sizes = MODELS[name]
    return filled(AutoModelForCausalLM.from_config(getattr(transformers, f"{word}Config")(**sizes), dtype=torch.bfloat16), name)


def tokens():
    return torch.randint(3, VOCABULARY, (2, 32), generator=torch.Generator().manual_seed(1))


def tokenizer():
    from tokenizers import Tokenizer, models

    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(VOCABULARY)}, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="w0", pad_token="w0", bos_token="w1", eos_token="w2")


def saved(model, folder):
    made(model).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def llmcompressor():
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, preset_name_to_scheme
    from datasets import Dataset
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from llmcompressor.modifiers.quantization import QuantizationModifier

    rows = Dataset.from_dict({"input_ids": tokens().repeat(4, 1).tolist(), "attention_mask": [[1] * 32] * 8})

    def scheme(targets, inputs=None, **weights):
        weights = {"symmetric": True, "type": "int", "strategy": "group" if "group_size" in weights else "channel"} | weights
        return QuantizationScheme(targets=[targets], weights=QuantizationArgs(**weights), input_activations=inputs)

    def weights(**keys):
        return dict(config_groups={"group_0": scheme("Linear", **keys)})

    def groups(*schemes):
        return dict(config_groups={f"group_{n}": one for n, one in enumerate(schemes)})

    def cache(strategy):
        return dict(targets="Linear", scheme="FP8_DYNAMIC", kv_cache_scheme=dict(num_bits=8, type="float", strategy=strategy, dynamic=False, symmetric=True))

    def fp8(targets):
        return scheme(targets, QuantizationArgs(num_bits=8, type="float", strategy="token", dynamic=True), num_bits=8, type="float")

    presets = ["FP8_DYNAMIC", "FP8", "FP8_BLOCK", "W8A8", "W4A16", "W4A16_ASYM", "W8A16", "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "MXFP8", "MXFP8A16",
               "W4A8", "W4AFP8", "INT8"]
    kinds = {name.lower(): dict(targets="Linear", scheme=name) for name in presets}
    tiles = dict(type="float", num_bits=8, strategy="block")
    kinds |= {f"w{bits}_g{group}": weights(num_bits=bits, group_size=group) for bits, group in ((2, 64), (3, 128), (5, 64), (6, 32), (7, 128), (4, 32))}
    kinds |= {f"w{bits}_channel": weights(num_bits=bits) for bits in (2, 3, 4, 5, 6, 7, 8)}
    kinds |= {f"w{bits}_asymmetric": weights(num_bits=bits, group_size=64, symmetric=False) for bits in (2, 3, 5, 6, 7, 8)}
    kinds |= {f"w{bits}_channel_asymmetric": weights(num_bits=bits, symmetric=False) for bits in (3, 4, 5, 8)}
    kinds |= {
        "w8a8_asymmetric": weights(num_bits=8, symmetric=False, inputs=QuantizationArgs(num_bits=8, dynamic=True, strategy="token", symmetric=False)),
        "blocks_64x128": weights(block_structure=[64, 128], **tiles), "w4_act_order": weights(num_bits=4, group_size=128, actorder="weight"),
        "fp8_cache": cache("tensor"), "fp8_cache_of_heads": cache("attn_head"),
        "w4_named": dict(config_groups={"all": scheme("Linear", num_bits=4, group_size=64)}),
        "fp8_w4": groups(fp8(OF_ATTENTION), scheme(OF_MLP, num_bits=4, group_size=64)),
        "w4_fp8": groups(scheme(OF_MLP, num_bits=4, group_size=64), fp8(OF_ATTENTION)),
        "w8_w4": groups(scheme(OF_ATTENTION, num_bits=8, group_size=32), scheme(OF_MLP, num_bits=4, group_size=64)),
        "w4_w4": groups(scheme(OF_MLP, num_bits=4, group_size=64), scheme(OF_ATTENTION, num_bits=4, group_size=128)),
        "w5_w3": groups(scheme(OF_ATTENTION, num_bits=5, group_size=32), scheme(OF_MLP, num_bits=3, group_size=64)),
        "fp8_nvfp4": groups(fp8(OF_ATTENTION), preset_name_to_scheme("NVFP4A16", [OF_MLP])),
        "w4_blocks": groups(scheme(OF_ATTENTION, num_bits=4, group_size=64), scheme(OF_MLP, block_structure=[64, 64], **tiles)),
    }
    only = set("w4_named w4_fp8 w4_w4 w5_w3 fp8_nvfp4 w4_blocks w8_w4 fp8_w4 w4_act_order blocks_64x128 w8a8_asymmetric".split())
    cases = {f"{kind}-qwen3" for kind in kinds if "cache" not in kind}
    cases |= {f"{kind}-{model}" for model in ("qwen3_moe", "deepseek_v3") for kind in ("fp8_dynamic", "fp8_block", "w4a16", "nvfp4", "mxfp4", "mxfp8",
              "w8a8", "w5_g64")}
    cases -= {"mxfp4-deepseek_v3", "mxfp8-deepseek_v3", "w8a8-deepseek_v3", "w5_g64-deepseek_v3", "w4a16-deepseek_v3"}
    cases |= {"w4_g32-deepseek_v3", "w3_channel-deepseek_v3", "fp8_cache-llama", "fp8_cache_of_heads-llama", "fp8_block-qwen3_awkward",
              "w4_channel-qwen3_awkward", "w5_channel-qwen3_awkward",
              "fp8_dynamic-qwen3_tied", "w4a16-mixtral", "w4a16-gpt_oss", "w4a16-glm4_moe", "fp8_dynamic-gemma3_text",
              "fp8_dynamic-qwen3_next", "nvfp4a16-qwen3_next", "fp8_dynamic-nemotron_h", "w4a16-granite_moe", "w8a16-phi3", "fp8_dynamic-phi3"}

    def make(kind, model, folder, scratch):
        keys = dict(kinds[kind])
        attention = ["re:.*self_attn.*", "re:.*shared_experts.*", "re:.*layers.0.mlp.*"] if model == "deepseek_v3" and kind == "w4_g32" else []
        modifier = (GPTQModifier if kind == "w4_act_order" else QuantizationModifier)(ignore=HEAD + attention, **keys)
        net = AutoModelForCausalLM.from_pretrained(saved(model, scratch), dtype=torch.bfloat16)
        calibrated = kind in ("fp8", "nvfp4", "int8", "w4_act_order") or "cache" in kind
        data = dict(dataset=rows, max_seq_length=32, num_calibration_samples=8, pipeline="basic") if calibrated else dict(pipeline="datafree")
        oneshot(model=net, processor=tokenizer(), recipe=modifier, **data)
        net.save_pretrained(folder, save_compressed=True)

    return sorted(cases), make


def modelopt():
    import modelopt.torch.quantization as mtq
    from modelopt.torch.export import export_hf_checkpoint

    def with_cache(config, cache):
        result = copy.deepcopy(getattr(mtq, f"{config}_CFG"))
        more = copy.deepcopy(getattr(mtq, f"{cache}_CFG")["quant_cfg"])
        result["quant_cfg"] = result["quant_cfg"] | more if isinstance(more, dict) else [*result["quant_cfg"], *more]
        return result

    plain = ["FP8_DEFAULT", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_2D_BLOCKWISE_WEIGHT_ONLY", "NVFP4_DEFAULT", "W4A16_NVFP4", "MXFP8_DEFAULT", "MXFP4_DEFAULT",
             "INT4_AWQ",
             "INT4_BLOCKWISE_WEIGHT_ONLY", "W4A8_AWQ_BETA", "INT8_DEFAULT", "INT8_SMOOTHQUANT", "INT8_WEIGHT_ONLY", "W4A8_MXFP4_FP8", "W4A8_NVFP4_FP8",
             "NVFP4_MLP_ONLY"]
    more = ["NVFP4_EXPERTS_ONLY", "MXFP4_MLP_WEIGHT_ONLY", "MAMBA_MOE_NVFP4_AGGRESSIVE"]
    kinds = {name.lower().removesuffix("_default"): getattr(mtq, f"{name}_CFG") for name in plain + more if hasattr(mtq, f"{name}_CFG")}
    kinds |= {"fp8_fp8cache": with_cache("FP8_DEFAULT", "FP8_KV"), "nvfp4_nvfp4cache": with_cache("NVFP4_DEFAULT", "NVFP4_KV"),
              "nvfp4_affinecache": with_cache("NVFP4_DEFAULT", "FP8_AFFINE_KV")}
    cases = {f"{name.lower().removesuffix('_default')}-qwen3" for name in plain}
    cases |= {f"{kind}-{model}" for model in ("qwen3_moe", "mixtral", "deepseek_v3")
              for kind in ("fp8", "nvfp4", "nvfp4_experts_only", "mxfp8", "fp8_2d_blockwise_weight_only", "int4_awq", "mxfp4_mlp_weight_only")}
    cases |= {"fp8_fp8cache-llama", "nvfp4_nvfp4cache-llama", "nvfp4_affinecache-llama", "fp8_fp8cache-deepseek_v3", "fp8_fp8cache-qwen3_next",
              "fp8_fp8cache-nemotron_h",
              "fp8-gpt_oss", "nvfp4-gpt_oss", "fp8-nemotron_h", "nvfp4-nemotron_h", "mamba_moe_nvfp4_aggressive-nemotron_h", "fp8-qwen3_next",
              "nvfp4-qwen3_next", "nvfp4-glm4_moe", "nvfp4-minimax_m2",
              "nvfp4-deepseek_v2", "nvfp4-qwen3_5_moe", "fp8-qwen3_tied", "nvfp4-llama_tied", "fp8-qwen3_vl", "nvfp4-qwen2_5_vl", "fp8-gemma3",
              "fp8-mistral3", "fp8-phi3",
              "fp8-granite_moe", "nvfp4-granite_moe", "fp8-llama4", "fp8_2d_blockwise_weight_only-llama_awkward"}

    def make(kind, model, folder, scratch):
        net = made(model)

        def run(part):
            with torch.no_grad():
                part(input_ids=tokens())

        mtq.quantize(net.model.language_model if model in VISION_MODELS else net, kinds[kind], run)
        export_hf_checkpoint(net, export_dir=folder)

    return sorted(cases), make


def of_transformers():
    from transformers import BitsAndBytesConfig, FineGrainedFP8Config, TorchAoConfig
    from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING

    AUTO_QUANTIZER_MAPPING["fp8"].validate_environment = lambda self, *args, **keys: None  # asks for a GPU; its arithmetic is plain torch
    import torchao.quantization as torchao

    kept = dict(modules_to_not_convert=["lm_head"])
    kinds = {"fp8": FineGrainedFP8Config(**kept), "fp8_e8m0": FineGrainedFP8Config(**kept, scale_fmt="ue8m0"),
             "bnb_nf4": BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
             "bnb_fp4": BitsAndBytesConfig(load_in_4bit=True), "bnb_int8": BitsAndBytesConfig(load_in_8bit=True),
             "torchao_int8": TorchAoConfig(torchao.Int8WeightOnlyConfig(), **kept), "torchao_fp8": TorchAoConfig(torchao.Float8WeightOnlyConfig(), **kept),
             "torchao_intx": TorchAoConfig(torchao.IntxWeightOnlyConfig(), **kept)}
    cases = {f"{kind}-qwen3" for kind in kinds}
    cases |= {f"fp8-{model}" for model in ("qwen3_awkward", "qwen3_moe", "mixtral", "deepseek_v3", "qwen3_next", "glm4_moe", "qwen3_5_moe", "gpt_oss",
              "llama_tied")}
    cases |= {"fp8_e8m0-qwen3_moe", "bnb_nf4-qwen3_moe"}

    def make(kind, model, folder, scratch):
        AutoModelForCausalLM.from_pretrained(
            saved(model, scratch), dtype=torch.bfloat16, quantization_config=kinds[kind], device_map="cpu").save_pretrained(folder)

    return sorted(cases), make


def autoround():
    from auto_round import AutoRound
    from torch.utils.data import DataLoader

    texts = DataLoader([row for row in tokens().repeat(4, 1)], batch_size=4)
    forms = {"gptq": ("W4A16", "auto_gptq"), "awq": ("W4A16", "auto_awq"), "own": ("W4A16", "auto_round"), "nvfp4": ("NVFP4", "llm_compressor"),
             "mxfp4": ("MXFP4", "auto_round"), "fp8_static": ("FP8_STATIC", "llm_compressor"), "fp8_block": ("FP8_BLOCK", "auto_round")}
    cases = [f"{kind}-{model}" for kind in forms for model in ("qwen3", "qwen3_moe")]

    def make(kind, model, folder, scratch):
        scheme, form = forms[kind]
        rounding = AutoRound(str(saved(model, scratch)), scheme=scheme, iters=0, disable_opt_rtn=True, device_map="cpu", nsamples=4, seqlen=32, dataset=texts)
        rounding.quantize_and_save(str(folder), format=form)
        for made_in in folder.glob(".autoround*"):  # it makes a folder of the model's name
            made_in.rename(folder.with_suffix(".inner"))
            folder.rmdir()
            folder.with_suffix(".inner").rename(folder)

    return cases, make


LIBRARIES = {"llmcompressor": llmcompressor, "modelopt": modelopt, "transformers": of_transformers, "autoround": autoround}


def run_library(library, folder, patterns):
    cases, make = LIBRARIES[library]()
    for case in cases:
        name = f"{library}-{case}"
        if patterns and not any(fnmatch.fnmatch(name, pattern) for pattern in patterns) or (folder / name).exists():
            continue
        scratch = folder / f".{library}"
        try:
            make(*case.split("-"), folder / f"{name}.part", scratch)
            (folder / f"{name}.part").rename(folder / name)
            print("made", name, flush=True)
        except Exception as error:
            traceback.print_exc(limit=-3)
            shutil.rmtree(folder / f"{name}.part", ignore_errors=True)
            print("FAILED", name, type(error).__name__, str(error)[:200].replace("\n", " "), flush=True)
        shutil.rmtree(scratch, ignore_errors=True)


def main(folder, *patterns):
    Path(folder).mkdir(parents=True, exist_ok=True)
    for library in LIBRARIES:
        if not patterns or any(fnmatch.fnmatch(library, pattern.partition("-")[0]) for pattern in patterns):
            subprocess.run([sys.executable, __file__, "--library", library, folder, *patterns])


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    if sys.argv[1] == "--library":
        run_library(sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
    else:
        main(*sys.argv[1:])
