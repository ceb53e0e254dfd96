"""One point of the sweep: one fault of one call, what is found afterwards, and the command again."""

import time
from dataclasses import dataclass

from checkpoints import contents
from faults import FAULTS, KILLED, right_codes
from place import HANGS, Call, Fault


@dataclass
class Point:
    what: str
    fault: str
    call: Call
    ranks: int = 1
    rank: int = 0

    def command(self):
        ranks = f" --ranks {self.ranks} --rank {self.rank}" if self.ranks > 1 else ""
        return f"tests/sweep/sweep.py --what {self.what} --fault {self.fault} --call {self.call.number}{ranks}"


@dataclass
class Result:
    point: Point
    code: object = None
    met: bool = True  # False: the job came to its end without the call
    published: bool = False
    again: object = None
    by_hand: bool = False  # whether `reshard clean` was needed for what was left
    problem: str = ""


class Violation(Exception):
    pass


def expect(condition, problem):
    if not condition:
        raise Violation(problem)


def try_point(point, scenario, place):
    kind = FAULTS[point.fault]
    place.watch_source = kind.in_source
    place.always = scenario.always
    scenario.prepare(place)
    result = Result(point)
    settings = kind.settings if scenario.command()[0] != "clean" else []
    lasting = tuple(sorted(kind.calls)) if kind.lasting else ()
    outcome = place.run([*scenario.command(), *settings], Fault(kind.shim, point.call.number, point.rank, lasting, kind.hold_seconds))
    broken = place.calls()[1]
    result.code, result.met = outcome.code, bool(broken)
    try:
        if broken:
            point.call = broken[0]
            check_disturbed(point, scenario, place, result, outcome)
            check_again(scenario, place, result)
    except Violation as violation:
        said = outcome.said.strip().splitlines()
        result.problem = f"{violation} [exit {outcome.code}{': ' + said[-1][:300] if said else ''}]"
    return result


def check_disturbed(point, scenario, place, result, outcome):
    found = contents(place.out)
    result.published = scenario.is_done(found)
    expect(outcome.code != HANGS, "hangs")
    problem = scenario.problem_of_state(found)
    expect(not problem, problem)
    codes = right_codes(point.fault, point.call)
    if point.fault == "hold" and point.what == "clean":
        codes = codes | {0}  # it has no job file, so its limit is ten minutes
    expect(outcome.code in codes, f"exit code {outcome.code}, expected one of {sorted(codes)}")
    if outcome.code == 0:
        found = without_locks(found, scenario)
        left = sorted(set(found) - set(scenario.final)) + sorted(f"no {path}" for path in set(scenario.final) - set(found))
        expect(found == scenario.final or "warning: " in outcome.said, f"exit code 0, and no word of: {', '.join(left[:4])}")
    elif outcome.code != KILLED:
        expect("error: " in outcome.said, "it failed without a sentence")


def without_locks(found, scenario):
    """A lock file that no job holds may stay, as documented: the next run to this target takes it."""
    locks = {f".{name}.lock" for name in scenario.targets()}
    return {path: value for path, value in found.items() if path in scenario.final or path not in locks}


def check_again(scenario, place, result):
    """Without the fault. A finished target is refused then; what lies beside it goes with `clean`."""
    allowed = scenario.codes_of_again(contents(place.out))
    outcome = place.run(scenario.again())
    for _ in range(20):
        if outcome.code in allowed or place.ranks == 1 or "another job" not in outcome.said:
            break
        time.sleep(0.2)  # ranks of the run before are still on their way out
        outcome = place.run(scenario.again())
    result.again = outcome.code
    expect(outcome.code in allowed, f"again: exit code {outcome.code}, expected {sorted(allowed)}: {outcome.said.strip()[-300:]}")
    found = without_locks(contents(place.out), scenario)
    if outcome.code != 0 and found != scenario.final:
        outcome = place.run(scenario.clean())
        expect(outcome.code == 0, f"clean: exit code {outcome.code}: {outcome.said.strip()[-300:]}")
        found, result.by_hand = without_locks(contents(place.out), scenario), True
    left = sorted(set(found) ^ set(scenario.final)) or sorted(path for path in found if found[path] != scenario.final[path])
    expect(not left, f"again: is not as without the fault: {', '.join(left[:4])}")
