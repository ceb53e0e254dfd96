#!/bin/bash
# Takes a Hugging Face folder through Megatron layouts, torch_dist and HDF5 back to a Hugging Face folder, and writes what was measured and compared into
# docs/cards/NAME.md: a card. docs/cards/README.md says what a card proves.
#   scripts/make_card.sh MODEL_FOLDER [--name NAME] [--revision TEXT] [--weights TEXT] [--scratch FOLDER] [--ranks N] [--out FOLDER] [--consume]
#     --name NAME        of the card; default: the folder's
#     --revision TEXT    what the files are; default: the commit that `hf download --local-dir` has noted, else "not known"
#     --weights TEXT     where the weights are from, such as "random"; default: "released"
#     --made-by COMMAND  that made the folder, for models that were made for a card
#     --scratch FOLDER   for what is made on the way (default: a new one in the folder of temporary files): twice the size of the model. Each checkpoint is
#                        removed as soon as the next one was verified
#     --ranks N          of every job; default: 2
#     --out FOLDER       of cards; default: docs/cards
#     --consume          removes MODEL_FOLDER once it was converted: for models that were made for a card
# RESHARD_BIN names a program that is there already; default: build/release/pipeline/reshard. Needs python3, without packages.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/mpi_environment.sh
source "$root/scripts/mpi_environment.sh"
export PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
reshard=$(realpath "${RESHARD_BIN:-$root/build/release/pipeline/reshard}")

stop() {
  echo "make_card: $*" >&2
  exit 1
}

model='' name='' revision='' weights=released made_by='' scratch='' ranks=2 out=$root/docs/cards consume=no
while [[ $# -gt 0 ]]; do
  case $1 in
    --name | --revision | --weights | --made-by | --scratch | --ranks | --out)
      [[ $# -gt 1 ]] || stop "$1 needs a value"
      word=${1#--}
      printf -v "${word//-/_}" '%s' "$2"
      shift
      ;;
    --consume) consume=yes ;;
    -*) stop "there is no option $1: the head of $0 lists them" ;;
    *)
      [[ -z $model ]] || stop "one model at a time, not $model and $1"
      model=$1
      ;;
  esac
  shift
done
[[ -n $model ]] || stop "give the folder of a model"
[[ -x $reshard ]] || stop "$reshard is not there: build it with scripts/build.sh, or name it with RESHARD_BIN"
[[ -f $model/config.json ]] || stop "$model/config.json is not there: give a Hugging Face folder"
model=$(realpath "$model")
name=${name:-$(basename "$model")}
if [[ -z $revision ]]; then
  revision=$(head -1 "$model/.cache/huggingface/download/config.json.metadata" 2>/dev/null || true)
  revision=${revision:-not known}
fi
mkdir -p "$out"
out=$(realpath "$out")
if [[ -z $scratch ]]; then
  work=$(mktemp -d "${TMPDIR:-/tmp}/reshard-card-XXXXXX")
else
  mkdir -p "$scratch"
  work=$(mktemp -d "$(realpath "$scratch")/card-XXXXXX")
fi
trap 'rm -rf "$work"' EXIT
mkdir "$work/records"
records=$work/records

# The layouts of this model: what its heads, layers and experts can be cut into. Lines "NUMBER KEY=VALUE…".
plan() {
  python3 - "$model/config.json" <<'PYTHON'
import json, sys

config = json.load(open(sys.argv[1]))
config = config.get("text_config", config)
layers = config.get("num_hidden_layers", 1)
heads = config.get("num_key_value_heads") or config.get("num_attention_heads") or 1
experts = next((config[key] for key in ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts") if config.get(key)), 1)


def fits(size, *numbers):
    return size if all(number % size == 0 for number in numbers) else 1


first = {"tp": fits(2, heads), "pp": fits(2, layers), "ep": fits(2, experts)}
second = {"tp": fits(4, heads), "pp": 1, "ep": fits(4, experts)}
third = {"tp": 1, "pp": fits(4, layers), "ep": fits(8, experts)}
for layout in (first, second, third):
    print(" ".join(f"target.layout.{key}={size}" for key, size in layout.items() if size > 1 or key == "tp"))
PYTHON
}
mapfile -t layouts < <(plan)

# Without hidden files and folders: those of a download are no part of the model.
sums() (cd "$1" && find . -type f ! -path '*/.*' ! -name SHA256SUMS ! -name reshard.json -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum)

# step NUMBER FORMAT KEY=VALUE…: converts what is there. A form that this model does not have is left out, with the reason.
current=$model
step() {
  local number=$1 format=$2 target=$work/$1-$2 code=0 began
  shift 2
  local settings=() word
  printf '[source]\npath = "%s"\n\n[target]\npath = "%s"\nformat = "%s"\n' "$current" "$target" "$format" >"$work/job.toml"
  for word in "$@"; do settings+=(--set "$word"); done
  began=$(date +%s.%N)
  mpirun --oversubscribe --bind-to none -n "$ranks" "$reshard" run "$work/job.toml" "${settings[@]}" --json >"$records/$number.json" 2>"$records/$number.err" || code=$?
  printf '%s\n' "$format" "$*" "$code" "$(echo "$(date +%s.%N) $began" | awk '{ printf "%.1f", $1 - $2 }')" "$(du -sb "$target" 2>/dev/null | cut -f1)" >"$records/$number.step"
  if [[ $code == 2 || $code == 3 ]]; then
    echo "$number $format $*: refused" >&2
    rm -rf "$target"
    return
  fi
  [[ $code == 0 ]] || {
    tail -3 "$records/$number.err" >&2
    stop "step $number ($format $*) ended with exit code $code"
  }
  echo "$number $format $*: done" >&2
  [[ $current == "$model" && $consume == no ]] || rm -rf "$current"
  current=$target
}

sums "$model" >"$records/before"
reference=$model
if [[ $consume == yes ]]; then # what lies beside the weights
  reference=$work/reference
  mkdir "$reference"
  find "$model" -maxdepth 1 -type f ! -name '*.safetensors' -exec cp {} "$reference/" \;
fi
mpirun --oversubscribe --bind-to none -n "$ranks" "$reshard" digest "$model" --json >"$records/digest.json"
# shellcheck disable=SC2086
{
  step 1 megatron ${layouts[0]}
  step 2 torch_dist ${layouts[1]}
  step 3 hdf5
  step 4 megatron ${layouts[2]}
  step 5 huggingface "target.reference=$reference"
}
[[ -f $records/5.step && $(sed -n 3p "$records/5.step") == 0 ]] || stop "the way back to Hugging Face was refused: $(tail -1 "$records/5.err")"
sums "$current" >"$records/after"

{
  "$reshard" --version --json | python3 -c 'import json, sys; print("reshard", json.load(sys.stdin)["version"])'
  uname -sr | sed -E 's/^([^0-9]*[0-9]+\.[0-9]+).*/\1/'
  lscpu | sed -n 's/^Model name: *//p' | head -1
  nproc
  free -g | awk '/^Mem:/ { print $2 }'
  findmnt -no FSTYPE -T "$work" || echo 'not known'
} >"$records/hardware"
printf '%s\n' "$name" "$revision" "$weights" "$ranks" "$(date -u +%F)" "MODEL_FOLDER --name $name --ranks $ranks" "$made_by" >"$records/facts"

python3 "$root/scripts/write_card.py" "$records" "$out/$name.md"
