#!/usr/bin/env python3
"""The table of all refusals and the test that produces each: refusals.md.

    refusals.py table RECORD…     writes it anew, from the sources, the tests' records (README.md) and the table that is there
    refusals.py untested          prints those that no test produces
"""

import argparse
import re
import sys
from functools import cache
from pathlib import Path

import sites
from reasons import NAMED_BY_HAND, REASONS

REPOSITORY = Path(__file__).parents[2]
TABLE = Path(__file__).parent / "refusals.md"
UNTESTED = "untested"

HEAD = """# Refusals

Every sentence with which the program refuses, and a test that produces it. `refusals.py` writes this page, and `test_refusals.py` compares it with
the sources and the tests ([README](README.md)). A sentence that is a part of others, such as a reason, is in the file that has the part.

{summary}
"""


# --- the tests ----------------------------------------------------------------------------------------------------


@cache
def tests():
    """All tests by their names (`Suite.Test`, `test_file.test_function`): whether they belong to the default tier."""
    found = {}
    folder = REPOSITORY / "tests"
    for path in folder.rglob("*.cpp"):
        for match in re.finditer(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\s*\)", path.read_text(), re.MULTILINE):
            found[f"{match[1]}.{match[2]}"] = True
    for path in folder.rglob("*.py"):
        text = path.read_text()
        long = re.search(r"^pytestmark = .*pytest\.mark\.long\b(?!_)", text, re.MULTILINE) is not None
        for match in re.finditer(r"^((?:@.*\n)*)def (test_\w+)\(", text, re.MULTILINE):
            found[f"{path.stem}.{match[2]}"] = not long and re.search(r"pytest\.mark\.long\b(?!_)", match[1]) is None
    return found


def name_of(recorded):
    """As in tests(), of a name in a record ("Formats/Damage.Bytes/7"), or ""."""
    if recorded in tests():
        return recorded
    suite, _, test = recorded.partition(".")
    names = [f"{part}.{test.partition('/')[0]}" for part in suite.split("/")]
    return next((name for name in names if name in tests()), "")


def rank(name):
    """The best test is one of C++, else a default one."""
    return name.startswith("test_"), not tests()[name], name


# --- what was recorded ---------------------------------------------------------------------------------------------


@cache
def source_of(path):
    """The path of a source in the repository, or ""."""
    parts = path.split("/")
    for at, part in enumerate(parts):
        if part in sites.FOLDERS and "tests" not in parts[:at]:
            name = "/".join(parts[at:])
            if (REPOSITORY / name).exists():
                return name
    return ""


def recorded_lines(paths):
    """(test, file, format, sentence) of each line."""
    for path in paths:
        for line in path.read_text(errors="replace").split("\n"):
            fields = line.split("\t")
            if len(fields) == 6:
                test, file, _, _, text, sentence = fields
                yield test, file, text, sentence


def producers(found, paths):
    """The tests that produced each site, by its key."""
    result = {key: set() for key in found}
    plain = {(file, re.sub(r"[\x00-\x1f\x7f]", " ", sentence).strip(" ")): site for (file, sentence), site in found.items()}
    without_format = {}  # what Error() was given: by file
    helped = {}  # what a function added its own words to: by the stem of its file
    for site in found.values():
        without_format.setdefault(site.file, []).append(site)
        for stem in site.refused_in:
            helped.setdefault(stem, []).append(site)
    everywhere = [site for site in found.values() if not site.helper]

    seen = set()
    for test, file, text, sentence in recorded_lines(paths):
        name = name_of(test)
        source = source_of(file)
        if not name or (name, source, text, sentence) in seen or (not source and "/tests/" in file):
            continue
        seen.add((name, source, text, sentence))
        site = plain.get((source, text.strip(" ")))
        if site is not None:
            result[site.key].add(name)
        candidates = helped.get(source.rpartition(".")[0], [])
        if not text:  # made by Error(), perhaps within a library, or read from another process
            candidates = candidates + (without_format.get(source, []) if source else []) + (everywhere if not source or source in RELAYS else [])
            candidates = candidates + [site for site in found.values() if site.helper and site.file.startswith(RELAYS.get(source, "-"))]
        for site in candidates:
            if name not in result[site.key] and site.is_in(sentence):
                result[site.key].add(name)
    return result


# What throws errors that another process or rank has made: the folder whose functions put sentences into those of others there.
RELAYS = {"core/containers/hdf5/child/child.cpp": "core/containers/hdf5/", "core/transport/comm.cpp": "-", "core/transport/shared_sight.cpp": "-"}


# --- the page -----------------------------------------------------------------------------------------------------


def cell(text):
    return re.sub(r"[\\|`<*_]", r"\\\g<0>", text).replace("\n", "\\n")


def text_in(cell_text):
    return re.sub(r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], cell_text)


def reason_of(site):
    return next((reason for reason, file, part in REASONS if file == site.file and part in site.sentence), "")


def named_by_hand(site):
    return next((test for test, file, part in NAMED_BY_HAND if file == site.file and part in site.sentence), "")


def rows_of(found, made, before):
    """(site, test or "", reason or "") in the order of the sources."""
    rows = []
    for key, site in found.items():
        names = set(made.get(key, ()))
        kept = before.get(key, "")
        test = kept if kept in tests() else min(names, key=rank, default="")
        test = test or named_by_hand(site)
        rows.append((site, test, "" if test else reason_of(site)))
    return rows


def page_of(rows):
    tested = sum(bool(test) for _, test, _ in rows)
    reasoned = sum(bool(reason) for _, _, reason in rows)
    lines = [HEAD.format(summary=f"{len(rows)} sentences: {tested} with a test, {reasoned} without one for the reason given, {len(rows) - tested - reasoned} untested.")]
    file = ""
    for site, test, reason in rows:
        if site.file != file:
            file = site.file
            lines += ["", f"## {file}", "", "| kind | sentence | test | why none |", "|---|---|---|---|"]
        lines.append(f"| {site.kind or '–'} | {cell(site.sentence)} | {test or ('–' if reason else UNTESTED)} | {reason} |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def read_page(text):
    """(file, sentence) → (test or "", reason) of a page."""
    rows = {}
    file = ""
    for line in text.split("\n"):
        if line.startswith("## "):
            file = line[3:]
        elif line.startswith("| ") and not line.startswith("| kind "):
            _, sentence, test, reason = [part.strip(" ") for part in re.split(r"(?<!\\)\|", line)[1:-1]]
            rows[file, text_in(sentence)] = ("" if test in ("–", UNTESTED) else test, reason)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["table", "untested"])
    parser.add_argument("records", nargs="*", type=Path)
    options = parser.parse_args()
    before = read_page(TABLE.read_text()) if TABLE.exists() else {}
    if options.what == "untested":
        for (file, sentence), (test, reason) in before.items():
            if not test and not reason:
                print(f"{file}: {sentence}")
        return
    found = sites.sites()
    made = producers(found, options.records)
    rows = rows_of(found, made, {key: test for key, (test, _) in before.items()})
    TABLE.write_text(page_of(rows))
    unknown = {test for _, test, _ in rows if test} - set(tests())
    if unknown:
        sys.exit(f"no such tests: {', '.join(sorted(unknown))}")


if __name__ == "__main__":
    main()
