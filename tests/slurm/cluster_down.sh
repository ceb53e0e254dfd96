#!/bin/bash
# Ends what cluster_up.sh started in FOLDER, jobs included, and removes the folder unless --keep is given.
#   tests/slurm/cluster_down.sh FOLDER [--keep]
set -euo pipefail
if [[ -n ${RESHARD_TEST_CLUSTER:-} ]]; then exec env -u RESHARD_TEST_CLUSTER "$0" "$@"; fi # it shall not find itself
folder=$(realpath "${1:?usage: cluster_down.sh FOLDER [--keep]}")
keep=${2:-}

ours() { # the processes that carry the mark of this cluster in their environment, but for this script and what called it
  local place pid
  while read -r place; do
    pid=${place//[!0-9]/}
    if [[ $pid != "$$" && $pid != "$PPID" ]]; then echo "$pid"; fi
  done < <(grep -lzxsF -- "RESHARD_TEST_CLUSTER=$folder" /proc/[0-9]*/environ)
}

# Polite first, so that slurmd and slurmctld close their files; job steps do not need that.
for signal in TERM KILL; do
  mapfile -t left < <(ours)
  if [[ ${#left[@]} -eq 0 ]]; then break; fi
  kill "-$signal" "${left[@]}" 2>/dev/null || true
  for ((i = 0; i < 20; i++)); do
    mapfile -t left < <(ours)
    if [[ ${#left[@]} -eq 0 ]]; then break; fi
    sleep 0.1
  done
done
if [[ ${#left[@]} -gt 0 ]]; then echo "cluster_down.sh: still there: ${left[*]}" >&2; fi
if [[ $keep != --keep ]]; then rm -rf "$folder"; fi
