"""Every message of stages/ and pipeline/ that ends a job says what to do."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
LITERALS = r'(?:"(?:[^"\\\n]|\\.)*"\s*)+'
FAILURE = re.compile(r"fail\(\s*ErrorKind::(\w+),\s*(" + LITERALS + ")")
# The first word of a sentence or clause that says what to do.
ADVICE = re.compile(
    r"(?:^|[.:;,}] |, or |; or |\. or )(?:then )?(add|check|choose|compare|convert|copy|correct|define|dequantise|declare|do not|download|drop|end|free|give|install|keep|"
    r"leave|load|look|lower|merge|move|name|perfetto opens|please|put|raise|remove|replace|reshard|restore|run|save|say|set|start|take|upgrade|use|wait|write|"
    r"`reshard|a path of your own)\b", re.IGNORECASE)


def messages():
    for folder in ("stages", "pipeline"):
        for path in sorted((REPOSITORY / folder).rglob("*.[ch]pp")):
            text = path.read_text()
            for found in FAILURE.finditer(text):
                said = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', found[2])).replace('\\"', '"')
                yield pytest.param(found[1], said, id=f"{path.relative_to(REPOSITORY)}:{text.count(chr(10), 0, found.start()) + 1}")


@pytest.mark.parametrize("kind, said", list(messages()))
def test_a_message_ends_with_what_to_do(kind, said):
    if said.endswith("{}") or said.endswith("{}."):
        return  # the advice is put in
    assert ADVICE.search(said), said


def test_there_are_messages():
    assert len(list(messages())) > 100
