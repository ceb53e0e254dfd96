"""Says where two outcomes of a job differ: exit code, file and byte, or the path in the JSON."""

import json

from corpus_run import content_of

SHOWN = 6  # differences of one job
BLOCK = 1 << 20
ANY_RANKS = ("error", "warnings")  # of the JSON, what does not depend on the number of ranks


def differences(recorded, outcome, recorded_folder, target, same_ranks, memory=None):
    """Sentences, the first few. `recorded` has the members of Outcome; the folders are there where files were written."""
    found = [] if ended(recorded["exit"]) == ended(outcome.code) else [f"exit code {outcome.code}, recorded {recorded['exit']}"]
    found += file_differences(recorded["files"], outcome.files, recorded_folder, target, memory)
    found += said_differences(recorded["said"], outcome.said, same_ranks)
    more = len(found) - SHOWN
    return found[:SHOWN] + ([f"and {more} more"] if more > 0 else [])


def ended(code):
    """A signal as mpirun reports it."""
    return code if code >= 0 else 128 - code


def file_differences(recorded, found, recorded_folder, target, memory):
    lines = [f"{name}: not written" for name in sorted(set(recorded) - set(found))]
    lines += [f"{name}: written, but not recorded" for name in sorted(set(found) - set(recorded))]
    for name in sorted(set(recorded) & set(found)):
        if list(recorded[name]) != list(found[name]):
            sizes = "" if recorded[name][0] == found[name][0] else f", {found[name][0]} bytes, recorded {recorded[name][0]}"
            lines.append(f"{name}: {first_difference(recorded_folder / name, target / name, memory)}{sizes}")
    return lines


def first_difference(recorded, found, memory=None):
    old, new = content_of(recorded), content_of(found, memory)
    if found.suffix == ".json":
        try:
            places = list(json_differences(json.loads(old), json.loads(new)))
            if places:
                return places[0]
        except ValueError:
            pass
    return f"differs from byte {first_byte(old, new):,} on"


def first_byte(old, new):
    shared = min(len(old), len(new))
    for start in range(0, shared, BLOCK):
        left, right = old[start : start + BLOCK], new[start : start + BLOCK]
        if left[: len(right)] != right[: len(left)]:
            return start + next(at for at, (a, b) in enumerate(zip(left, right)) if a != b)
    return shared


def said_differences(recorded, found, same_ranks):
    if not same_ranks and isinstance(recorded, dict) and isinstance(found, dict):
        recorded, found = ({name: said.get(name) for name in ANY_RANKS} for said in (recorded, found))
    return [f"stdout {line}" for line in json_differences(recorded, found)]


def json_differences(old, new, at=""):
    """`path: found, recorded` of every leaf that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in [*old, *[name for name in new if name not in old]]:
            yield from json_differences(old.get(name, "(absent)"), new.get(name, "(absent)"), f"{at}.{name}")
        if list(old) != list(new) and set(old) == set(new):
            yield f"{at or '.'}: the order of its members"
    elif isinstance(old, list) and isinstance(new, list):
        for index, (left, right) in enumerate(zip(old, new)):
            yield from json_differences(left, right, f"{at}[{index}]")
        if len(old) != len(new):
            yield f"{at or '.'}: {len(new)} members, recorded {len(old)}"
    elif old != new or type(old) is not type(new):
        yield f"{at or '.'}: {shown(new)}, recorded {shown(old)}"


def shown(value):
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 160 else text[:157] + "..."
