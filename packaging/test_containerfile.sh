#!/bin/bash
# Carries out packaging/Containerfile without a container engine: each FROM is a clean Debian system made by debootstrap, COPY and RUN work in it.
# Then the sample is converted in the last one, as the image would. Builds the whole program, which takes minutes; needs root and debootstrap.
# Exit code 77: this machine cannot do it. What it does not show: how an engine sets up users, networks and layers.
set -euo pipefail
here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
# shellcheck source=packaging/clean_root.sh
source "$here/clean_root.sh"
reason=$(why_no_clean_root)
if [[ -n $reason ]]; then
  echo "test_containerfile: skipped: $reason"
  exit 77
fi
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
say() { printf '== %4d s  %s\n' "$SECONDS" "$*"; }

say "debootstrap"
make_clean_root "$work/base" >"$work/log" 2>&1 || { tail -5 "$work/log" >&2; exit 1; }
stage=
exports=()
while IFS= read -r line; do
  case "$line" in
    '' | '#'* | CMD*) ;;
    FROM*)
      stage=$work/${line##* AS }
      [[ $line == *' AS '* ]] || stage=$work/final
      cp -a "$work/base" "$stage"
      ;;
    ARG*) exports+=("${line#ARG }") ;;
    ENV*)
      read -r -a more <<<"${line#ENV }"
      exports+=("${more[@]}")
      ;;
    'COPY --from='*)
      read -r from source target <<<"${line#COPY --from=}"
      cp -a "$work/$from$source" "$stage$target"
      ;;
    'COPY . '*)
      mkdir -p "$stage${line#COPY . }"
      tar -C "$here/.." --exclude=./build --exclude=./.cache --exclude=./.git -c . | tar -x -C "$stage${line#COPY . }"
      ;;
    RUN*)
      say "$line"
      in_root "$stage" env "${exports[@]}" sh -c "${line#RUN }" >"$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
      ;;
    *)
      echo "test_containerfile: does not know how to carry out: $line" >&2
      exit 1
      ;;
  esac
done <"$here/Containerfile"
say "at work"
in_root "$stage" env "${exports[@]}" bash /usr/share/reshard/try_sample.sh
say "Containerfile: built, installed and used; $(du -sm "$stage" | cut -f1) MiB"
