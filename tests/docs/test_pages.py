"""README, quick start and recipes, done: files are written, commands run, and what they print is what the page shows."""

import contextlib
import importlib.util
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

from blocks import COMMENT, FENCE, Block, read_page
from conftest import PAGES
from reader import REPOSITORY, Mismatch, Reader, fits

PROGRAM = os.environ.get("RESHARD_BIN")
MARKED = [path for path in (REPOSITORY / "docs").glob("*.md") if COMMENT.search(path.read_text())]
NAMES = sorted({"README.md", "docs/quick-start.md", "docs/troubleshooting.md"} |
               {str(path.relative_to(REPOSITORY)) for path in [*MARKED, *(REPOSITORY / "docs" / "recipes").glob("*.md")]})


@pytest.fixture
def scratch():
    folder = Path(tempfile.mkdtemp(prefix="reshard-docs-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_reader_gets_what_the_page_promises(name, scratch):
    assert PROGRAM, "RESHARD_BIN is not set: there is no program to run"
    page = read_page(REPOSITORY / name, name)
    PAGES.append(page)
    problems = [f"{name}:{block.line}: {problem}" for block in page.blocks if (problem := block.problem())]
    assert not problems, "\n".join(problems)
    missing = [module for module in ("numpy", "torch") if not importlib.util.find_spec(module)]
    if missing and any(block.kind == "python" and block.reason is None for block in page.blocks):
        pytest.skip(f"{sys.executable} has no {' and no '.join(missing)}, which the page's Python needs")
    with contextlib.closing(Reader(page, scratch, os.path.abspath(PROGRAM))) as reader:
        for block in page.blocks:
            if block.reason is None:
                reader.follow(block)


def test_every_page_of_recipes_is_in_the_list():
    assert len(NAMES) >= 8 and all((REPOSITORY / name).is_file() for name in NAMES)


# --- the test itself ------------------------------------------------------------------------------------------------


def page_of(scratch, text):
    (scratch / "page.md").write_text(text)
    return read_page(scratch / "page.md", "page.md")


def follow(scratch, text):
    page = page_of(scratch, text)
    assert not [block.problem() for block in page.blocks if block.problem()]
    with contextlib.closing(Reader(page, scratch, PROGRAM)) as reader:
        for block in page.blocks:
            reader.follow(block)
    return reader


@pytest.mark.parametrize("text, problem", [
    ("```\nls\n```\n", "kind ''"),
    ("```console\n$ ls\n```\n", "kind 'console'"),
    ("```toml\na = 1\n```\n", "no mark"),
    ("```sh\nsbatch job\n```\n", "Slurm"),
    ("<!-- test: not run: no -->\n```sh\nls\n```\n", "no reason"),
])
def test_unmarked_blocks_are_refused(scratch, text, problem):
    assert problem in page_of(scratch, text).blocks[0].problem()


def test_a_mark_above_no_block_is_refused(scratch):
    with pytest.raises(ValueError, match="stands above no block"):
        page_of(scratch, "<!-- test: exit=1 -->\n\nText\n\n```sh\nls\n```\n")


@pytest.mark.parametrize("text", [
    "```sh\nfalse\n```\n",
    "<!-- test: exit=1 -->\n```sh\ntrue\n```\n",
    "```sh\nfalse | true\n```\n",
    "```sh\necho one\n```\n```text\ntwo\n```\n",
    "```sh\nprintf 'one\\ntwo\\n'\n```\n```text\none\n```\n",
    "```text\none\n```\n",
    "```sh\nreshard inspect /nowhere\n```\n",
    "```python\nraise ValueError\n```\n",
    "```python\nprint(1)\n```\n```text\n2\n```\n",
])
def test_wrong_pages_fail(scratch, text):
    with pytest.raises(Mismatch):
        follow(scratch, text)


def test_paths_of_the_page_are_not_those_of_the_machine(scratch):
    reader = follow(scratch, "<!-- test: data=moe-hf-reference as /models/moe; root=/out -->\n\n"
                             "```sh\nls /models/moe > /out/list\ncat /out/list\npwd\n```\n```text\n…\nconfig.json\n…\n\n```\n")
    assert reader.placed("/models/moe/x /outer /a/out") == f"{reader.really('/models/moe/x')} /outer /a/out"


def test_the_python_of_a_page_is_one_session(scratch):
    follow(scratch, "```python\none = 1\n```\n```python\nprint(one)\n```\n```text\n1\n```\n")


def test_dots_stand_for_anything():
    assert fits("read … in … calls", "read    874 KiB in 12 calls") and not fits("read … calls", "written 12 calls")


def test_fences_and_comments_are_found():
    assert FENCE.search("```sh\nls\n```\n")[2] == "ls\n" and COMMENT.search("<!-- test: exit=3 -->")[1] == "exit=3"
    assert Block("p", 1, "sh", "# comment\n\nls -l\n").first == "ls -l"
