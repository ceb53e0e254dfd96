"""docs/threat-model.md names tests and fuzz targets that are there, and every fuzz target."""

import re
from pathlib import Path

import pytest

from test_how_it_is_tested import is_there

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "threat-model.md").read_text()
TESTS = sorted(set(re.findall(r"`((?:[A-Z]\w+|test_\w+)\.(?:[A-Z]\w+|test_\w+))`", PAGE)))
TARGETS = {path.name.removesuffix("_fuzz.cpp") for path in (REPOSITORY / "tests" / "fuzz").glob("*_fuzz.cpp")}


@pytest.mark.parametrize("name", TESTS)
def test_a_test_that_is_named_is_there(name):
    assert is_there(name)


def test_every_parser_with_a_fuzz_target_is_on_the_page():
    table = PAGE.partition("| fuzz target |")[2].partition("\n\n")[0]
    named = {word for row in table.splitlines()[2:] for word in re.findall(r"`(\w+)`", row.rsplit("|", 2)[-2])}
    assert named == TARGETS and len(TESTS) > 30
