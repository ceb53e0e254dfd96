"""The fenced blocks of a documentation page, and what the comments above them say about testing.

A comment `<!-- test: … -->` on the line above a block holds for that block; several words are separated by "; ". A comment with `data` or `root` holds
for the page.

    data=NAME as PATH       the page's PATH is a copy of tests/data/NAME; NAME.tar.xz:FOLDER is a folder of that archive
    root=PATH               paths below PATH are the page's own: it begins empty
    file=NAME               the block is written into the file NAME
    exit=N                  the commands end with exit code N
    slurm                   the commands need a Slurm cluster: programs that stand for it run them here; tests/slurm has a real one
    not run: REASON         nobody can run the block in a test, because …

Kinds: `sh` commands to run, `python` a cell of the page's one Python session, `toml` a file, `text` what the block above prints: "…" stands for anything,
a line "…" for any lines.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

FENCE = re.compile(r"^```(\S*)[^\n]*\n(.*?)^```[^\n]*$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!-- test: (.*?) -->")
WORDS = ("file", "exit", "slurm", "not run")
SHORTEST_REASON = 20


@dataclass
class Block:
    page: str
    line: int
    kind: str
    text: str
    file: str | None = None
    exit: int = 0
    slurm: bool = False
    reason: str | None = None
    result: str = "not reached"
    seconds: float = 0.0

    @property
    def first(self):
        lines = [line for line in self.text.splitlines() if line.strip() and not line.startswith("#")]
        return lines[0].strip() if lines else "(empty)"

    def take(self, words):
        for word in words:
            name, _, value = word.partition(":" if word.startswith("not run") else "=")
            if name not in WORDS:
                raise ValueError(f"{self.page}:{self.line}: '{word}' says nothing about a block; known: {', '.join(WORDS)}")
            if name == "not run":
                self.reason = value.strip()
            elif name == "slurm":
                self.slurm = True
            else:
                setattr(self, name, int(value) if name == "exit" else value)

    def problem(self):
        """Why this block cannot stand on the page as it is."""
        if self.reason is not None:
            return None if len(self.reason) >= SHORTEST_REASON else f"'{self.reason}' is no reason for not running a block"
        if self.kind not in ("sh", "python", "toml", "text"):
            return f"a block of kind '{self.kind}' has no mark: use sh, python, toml or text, or say in a comment why it is not run"
        if self.kind == "toml" and not self.file:
            return "a toml block has no mark <!-- test: file=NAME -->"
        if self.kind == "sh" and re.search(r"\b(sbatch|srun|scrontab|squeue|scancel)\b", self.text) and not self.slurm:
            return "commands of Slurm have no mark <!-- test: slurm -->"
        return None


@dataclass
class Page:
    name: str
    blocks: list = field(default_factory=list)
    data: list = field(default_factory=list)
    roots: set = field(default_factory=set)

    def declare(self, words):
        for word in words:
            name, _, value = word.partition("=")
            if name == "data":
                sample, _, path = value.partition(" as ")
                self.data.append((sample, path))
                value = path
            elif name != "root":
                raise ValueError(f"{self.name}: the comment '{word}' stands above no block")
            if not re.fullmatch(r"(/[\w.-]+)+", value):
                raise ValueError(f"{self.name}: '{word}': an absolute path is needed")
            self.roots.add(value)


def words_of(comment):
    return [comment] if comment.startswith("not run:") else [word.strip() for word in comment.split("; ")]


def read_page(path, name):
    text = Path(path).read_text()
    page = Page(name)
    taken = set()
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        block = Block(name, line, match[1], match[2])
        above = text[: match.start()].removesuffix("\n").rpartition("\n")[2]
        comment = COMMENT.fullmatch(above.strip())
        if comment and not comment[1].startswith(("data=", "root=")):
            block.take(words_of(comment[1]))
            taken.add(line - 1)
        page.blocks.append(block)
    fenced = [range(text.count("\n", 0, m.start()) + 1, text.count("\n", 0, m.end()) + 2) for m in FENCE.finditer(text)]
    for number, content in enumerate(text.splitlines(), 1):
        if number in taken or any(number in lines for lines in fenced):
            continue
        for comment in COMMENT.finditer(content):
            page.declare(words_of(comment[1]))
    return page
