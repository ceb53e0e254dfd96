#!/usr/bin/env python3
"""Makes docs/how-it-is-tested.md: what is promised, which tests hold each promise, and how much was tried. No number of the page is typed.

    ctest --preset dev --output-junit tests.xml --test-output-size-passed 1000000     what ctest and pytest count
    tests/sweep/sweep.py --all                                  build/sweep/results.json; with --ranks 2 its own file
    scripts/fuzz.sh all                                         build/fuzz/results.json
    scripts/how_it_is_tested.py collect                         takes what there is of these into docs/how-it-is-tested.json
    scripts/how_it_is_tested.py page                            makes the page from it

`collect` keeps what was recorded of a part whose results are not there.
"""

import argparse
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from how_it_is_tested_promises import PROMISES, WORDS_OF_FAULTS, WORDS_OF_SCENARIOS  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[1]
RECORD = REPOSITORY / "docs" / "how-it-is-tested.json"
PAGE = REPOSITORY / "docs" / "how-it-is-tested.md"
LABELS = {
    "unit": "GoogleTest, in one process", "mpi": "GoogleTest and probes on 1 to 7 ranks", "peers": "pytest, with PyTorch, Megatron-Core, safetensors, "
    "Transformers and h5py", "docs": "every command of the documentation", "sweep": "a part of the sweep below", "fuzz": "kept inputs of the fuzzers, again",
    "slurm": "batch scripts, a pretend cluster", "view": "pages in a browser", "packaging": "packages", "other": "all others"}


# --- collecting -----------------------------------------------------------------------------------------------------------


def cases_in(output):
    """How many cases a test says it has passed: pytest's own count, or GoogleTest's. On several ranks each says the same."""
    passed = [int(number) for number in re.findall(r"(\d+) passed", output)]
    passed += [int(number) for number in re.findall(r"\[  PASSED  \] (?:\S*\[m)?(\d+) tests?", output)]
    return max(passed, default=1)


