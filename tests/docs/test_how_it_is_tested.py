"""docs/how-it-is-tested.md is what its script makes of the recorded results, and the tests that it names are there."""

import json
import re
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY / "scripts"))

import how_it_is_tested as page  # noqa: E402
from how_it_is_tested_promises import PROMISES  # noqa: E402

NAMED = sorted({test for _, _, tests in PROMISES for test in tests})


def test_the_page_is_what_the_script_makes():
    assert page.PAGE.read_text() == page.page_of(json.loads(page.RECORD.read_text())), "run scripts/how_it_is_tested.py page"


def is_there(name):
    if (REPOSITORY / name).is_dir() and "/" in name:
        return True
    first, _, second = name.partition(".")
    python = [path.read_text() for path in (REPOSITORY / "tests").rglob(f"{first}.py")]
    if python:
        return not second or any(f"def {second}(" in text for text in python)
    macro = re.compile(rf"TEST(_F|_P)?\({first}, {second}\)")
    return any(macro.search(path.read_text()) for path in (REPOSITORY / "tests").rglob("*.cpp"))


@pytest.mark.parametrize("name", NAMED)
def test_a_test_that_is_named_is_there(name):
    assert is_there(name)


@pytest.mark.parametrize("name", ["test_faults.test_that_nobody_wrote", "Capture.Nothing", "test_nowhere", "tests/nowhere"])
def test_a_test_that_is_not_there_would_be_noticed(name):
    assert not is_there(name)


def is_long(name):
    """Whether all cases of a Python test are marked long."""
    first, _, second = name.partition(".")
    for text in [path.read_text() for path in (REPOSITORY / "tests").rglob(f"{first}.py")]:
        if re.search(r"^pytestmark = .*pytest\.mark\.long\b", text, re.MULTILINE):
            return True
        if second and re.search(rf"^@pytest\.mark\.long\n(@.*\n)*def {second}\(", text, re.MULTILINE):
            return True
    return False


@pytest.mark.parametrize("promise, tests", [(promise, tests) for promise, _, tests in PROMISES], ids=[promise[:40] for promise, *_ in PROMISES])
def test_every_promise_is_guarded_by_default(promise, tests):
    assert not all(map(is_long, tests)), f"scripts/test.sh without --all would not notice when this breaks: {promise}"


def test_what_is_long_is_known():
    assert is_long("test_random_layouts.test_there_and_back") and is_long("test_adding_a_model.test_every_mistake_has_its_sentence")
    assert not is_long("test_families.test_there_and_back_changes_nothing")


JUNIT = """<testsuite><testcase name="peers.test_a" status="run" time="2.6">
<system-out>....\n12 passed in 2.5s</system-out></testcase>
<testcase name="b_test.np2" status="fail" time="1">
<system-out>[  PASSED  ] 3 tests.\n[  PASSED  ] [m3 tests.</system-out></testcase></testsuite>"""


def test_counts_come_from_ctest_pytest_and_googletest(tmp_path):
    (tmp_path / "tests.xml").write_text(JUNIT)
    kept = page.kept_of(page.tests_of(tmp_path / "tests.xml", {"peers.test_a": "peers", "b_test.np2": "mpi"}))
    assert kept["labels"]["peers"] == {"programs": 1, "cases": 12, "failed": 0, "seconds": 3}
    assert kept["labels"]["mpi"] == {"programs": 1, "cases": 3, "failed": 1, "seconds": 1}
    assert kept["cases"] == {"peers.test_a": 12}


def test_runs_of_a_fuzzer_add_up():
    runs = [{"target": "json", "executions": 5, "seconds": 1, "findings": 0}, {"target": "json", "executions": 7, "seconds": 2, "findings": 1}]
    assert page.fuzz_of(runs) == {"json": {"executions": 12, "seconds": 3, "findings": 1}}
