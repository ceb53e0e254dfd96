#!/bin/sh
# Builds the site and uses it in a browser without network: the first page has its tables, the search finds pages, each version is offered.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) || { echo "test.sh: no browser: apt-get install chromium" >&2; exit 1; }
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
page=$("$here/build.sh" "$out")
dom() { "$browser" --headless --no-sandbox --disable-gpu --allow-file-access-from-files --virtual-time-budget=8000 --dump-dom "file://$1" 2>/dev/null; }
expect() { printf '%s' "$1" | grep -q "$2" || { echo "test.sh: $3" >&2; exit 1; }; }
first=$(dom "$page")
expect "$(printf '%s' "$first" | sed 's/<[^>]*>//g')" "reshard convert RUN OUT" "the first page does not list the commands"
expect "$first" '<option[^>]*>[0-9.]*</option>' "the first page offers no version"
for words in optimizer+universal weight_scale_inv "exit+code"; do
  expect "$(dom "$(dirname "$page")/search.html?q=$words")" 'li class="kind' "the search for $words finds no page"
done
echo "the site is complete: $(find "$out" -name '*.html' | wc -l) pages, $(du -sm "$out" | cut -f1) MiB"
