#!/bin/bash
# transformers 5.12.1 and 5.23.0: a Nemotron-H model that the first saves loses its embedding in the second.
#
# Published Nemotron-H folders, and 5.23.0, call the embedding `backbone.embeddings.weight`. In memory it is
# `model.embeddings.weight` in both releases; on the way to disk 5.12.1 turns it into `backbone.embedding.weight`, without
# the s, and turns that back when it loads. 5.23.0 knows only the published name: it loads the folder with an embedding of
# new random values and reports the key as missing, which is a warning and no error. A program that looks for the
# published names, such as Megatron-Bridge 0.6.2 (which allows no transformers behind 5.12.1), does not find it either.
#
# Seen on Linux x86-64, two layers in float32:
#   5.12.1 saved as ['backbone.embedding.weight']
#   5.12.1 loads its own save: missing [], the embedding is the saved one: True
#   5.23.0 saved as ['backbone.embeddings.weight']
#   5.23.0 loads the save of 5.12.1: missing ['model.embeddings.weight'], the embedding is the saved one: False
# Exit 0: still so. Exit 1: the behaviour has changed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
pip=("$folder/venv/bin/pip" install --quiet)
"${pip[@]}" torch==2.13.0 numpy==2.4.6 safetensors==0.8.0 packaging==26.0 pyyaml==6.0.3 regex==2026.11.19 tqdm==4.67.3 typer==0.21.1
"${pip[@]}" --target "$folder/5.12.1" --no-deps transformers==5.12.1
"${pip[@]}" --target "$folder/5.12.1" tokenizers==0.22.2 huggingface-hub==1.33.0
"${pip[@]}" --target "$folder/5.23.0" --no-deps transformers==5.23.0
"${pip[@]}" --target "$folder/5.23.0" tokenizers==0.23.3 huggingface-hub==2.4.0
cat >"$folder/run.py" <<'PY'
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

transformers.utils.logging.set_verbosity_error()
word, place = sys.argv[1], Path(sys.argv[2])
embedding = "embedding"
if word == "save":
    torch.manual_seed(0)
    config = transformers.NemotronHConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
        layers_block_type=["mamba", "attention"], mamba_num_heads=2, mamba_head_dim=16, ssm_state_size=8, n_groups=1)
    model = transformers.NemotronHForCausalLM(config)
    torch.save(model.get_input_embeddings().weight.detach().clone(), f"{place}.pt")
    model.save_pretrained(place)
    print(f"{transformers.__version__} saved as {[name for name in load_file(place / 'model.safetensors') if embedding in name]}")
else:
    model, told = transformers.NemotronHForCausalLM.from_pretrained(place, output_loading_info=True)
    same = torch.equal(model.get_input_embeddings().weight, torch.load(f"{place}.pt"))
    print(f"missing {sorted(told['missing_keys'])}, the embedding is the saved one: {same}")
PY
run() { HF_HUB_OFFLINE=1 PYTHONPATH="$folder/$1" "$folder/venv/bin/python" -W ignore "$folder/run.py" "$2" "$folder/$3" 2>/dev/null; }
{
  run 5.12.1 save old
  echo "5.12.1 loads its own save: $(run 5.12.1 load old)"
  run 5.23.0 save new
  echo "5.23.0 loads the save of 5.12.1: $(run 5.23.0 load old)"
} | tee "$folder/seen"
diff "$folder/seen" - <<'SEEN' || { echo "the behaviour has changed" >&2; exit 1; }
5.12.1 saved as ['backbone.embedding.weight']
5.12.1 loads its own save: missing [], the embedding is the saved one: True
5.23.0 saved as ['backbone.embeddings.weight']
5.23.0 loads the save of 5.12.1: missing ['model.embeddings.weight'], the embedding is the saved one: False
SEEN
