"""test_strict_load.py for every family."""

import pytest

from test_strict_load import FAMILIES, check

pytestmark = pytest.mark.long


def test_all_families(program, scratch):
    check([name for name in FAMILIES if "mxfp4" not in name], program, scratch)
