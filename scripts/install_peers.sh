#!/bin/bash
# Makes .cache/peers, a Python environment with the libraries whose readers and writers the tests compare with.
#   scripts/install_peers.sh           all of it; nothing is done when it was made from the same requirements by the same Python
#   scripts/install_peers.sh empty     the environment without its libraries: enough for CMake, so that they can be installed while the program is compiled
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=tests/peers/requirements.txt
torch=$(grep -E '^torch==' "$requirements")
environment=.cache/peers
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
    echo "install_peers.sh: '$1' is no word: choose empty, or nothing" >&2
    exit 2
    ;;
esac

echo "peers: installing $requirements"
pip=("$environment/bin/python" -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" "$torch" # first: the others then take this version
"${pip[@]}" "$torch" -r "$requirements"
echo "$made_from" >"$stamp"
