#!/bin/bash
# Makes .cache/peers, a Python environment with the libraries whose readers and writers the tests compare with.
#   scripts/install_peers.sh           all of it; nothing is done when it was made from the same requirements by the same Python
#   scripts/install_peers.sh empty     the environment without its libraries: enough for CMake, so that they can be installed while the program is compiled
#   scripts/install_peers.sh RELEASE   a release of tests/peers/releases.txt, such as megatron-core==0.19.2, over the libraries of .cache/peers:
#                                      .cache/peers-megatron-core-0.19.2
#   scripts/install_peers.sh vllm      .cache/peers-vllm, an environment of its own with tests/peers/vllm.txt
#   scripts/install_peers.sh sglang    .cache/peers-sglang, SGLang's package alone, which that environment's Python can read
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=tests/peers/requirements.txt
releases=tests/peers/releases.txt
torch=$(grep -E '^torch==' "$requirements")
environment=.cache/peers

# Only the release itself is installed, and what releases.txt names beside it. A .pth file puts the other environment's libraries behind them, and gives
# typing the name that sources for Python 3.12 import.
install_release() {
  local release=$1 overlay="$environment-${1/==/-}" words libraries made_from
  read -r -a words < <(grep "^$release " "$releases") || true
  if ((${#words[@]} < 2)); then
    echo "install_peers.sh: '$release' is not in $releases, which has: $(awk '/^[^#]/ { printf "%s ", $1 }' "$releases")" >&2
    exit 2
  fi
  if ! libraries=$("$environment/bin/python" -c 'import sysconfig, torch; print(sysconfig.get_path("purelib"))' 2>/dev/null); then
    echo "install_peers.sh: $environment has no libraries to put $release over: run scripts/install_peers.sh first" >&2
    exit 1
  fi
  made_from=$(
    echo "$libraries"
    "$environment/bin/python" --version
    sha256sum scripts/install_peers.sh
    echo "${words[*]}"
  )
  if [[ -f $overlay/made-from.txt && $(<"$overlay/made-from.txt") == "$made_from" ]]; then
    echo "peers: $overlay is up to date"
    return
  fi
  echo "peers: making $overlay"
  "$environment/bin/python" -m venv --clear --without-pip "$overlay"
  local own
  own=$("$overlay/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  "$environment/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: \
    --python-version "${words[1]}" --ignore-requires-python --target "$own" "$release" "${words[@]:2}"
  {
    echo "$libraries"
    echo 'import typing; hasattr(typing, "override") or setattr(typing, "override", lambda method: method)'
  } >"$own/peers.pth"
  echo "$made_from" >"$overlay/made-from.txt"
}

# The wheels of torchvision and its like on PyPI are for torch with CUDA, and vLLM takes any that is there.
install_vllm() {
  local own=$environment-vllm list=tests/peers/vllm.txt made_from
  made_from="$PWD $(python3 --version) $(sha256sum "$list")"
  if [[ -f $own/made-from.txt && $(<"$own/made-from.txt") == "$made_from" ]]; then
    echo "peers: $own is up to date"
    return
  fi
  echo "peers: making $own"
  python3 -m venv --clear "$own"
  "$own/bin/python" -m pip --disable-pip-version-check install --quiet "$(grep -E '^torch==' "$list")"
  "$own/bin/python" -m pip --disable-pip-version-check install --quiet -r "$list"
  "$own/bin/python" -m pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec
  echo "$made_from" >"$own/made-from.txt"
}

if [[ ${1:-} == sglang ]]; then
  python3 -m pip --disable-pip-version-check install --quiet --no-deps --upgrade --target "$environment-sglang" sglang==0.5.23
  exit 0
fi
if [[ ${1:-} == vllm ]]; then
  install_vllm
  exit 0
fi
if [[ ${1:-} == *==* ]]; then
  install_release "$1"
  exit 0
fi

stamp=$environment/made-from.txt
begun=$environment/made-for.txt

made_from=$(
  echo "$PWD"
  python3 --version
  sha256sum "$requirements"
)
if [[ -f $stamp && $(<"$stamp") == "$made_from" ]]; then
  echo "peers: $environment is up to date"
  exit 0
fi

if [[ ! -f $begun || $(<"$begun") != "$made_from" ]]; then
  echo "peers: making $environment"
  python3 -m venv --clear "$environment"
  echo "$made_from" >"$begun"
fi
case "${1:-}" in
  "") ;;
  empty) exit 0 ;;
  *)
    echo "install_peers.sh: '$1' is no word: choose empty, vllm, a release such as megatron-core==0.19.2, or nothing" >&2
    exit 2
    ;;
esac

echo "peers: installing $requirements"
pip=("$environment/bin/python" -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" "$torch" # first: the others then take this version
"${pip[@]}" "$torch" -r "$requirements"
echo "$made_from" >"$stamp"
