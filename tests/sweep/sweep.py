#!/usr/bin/env python3
"""Breaks one call at a time of those that a job makes for its files, and looks at what is left: the target is absent, the old one or the new one,
whole; nothing of other jobs has changed; the exit code is right; the same command again comes to the end that an undisturbed one comes to.

    sweep.py --all                                      every call, every fault, every scenario
    sweep.py --what resume --fault eio --call 57        one point; --keep leaves its folder
    sweep.py --seed 7 --count 300                       some points of all, as the tests do

RESHARD_BIN and RESHARD_SWEEP_SHIM name the program and the shim (build/dev/… when they are not set).
"""

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

REPOSITORY = Path(__file__).resolve().parents[2]
os.environ.setdefault("RESHARD_BIN", str(REPOSITORY / "build/dev/pipeline/reshard"))
os.environ.setdefault("RESHARD_SWEEP_SHIM", str(REPOSITORY / "build/dev/tests/pipeline/libsweep_shim.so"))

from faults import FAULTS, relevant_calls  # noqa: E402
from place import Place  # noqa: E402
from points import Point, try_point  # noqa: E402
from results import print_table, write_results  # noqa: E402
from scenarios import SCENARIOS, World  # noqa: E402


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", default="all", choices=[*SCENARIOS, "all"])
    parser.add_argument("--fault", default="all", choices=[*FAULTS, "all", "errors"], help="errors: all but kill and hold")
    parser.add_argument("--call", type=int, help="only this call")
    parser.add_argument("--every", type=int, default=1, help="only every so manieth point")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=300, help="so many points, chosen by the seed")
    parser.add_argument("--all", action="store_true", help="all points")
    parser.add_argument("--ranks", type=int, default=1, choices=[1, 2])
    parser.add_argument("--rank", type=int, default=0, help="the one whose call is broken")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="points at the same time")
    parser.add_argument("--scratch", help="where to work; else in memory or among the temporary files")
    parser.add_argument("--keep", action="store_true", help="leave the folders of failed points")
    parser.add_argument("--results", default=str(REPOSITORY / "build" / "sweep" / "results.json"))
    return parser.parse_args()


def scratch_folder(wanted):
    memory = "/dev/shm"
    base = wanted or (memory if os.access(memory, os.W_OK) else None)
    return Path(tempfile.mkdtemp(prefix="reshard-sweep-", dir=base))


def points_of(scenario, options, place):
    """One for each call and fault that can meet it."""
    points = []
    errors = [fault for fault in FAULTS if fault not in ("kill", "hold")]
    faults = {"all": [*FAULTS], "errors": errors}.get(options.fault, [options.fault])
    for watch_source in (False, True):
        place.watch_source = watch_source
        place.always = scenario.always
        calls = scenario.learn(place, options.rank)
        for fault in faults:
            if FAULTS[fault].in_source != watch_source:
                continue
            points += [Point(scenario.name, fault, call, options.ranks, options.rank) for call in relevant_calls(fault, calls)]
    return points


def chosen(points, options):
    if options.call is not None:
        return [point for point in points if point.call.number == options.call]
    if options.all or options.every > 1:
        return points[::options.every]
    return random.Random(options.seed).sample(points, min(options.count, len(points)))


def sweep(options, folder):
    world = World(folder)
    scenarios = {name: SCENARIOS[name](world) for name in (SCENARIOS if options.what == "all" else [options.what])}
    place = Place(folder / "first", folder / "source", options.ranks)
    points = []
    for scenario in scenarios.values():
        points += points_of(scenario, options, place)
    points = chosen(points, options)
    print(f"{len(points)} points", flush=True)
    waiting = [point for point in points if FAULTS[point.fault].hold_seconds]
    results = try_all([point for point in points if point not in waiting], scenarios, folder, options, options.jobs)
    results += try_all(waiting, scenarios, folder, options, 6 * options.jobs)  # they only wait
    assert world.source_is_unchanged(), "a source has changed"
    return results


def try_all(points, scenarios, folder, options, jobs):
    places = Queue()
    for number in range(jobs):
        places.put(Place(folder / f"place{number}", folder / "source", options.ranks))

    def one(point):
        place = places.get()
        result = try_point(point, scenarios[point.what], place)
        if result.problem:
            print(f"FAILED {point.command()}\n       {point.call.function} {point.call.path}: {result.problem}", flush=True)
            if options.keep:
                place.folder.rename(folder / f"failed-{point.what}-{point.fault}-{point.call.number}")
        places.put(place)
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, points))


def main():
    options = arguments()
    folder = scratch_folder(options.scratch)
    begin = time.monotonic()
    try:
        results = sweep(options, folder)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print_table(results)
    write_results(Path(options.results), results, time.monotonic() - begin)
    failed = sum(1 for result in results if result.problem)
    print(f"{len(results)} points, {failed} failed, {time.monotonic() - begin:.0f} s; {options.results}")
    if options.keep:
        print(f"left in {folder}")
    return 1 if failed or not results else 0


if __name__ == "__main__":
    sys.exit(main())
