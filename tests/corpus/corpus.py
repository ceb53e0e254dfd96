#!/usr/bin/env python3
"""A corpus of small jobs whose results are recorded, so that another build can be checked to write the same bytes.

    corpus.py make FOLDER                          all inputs, and the list of jobs (needs the Python of tests/peers)
    corpus.py record FOLDER --binary B             runs all jobs and keeps their results
    corpus.py check FOLDER --binary B              runs them again and reports every difference
"""

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corpus_compare import differences
from corpus_run import Workshop, files_below

LONG_AGO = (1_600_000_000, 1_600_000_000)
MADE = re.compile(r"made/([\w.+/-]+)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "record", "check"])
    parser.add_argument("folder", type=lambda word: Path(word).absolute())
    parser.add_argument("--binary", help="the program; model maps come from RESHARD_MAPS, else from this source tree")
    parser.add_argument("--ranks", default="1", help="numbers of MPI ranks, such as 1,2: the results of all must be those of the first (default: 1)")
    parser.add_argument("--only", default="", help="a regular expression: only jobs with such a name (check)")
    parser.add_argument("--at-once", type=int, default=2, help="how many jobs run at a time (default: 2)")
    parser.add_argument("--keep", action="store_true", help="leave what differs in FOLDER/work-PID (check)")
    options = parser.parse_args()
    options.ranks = [int(word) for word in options.ranks.split(",")]
    if options.command != "make" and not options.binary:
        parser.error("--binary is missing")
    return {"make": make, "record": record, "check": check}[options.command](options)


# --- make -------------------------------------------------------------------------------------------------------------


def make(options):
    import corpus_inputs
    import corpus_jobs
    import corpus_refusals

    options.folder.mkdir(parents=True, exist_ok=True)
    failed = corpus_inputs.make_all(options.folder / "inputs")
    runs = corpus_jobs.run_jobs(options.folder / "inputs")
    jobs = [*runs, *corpus_refusals.more_jobs(), *map(corpus_jobs.plan_of, [job for job in runs if job["target"]][::12])]
    twice = [name for name, count in Counter(job["name"] for job in jobs).items() if count > 1]
    assert not twice, f"two jobs of one name: {twice}"
    (options.folder / "jobs.json").write_text(json.dumps(jobs, indent=1))
    print(f"{len(corpus_inputs.MAKERS)} inputs, {len(failed)} failed; {len(jobs)} jobs")
    return 1 if failed else 0


def jobs_of(folder):
    return json.loads((folder / "jobs.json").read_text())


# --- record -----------------------------------------------------------------------------------------------------------


def record(options):
    folder, made, start = options.folder, options.folder / "made.part", time.monotonic()
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    jobs, shop, digests = jobs_of(folder), Workshop(folder, options.binary, made), {}

    def run(job):
        outcome, target = shop.run(job, options.ranks[0])
        if target and target.exists():
            keep_result(target, made / job["name"])
        digests[job["name"]] = {"exit": outcome.code, "said": outcome.said, "files": outcome.files}

    for level in levels(jobs):
        in_parallel(run, level, options.at_once)
    shop.remove()
    shutil.rmtree(folder / "made", ignore_errors=True)
    made.rename(folder / "made")
    recorded = {"inputs": sum_of(folder / "inputs"), "ranks": options.ranks[0], "jobs": {job["name"]: digests[job["name"]] for job in jobs}}
    (folder / "digests.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False))
    print_codes(digests)
    print(f"{counted(digests)} recorded in {time.monotonic() - start:.0f} s")
    return check(options, options.ranks) if sum(len(job["again"]) for job in jobs) + len(options.ranks) > 1 else 0


def keep_result(target, place):
    """The same times in every record: the manifests of later jobs have a stamp of their source."""
    for path in [*sorted(target.rglob("*")), target]:
        os.utime(path, LONG_AGO, follow_symlinks=False)
    place.parent.mkdir(parents=True, exist_ok=True)
    target.rename(place)


def levels(jobs):
    """Lists of jobs that need only results of earlier lists."""
    depth = {}
    for job in jobs:  # a job stands behind those that it needs
        depth[job["name"]] = 1 + max((depth[name] for name in needed(job, depth)), default=-1)
    return [[job for job in jobs if depth[job["name"]] == level] for level in range(max(depth.values()) + 1)]


def needed(job, known):
    """made/a/b/c may be a file in the result a/b."""
    words = MADE.findall(" ".join([job["text"] or "", *job["command"], job["before"] or ""]))
    return {name for word in words for name in parents(word) if name in known}


def parents(word):
    parts = word.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts) + 1)]


