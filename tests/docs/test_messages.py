"""The messages that docs/troubleshooting.md explains are those of the program."""

import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
SHORTEST = 6


def literals():
    """All text of the program's sources, one message behind the other: neighbouring string literals are one."""
    texts = []
    for folder in ("core", "stages", "pipeline"):
        for path in sorted((REPOSITORY / folder).rglob("*.[ch]pp")):
            code = path.read_text()
            for group in re.finditer(r'(?:"(?:[^"\\\n]|\\.)*"\s*)+', code):
                texts.append("".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', group[0])).replace('\\"', '"').replace("\\n", "\n"))
    return texts


def known(message, texts):
    """Whether every part between "…" stands in the sources, the long ones in one literal."""
    parts = [part.strip() for part in message.split("…")]
    wanted = [part for part in parts if len(part) >= SHORTEST]
    return bool(wanted) and all(any(part in text for text in texts) for part in wanted)


def headings():
    return re.findall(r"^### `(.*)`$", (REPOSITORY / "docs" / "troubleshooting.md").read_text(), flags=re.MULTILINE)


def test_the_page_explains_many_messages_and_no_invented_one():
    texts = literals()
    assert len(headings()) >= 25
    invented = [message for message in headings() if not known(message, texts)]
    assert not invented, invented


def test_an_invented_message_is_found_out():
    assert not known("the moon is in the way. …", literals())
