#!/bin/bash
# Ends what hosts_up.sh started in FOLDER, with all that runs on those hosts, and removes the folder.
#   tests/slurm/hosts_down.sh FOLDER
set -euo pipefail
folder=$(realpath "${1:?usage: hosts_down.sh FOLDER}")
if [[ ! -f $folder/started ]]; then exit 0; fi

alive() { # alive PID BEGAN: that very process, not a zombie
  local fields
  read -r -a fields 2>/dev/null <"/proc/$1/stat" || return 1
  [[ ${fields[21]} == "$2" && ${fields[2]} != Z ]]
}

# The first process of a host takes all others of the host with it.
while read -r pid began _; do
  if alive "$pid" "$began"; then kill -KILL "$pid" 2>/dev/null || true; fi
done <"$folder/started"
for ((i = 0; i < 100; i++)); do
  left=
  while read -r pid began _; do
    if alive "$pid" "$began"; then left=1; fi
  done <"$folder/started"
  if [[ -z $left ]]; then break; fi
  sleep 0.05
done
rm -rf "$folder"
