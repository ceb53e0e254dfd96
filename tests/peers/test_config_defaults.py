"""What a config.json leaves out is what transformers' class takes: the args for Megatron are those of the config with everything written out.

[defaults] of the maps say it; this compares them with the classes, so that they cannot rot. test_config_defaults_all.py leaves out one member at a time.
"""

import pytest

from config_defaults import fault_without, map_of, members_of, small_config

MAP_OF = map_of()


@pytest.mark.long_but("deepseek_v3", "gemma3", "gpt_oss", "llama", "nemotron_h", "qwen3_moe", "qwen3_next")
@pytest.mark.parametrize("kind", list(MAP_OF))
def test_all_that_can_be_left_out(kind, program, scratch):
    config = small_config(kind)
    assert not fault_without(kind, config, members_of(config), MAP_OF[kind], scratch)
