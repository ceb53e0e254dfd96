#!/usr/bin/env python3
"""Runs every C++ test once and notes which functions of the product it reaches: reach.py BUILD writes BUILD/reach.json, which mutate.py reads.

BUILD is configured as README.md tells. reach.json: {"functions": [[file, first line, last line], ...], "tests": {name: [numbers of functions]}}.
"""

import array
import bisect
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import REPOSITORY, Bench


def blocks_of(program):
    """The addresses of all instrumented blocks, from the section in which clang lists them beside a word of flags."""
    sections = subprocess.run(["readelf", "--section-headers", "--wide", program], check=True, capture_output=True, text=True).stdout
    offset, size = re.search(r"__sancov_pcs +\S+ +[0-9a-f]+ ([0-9a-f]+) ([0-9a-f]+)", sections).groups()
    with open(program, "rb") as file:
        file.seek(int(offset, 16))
        return array.array("Q", file.read(int(size, 16)))[::2]


def places_of(program, addresses):
    """(function, file, line) of each address."""
    asked = "\n".join(f"0x{a:x}" for a in addresses)
    answer = subprocess.run(["llvm-symbolizer-16", "--no-inlines", "--output-style=LLVM", f"--obj={program}"], input=asked, check=True, capture_output=True, text=True)
    for entry in answer.stdout.split("\n\n"):
        lines = entry.strip().splitlines()
        if len(lines) >= 2:
            name, (path, line) = lines[0], lines[1].rsplit(":", 2)[:2]
            yield name, path, int(line)
        else:
            yield None


class Functions:
    """The functions of one program that are written in a source of the product."""

    def __init__(self, program, numbers):
        addresses = sorted(set(blocks_of(program)))
        self.begin, self.number = addresses, []
        ranges, keys = {}, []
        for place in places_of(program, addresses):
            file = place and Path(place[1])
            inside = place and place[2] and file.is_relative_to(REPOSITORY) and file.suffix == ".cpp" and file.relative_to(REPOSITORY).parts[0] in ("core", "stages", "pipeline")
            key = (str(file.relative_to(REPOSITORY)), place[0]) if inside else None
            keys.append(key)
            if key:
                first, last = ranges.get(key, (place[2], place[2]))
                ranges[key] = (min(first, place[2]), max(last, place[2]))
        at = {key: numbers.setdefault((key[0], *lines), len(numbers)) for key, lines in ranges.items()}
        self.number = [at.get(key) for key in keys]

    def of(self, address):
        """`address` is the one behind the call that noted the block."""
        i = bisect.bisect_right(self.begin, address) - 1
        return self.number[i] if i >= 0 else None


def reached_by(bench, test, place):
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    environment = dict(os.environ, RESHARD_REACH=str(place), OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    environment.update(e.split("=", 1) for e in test.environment)
    try:
        subprocess.run(test.command, env=environment, cwd=bench.build, capture_output=True, timeout=900)
    except subprocess.TimeoutExpired:
        print(f"took too long: {test.name}", flush=True)
    found = set()
    for file in place.glob("*.blocks"):
        if file.with_suffix(".program").read_text() == str(test.program):
            found |= set(array.array("I", file.read_bytes()))
    shutil.rmtree(place)
    return found


def main():
    build = Path(sys.argv[1]).resolve()
    bench = Bench(build, build / "reach")
    bench.read_build()
    numbers, functions, tests = {}, {}, {}
    for program in sorted({test.program for test in bench.tests}):
        functions[program] = Functions(program, numbers)
    with ThreadPoolExecutor(2) as pool:
        for test, found in zip(bench.tests, pool.map(lambda t: reached_by(bench, t, bench.scratch / re.sub(r"\W", "_", t.name)), bench.tests)):
            tests[test.name] = sorted({functions[test.program].of(a) for a in found} - {None})
            if not tests[test.name]:
                print(f"reaches nothing: {test.name}", flush=True)
    (build / "reach.json").write_text(json.dumps({"functions": list(numbers), "tests": tests}))
    print(f"{len(numbers)} functions, {len(set().union(*tests.values()))} reached, by {len(tests)} tests")


if __name__ == "__main__":
    main()
