"""The two tiers of the Python tests: the default, and what is marked long. tests/peers/README.md says which belongs where."""

import os
from fnmatch import fnmatchcase

import pytest


def is_named(item, mark):
    return any(item.callspec.id == name or fnmatchcase(item.callspec.id, name) for name in mark.args)


def strangers(items):
    """Names of `long_but` that no case of its test has: the case was renamed, and would go on in the long tier unseen."""
    cases = {}
    for item in items:
        mark = item.get_closest_marker("long_but")
        if mark:
            cases.setdefault((item.path, item.originalname, mark.args), []).append(item.callspec.id)
    return [f"{path.name}::{test}[{name}]" for (path, test, names), ids in cases.items() for name in names
            if name not in ids and not any(fnmatchcase(one, name) for one in ids)]


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config, items):
    for item in items:
        mark = item.get_closest_marker("long_but")
        if mark and not is_named(item, mark):
            item.add_marker(pytest.mark.long)
    one_case = any("::" in argument for argument in config.args)
    unknown = [] if one_case else strangers(items)
    if unknown:
        raise pytest.UsageError(f"long_but names cases that are not there: {', '.join(unknown)}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item):
    """Programs that record their refusals (tests/refusals) name the test."""
    os.environ["RESHARD_REFUSALS_OF"] = f"{item.path.stem}.{item.originalname}"