def print_codes(digests):
    codes = Counter(each["exit"] for each in digests.values())
    print("exit codes: " + ", ".join(f"{code}: {count:,} jobs" for code, count in sorted(codes.items())))


# --- check ------------------------------------------------------------------------------------------------------------


def check(options, again_on=None):
    """With `again_on`, after a record, only what must not depend on ranks and memory."""
    folder, start = options.folder, time.monotonic()
    recorded = json.loads((folder / "digests.json").read_text())
    if recorded["inputs"] != sum_of(folder / "inputs"):
        sys.exit("the inputs are not those of the record: run record again")
    jobs = [job for job in jobs_of(folder) if re.search(options.only, job["name"])]
    shop, results, runs = Workshop(folder, options.binary, folder / "made"), [], runs_of(jobs, recorded["ranks"], options.ranks, again_on)

    def run(each):
        job, ranks, memory = each
        outcome, target = shop.run(job, ranks, memory)
        known = recorded["jobs"].get(job["name"])
        found = ["not recorded"] if known is None else differences(
            known, outcome, folder / "made" / job["name"], target, ranks == recorded["ranks"] and not memory, memory and (memory, job["memory"]))
        if target and not (found and options.keep):
            shutil.rmtree(target, ignore_errors=True)
        results.append((title(each), found, len(outcome.files)))

    for several in by_turns(runs):
        in_parallel(run, several, options.at_once)
    if not options.keep:
        shop.remove()
    return summary(results, set() if options.only or again_on else set(recorded["jobs"]) - {job["name"] for job in jobs}, time.monotonic() - start)


def runs_of(jobs, recorded_on, ranks, again_on):
    """(job, ranks, memory): every job on each number of ranks, and some once more on others with other memory."""
    runs = [(job, count, None) for count in ranks for job in jobs if not again_on or count != recorded_on]
    again = [(job, each["ranks"], each["memory"]) for job in jobs for each in job["again"]]
    return runs + again


def by_turns(runs):
    """Two runs of one job write to the same place, so they take turns."""
    turns = {}
    for each in runs:
        before = sum(each[0]["name"] in names for names in turns.values())
        turns.setdefault(before, {}).setdefault(each[0]["name"], each)
    return [list(turn.values()) for turn in turns.values()]


def title(each):
    job, ranks, memory = each
    return job["name"] + (f" ({ranks} ranks{', ' + memory if memory else ''})" if ranks > 1 or memory else "")


def summary(results, gone, seconds):
    different = sorted((name, found) for name, found, _ in results if found)
    for name, found in different:
        print(f"{name}\n" + "".join(f"    {line}\n" for line in found), end="")
    for name in sorted(gone):
        print(f"{name}\n    recorded, but no job")
    count = len(different) + len(gone)
    how = "all equal" if not count else f"{count:,} jobs differ"
    cpu = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{seconds:.0f} s, {cpu.ru_utime + cpu.ru_stime:.0f} s of processors")
    print(f"{len(results):,} jobs, {sum(files for *_, files in results):,} files: {how}")
    return 1 if count else 0


# --- both -------------------------------------------------------------------------------------------------------------


def in_parallel(function, rows, at_once):
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(function, rows))


def sum_of(folder):
    text = json.dumps(files_below(folder), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def counted(digests):
    return f"{len(digests):,} jobs, {sum(len(each['files']) for each in digests.values()):,} files"


if __name__ == "__main__":
    sys.exit(main())