def labels_by_name():
    """As ctest lists them: its JUnit files have none before CMake 3.26."""
    listing = subprocess.run(["ctest", "--preset", "dev", "--show-only=json-v1"], cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    labels = {}
    for test in json.loads(listing)["tests"]:
        words = [word for one in test.get("properties", []) if one["name"] == "LABELS" for word in one["value"]]
        labels[test["name"]] = next((label for label in LABELS if label in words), "other")
    return labels


def tests_of(junit, labels):
    tests = {}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        output = case.findtext("system-out") or ""
        tests[case.get("name")] = {"label": labels.get(case.get("name"), "other"), "state": case.get("status"), "cases": cases_in(output), "seconds": float(case.get("time", 0))}
    return tests


def kept_of(tests):
    """Counts per label, and the cases of each test that the page names."""
    labels = {}
    for test in tests.values():
        entry = labels.setdefault(test["label"], {"programs": 0, "cases": 0, "failed": 0, "seconds": 0})
        entry["programs"] += 1
        entry["cases"] += test["cases"]
        entry["failed"] += test["state"] not in ("run", "notrun", "disabled")
        entry["seconds"] += test["seconds"]
    for entry in labels.values():
        entry["seconds"] = round(entry["seconds"])
    return {"labels": labels, "cases": {name: tests[name]["cases"] for name in sorted(tests) if name.startswith("peers.")}}


def sweep_of(files):
    """All counts; the functions are summed up."""
    rows = {}
    for file in files:
        record = json.loads(file.read_text())
        for one in record["counts"]:
            row = rows.setdefault((record["ranks"], one["scenario"], one["fault"]), {"points": 0, "failed": 0, "refused": 0, "published": 0})
            for key in row:
                row[key] += one[key]
    return [{"ranks": ranks, "scenario": scenario, "fault": fault} | row for (ranks, scenario, fault), row in sorted(rows.items())]


def fuzz_of(records):
    """All runs of a target together."""
    targets = {}
    for record in records:
        entry = targets.setdefault(record["target"], {"executions": 0, "seconds": 0, "findings": 0})
        for key in entry:
            entry[key] += record[key]
    return dict(sorted(targets.items()))


def collect(options):
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    if options.tests.exists():
        record["tests"] = kept_of(tests_of(options.tests, labels_by_name()))
    sweeps = sorted(options.sweep.glob("results*.json"))
    if sweeps:
        record["sweep"] = sweep_of(sweeps)
    if options.fuzz.exists():
        record["fuzz"] = fuzz_of(json.loads(options.fuzz.read_text()))
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


# --- the page -------------------------------------------------------------------------------------------------------------


def table(head, rows):
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"


def number(value):
    return f"{value:,}"


def promises_part():
    rows = [(promise, how, ", ".join(f"`{test}`" for test in tests)) for promise, how, tests in PROMISES]
    return "## Promises and their tests\n\n" + table(("promise", "how it is tried", "tests"), rows)


def tests_part(record):
    tests = record.get("tests")
    if not tests:
        return "## Tests\n\nNot in this record.\n"
    labels = tests["labels"]
    rows = [(f"`{label}`", LABELS[label], number(entry["programs"]), number(entry["cases"]), number(entry["failed"]), number(entry["seconds"]))
            for label, entry in sorted(labels.items(), key=lambda item: list(LABELS).index(item[0]))]
    cases = tests["cases"]
    layouts = sum(cases.get(f"peers.{name}{tier}", 0) for tier in ("", ".long")
                  for name in ("test_random_layouts", "test_end_to_end", "test_families", "test_seed_cases"))
    text = table(("label", "what they are", "programs", "cases", "failed", "seconds"), rows)
    said = f"\nConversions between layouts and formats that are compared with an independent reader or writer: {number(layouts)} cases, there and back.\n"
    return f"## Tests\n\n`scripts/test.sh` runs them.\n\n{text}{said}"


def sweep_part(record):
    head = ("## Sweeps of faults\n\n`tests/sweep/sweep.py --all` runs a small job once for every call that it makes for its files, and makes that one call fail. "
            "Afterwards the target is absent, or the complete old or new one; nothing of other jobs has changed; the exit code is right; and the same "
            "command again comes to the end that an undisturbed one comes to, and leaves nothing hidden.\n\n")
    rows = record.get("sweep")
    if not rows:
        return head + "Not in this record.\n"
    scenarios = [name for name in WORDS_OF_SCENARIOS if any(row["scenario"] == name for row in rows)]
    faults = [name for name in WORDS_OF_FAULTS if any(row["fault"] == name for row in rows)]
    text = ""
    for ranks in sorted({row["ranks"] for row in rows}):
        def cell(scenario, fault):
            own = [row for row in rows if (row["ranks"], row["scenario"], row["fault"]) == (ranks, scenario, fault)]
            return number(sum(row["points"] for row in own)) if own else ""
        lines = [(WORDS_OF_FAULTS[fault], *(cell(scenario, fault) for scenario in scenarios)) for fault in faults]
        text += f"On {ranks} rank{'s' * (ranks > 1)}, points tried:\n\n" + table(("fault", *scenarios), lines) + "\n"
    points, failed = sum(row["points"] for row in rows), sum(row["failed"] for row in rows)
    kills = sum(row["points"] for row in rows if row["fault"] == "kill")
    text += f"{number(points)} points, {number(kills)} of them kills; {number(failed)} against a promise.\n\n"
    return head + text + "\n".join(f"- `{name}`: {WORDS_OF_SCENARIOS[name]}" for name in scenarios) + "\n"


def fuzz_part(record):
    head = "## Fuzzing\n\n`scripts/fuzz.sh` gives every parser inputs that libFuzzer makes, with AddressSanitizer and UndefinedBehaviorSanitizer.\n\n"
    targets = record.get("fuzz")
    if not targets:
        return head + "Not in this record.\n"
    rows = [(f"`{name}`", number(one["executions"]), number(one["seconds"]), number(one["findings"])) for name, one in targets.items()]
    total = {key: sum(one[key] for one in targets.values()) for key in ("executions", "seconds", "findings")}
    return head + table(("target", "executions", "seconds", "findings"), [*rows, ("all", *(number(total[key]) for key in total))])


def page_of(record):
    head = ("# How it is tested\n\nWhat the program promises, which tests check it, and how much they have tried. "
            "`scripts/how_it_is_tested.py` makes this page from the results of the tests; no number is typed. What must be true of every conversion "
            "is in [invariants.md](invariants.md), what is not promised in [limits.md](limits.md).\n\n")
    return head + "\n".join(part for part in (promises_part(), tests_part(record), sweep_part(record), fuzz_part(record)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["collect", "page"])
    parser.add_argument("--tests", type=Path, default=REPOSITORY / "build" / "dev" / "tests.xml", help="what ctest --output-junit wrote")
    parser.add_argument("--sweep", type=Path, default=REPOSITORY / "build" / "sweep", help="the folder of the sweep's results")
    parser.add_argument("--fuzz", type=Path, default=REPOSITORY / "build" / "fuzz" / "results.json")
    options = parser.parse_args()
    if options.what == "collect":
        collect(options)
    else:
        PAGE.write_text(page_of(json.loads(RECORD.read_text())))


if __name__ == "__main__":
    main()
