"""The table and the record of a sweep."""

import json
from collections import defaultdict


def print_table(results):
    """Scenario and fault against functions: points that met their call, and "!" with those that failed."""
    rows, functions = defaultdict(lambda: defaultdict(list)), set()
    for result in results:
        if result.met:
            rows[result.point.what, result.point.fault][result.point.call.function].append(result)
            functions.add(result.point.call.function)
    names = sorted(functions)
    print(f"{'scenario':20} {'fault':15} " + " ".join(f"{name[:9]:>9}" for name in names) + f" {'all':>9}")
    for (what, fault), cells in rows.items():
        everything = [result for cell in cells.values() for result in cell]
        print(f"{what:20} {fault:15} " + " ".join(f"{shown(cells.get(name, [])):>9}" for name in names) + f" {shown(everything):>9}")


def shown(cell):
    failed = sum(1 for result in cell if result.problem)
    return f"{len(cell)}!{failed}" if failed else str(len(cell)) if cell else ""


def summary(results):
    """Counts per scenario, fault and function."""
    counts = defaultdict(lambda: {"points": 0, "failed": 0, "published": 0, "refused": 0, "by_hand": 0})
    for result in results:
        if not result.met:
            continue
        cell = counts[result.point.what, result.point.fault, result.point.call.function]
        cell["points"] += 1
        cell["failed"] += bool(result.problem)
        cell["published"] += result.published
        cell["refused"] += result.code != 0
        cell["by_hand"] += result.by_hand
    return [{"scenario": what, "fault": fault, "function": function} | cell for (what, fault, function), cell in sorted(counts.items())]


def write_results(path, results, seconds):
    failures = [{"command": one.point.command(), "function": one.point.call.function, "path": one.point.call.path, "problem": one.problem}
                for one in results if one.problem]
    not_met = sum(1 for one in results if not one.met)
    ranks = max((one.point.ranks for one in results), default=1)
    record = {"seconds": round(seconds), "ranks": ranks, "points": len(results) - not_met, "not_met": not_met, "failed": len(failures),
              "counts": summary(results), "failures": failures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
