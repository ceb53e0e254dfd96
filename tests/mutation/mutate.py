#!/usr/bin/env python3
"""Changes one operator, constant, branch or statement of the product at a time and looks whether a C++ test notices.

    mutate.py --folder core --count 200 --seed 1      changes spread evenly over core/
    mutate.py --only core/layout/pieces/join.cpp --count 20  changes of one file
    mutate.py --folder stages --again RESULTS.json    those again that survived
    mutate.py --folder core --list                    which changes would be tried

Results go to build/mutation/FOLDER-SEED.json and .md. See README.md.
"""

import argparse
import json
import os
import random
import shutil
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench import REPOSITORY, Bench
from changes import apply, changes_of, code_at, line_of

KNOWN = Path(__file__).with_name("equivalent.json")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", default="core", help="a folder of sources: core, stages, pipeline or one inside them")
    parser.add_argument("--only", action="append", help="only this source; may be given again")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="begin with this one of the count changes")
    parser.add_argument("--jobs", type=int, default=1, help="changes at the same time, and compilers")
    parser.add_argument("--slowest", type=float, default=20, help="tests that take more seconds of processor time than this are left out")
    parser.add_argument("--again", help="results whose survivors are tried again")
    parser.add_argument("--control", action="store_true", help="the sources are compiled and linked as they are: each test that fails then is a fault of the method")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--no-build", action="store_true", help="the build folder is up to date")
    parser.add_argument("--build", default=str(REPOSITORY / "build/test"), help="a configured build folder")
    parser.add_argument("--reach", default=str(REPOSITORY / "build/reach/reach.json"), help="which functions each test reaches, by reach.py")
    parser.add_argument("--results", help="name of the results without ending")
    return parser.parse_args()


def sources(options, bench):
    wanted = options.only or [options.folder.rstrip("/") + "/"]
    return sorted(f for f in bench.compile_of if f.endswith(".cpp") and any(f == w or f.startswith(w) for w in wanted))


def known_equivalents():
    return {(e["file"], e["before"], e["after"]) for e in json.loads(KNOWN.read_text())} if KNOWN.exists() else set()


def strata(options, bench):
    """All changes in the order of the sources, cut into as many equal parts as changes are wanted."""
    equivalent = known_equivalents()
    every = []
    for file in sources(options, bench):
        source = (REPOSITORY / file).read_text()
        every += [(file, c) for c in changes_of(source) if (file, *code_at(source, c)) not in equivalent]
    count = min(options.count, len(every))
    return [every[i * len(every) // count:(i + 1) * len(every) // count] for i in range(count)]


def draw(part, seed, index):
    """The changes of a part in the order in which they are tried: first of which kind, then which."""
    chance = random.Random(f"{seed}/{index}")
    left = {}
    for file, change in part:
        left.setdefault(kind_of(change), []).append((file, change))
    while left:
        kind = chance.choice(sorted(left))
        yield left[kind].pop(chance.randrange(len(left[kind])))
        if not left[kind]:
            del left[kind]


def kind_of(change):
    if change.what.startswith("condition") or change.what.split()[0] in ("continue", "break", "return"):
        return "branch"
    if change.what.startswith("statement"):
        return "statement"
    return "constant" if change.what[0].isdigit() else "operator"


class Trial:
    def __init__(self, bench, options, index):
        self.bench, self.options, self.index = bench, options, index
        self.place = bench.scratch / f"change-{os.getpid()}-{index}"

    def of(self, candidates):
        """The first change that compiles, and what came of it."""
        for file, change in candidates:
            begin = time.time()
            source = (REPOSITORY / file).read_text()
            before, after = code_at(source, change)
            result = {"file": file, "line": line_of(source, change.begin), "change": change.what, "before": before, "after": after}
            try:
                changed = self.bench.compile(file, source if self.options.control else apply(source, change), self.place)
                if changed is None:
                    continue
                result["noticed_by"], result["how"] = self.first_failure(file, result["line"], changed)
                result["tests"] = len(self.bench.tests_for(file, result["line"]))
                result["seconds"] = round(time.time() - begin, 1)
                return result
            finally:
                shutil.rmtree(self.place, ignore_errors=True)
        return None

    def first_failure(self, file, line, changed):
        for test in self.bench.tests_for(file, line):
            usual = self.bench.usual_seconds(test)
            if usual is None or usual > self.options.slowest:
                continue
            program = self.bench.link(test, changed, self.place)
            outcome = self.bench.run(test, program, 3 + 5 * usual, 60 + 40 * usual)
            if not outcome.passed:
                return test.name, outcome.why
        return None, ""


def summary(results, name):
    noticed = [r for r in results if r["noticed_by"]]
    lines = [f"# {name}: {len(noticed)} of {len(results)} noticed", "", "| place | change | code | noticed by | seconds |", "|---|---|---|---|---|"]
    for r in sorted(results, key=lambda r: (bool(r["noticed_by"]), r["file"], r["line"])):
        code = r["before"].replace("|", "\\|")[:100]
        by = f"{r['noticed_by']} ({r['how']})" if r["noticed_by"] else "**survived**"
        lines.append(f"| {r['file']}:{r['line']} | {r['change'].replace('|', chr(92) + '|')} | `{code}` | {by} | {r['seconds']} |")
    return "\n".join(lines) + "\n"


def survivors(file):
    for r in json.loads(Path(file).read_text()):
        if r["noticed_by"]:
            continue
        source = (REPOSITORY / r["file"]).read_text()
        same = [c for c in changes_of(source) if code_at(source, c) == (r["before"], r["after"])]
        if same:
            yield [(r["file"], same[0])]
        else:
            print(f"no longer there: {r['file']}:{r['line']}: {r['before']}")


def stop(number, _):
    """At once: nothing of the tree is changed, and sandboxed tests end with this process."""
    for place in (REPOSITORY / "build/mutation").glob(f"change-{os.getpid()}-*"):
        shutil.rmtree(place, ignore_errors=True)
    os._exit(128 + number)


def main():
    options = arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    os.nice(max(0, 10 - os.nice(0)))
    bench = Bench(options.build, REPOSITORY / "build/mutation")
    if not options.no_build and not options.list:
        bench.build_tests(options.jobs)
    bench.read_build()
    bench.read_reach(options.reach)
    parts = list(survivors(options.again)) if options.again else [list(draw(part, options.seed, i)) for i, part in enumerate(strata(options, bench))][options.first:]
    if options.list:
        for part in parts:
            file, change = part[0]
            source = (REPOSITORY / file).read_text()
            print(f"{file}:{line_of(source, change.begin)}: {change.what}: {code_at(source, change)[0]}")
        return
    name = options.results or str(bench.scratch / f"{options.folder.replace('/', '-')}-{options.seed}")
    results = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda job: Trial(bench, options, job[0]).of(job[1]), enumerate(parts)):
            if result is None:
                continue
            results.append(result)
            word = f"{result['noticed_by']} ({result['how']})" if result["noticed_by"] else "SURVIVED"
            print(f"{result['file']}:{result['line']}: {result['change']}: {word}, {result['seconds']} s", flush=True)
            Path(f"{name}.json").write_text(json.dumps(results, indent=1))
            Path(f"{name}.md").write_text(summary(results, name))
    noticed = sum(bool(r["noticed_by"]) for r in results)
    print(f"{noticed} of {len(results)} noticed; {name}.md")


if __name__ == "__main__":
    main()
