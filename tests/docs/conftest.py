"""Prints, after all pages, each command block and whether it passes."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

PAGES = []


def pytest_terminal_summary(terminalreporter):
    blocks = [block for page in PAGES for block in page.blocks]
    if not blocks:
        return
    terminalreporter.section("blocks of the documentation")
    for block in blocks:
        result = f"not run: {block.reason}" if block.reason else block.result
        terminalreporter.line(f"{block.page}:{block.line:<5}{block.kind:<6}{block.seconds:6.1f} s  {block.first[:64]:<66}{result}")
    commands = [block for block in blocks if block.kind == "sh"]
    passed = [block for block in commands if block.result.startswith("passes")]
    excused = [block for block in commands if block.reason]
    terminalreporter.line(f"{len(passed)} of {len(commands)} command blocks pass, {len(excused)} are not run for a stated reason; "
                          f"{len(blocks) - len(commands)} blocks are files and output")
