#!/bin/bash
# Makes .cache/peers, a Python environment with the libraries whose readers and writers the tests compare with.
# Nothing is done when it was made from the same requirements by the same Python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

requirements=tests/peers/requirements.txt
torch=$(grep -E '^torch==' "$requirements")
environment=.cache/peers
stamp=$environment/made-from.txt

made_from=$(
  echo "$PWD"
  python3 --version
  sha256sum "$requirements"
)
if [[ -f $stamp && $(<"$stamp") == "$made_from" ]]; then
  echo "peers: $environment is up to date"
  exit 0
fi

echo "peers: making $environment"
python3 -m venv --clear "$environment"
pip=("$environment/bin/python" -m pip --disable-pip-version-check install --quiet)
"${pip[@]}" "$torch" # first: the others then take this version
"${pip[@]}" "$torch" -r "$requirements"
echo "$made_from" >"$stamp"
