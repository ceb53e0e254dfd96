"""The long form of test_config_defaults.py: every member of every family's config left out by itself."""

import pytest

from config_defaults import fault_without, map_of, members_of, small_config

pytestmark = pytest.mark.long

MAP_OF = map_of()


@pytest.mark.parametrize("kind", list(MAP_OF))
def test_one_member_left_out(kind, program, scratch):
    config = small_config(kind)
    faults = [fault_without(kind, config, [key], MAP_OF[kind], scratch) for key in members_of(config)]
    assert not any(faults), [fault for fault in faults if fault]
