#!/usr/bin/env python3
"""Writes a card from what scripts/make_card.sh recorded: scripts/write_card.py RECORDS CARD.md. Exit code 1: the files are not the same."""

import json
import sys
from pathlib import Path


def lines(path):
    return path.read_text().removesuffix("\n").split("\n")


def size(count):
    return f"{count / 2**30:.2f} GiB" if count >= 2**28 else f"{count / 2**20:.1f} MiB"


def hashes(path):
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines(path))}


def step_rows(records, total):
    rows, good = [], True
    for path in sorted(records.glob("*.step")):
        form, settings, code, seconds, count = (lines(path) + [""] * 5)[:5]
        layout = " ".join(word.removeprefix("target.layout.") for word in settings.split() if word.startswith("target.layout."))
        report = json.loads((records / f"{path.stem}.json").read_text() or "{}")
        if code != "0":
            rows.append(f"| {path.stem} | `{form}` | {layout} | refused: {report.get('error', 'no reason given')} | | | |")
            continue
        run = report["run"]
        found = run["total_digest"]
        good = good and found == total
        rows.append(
            f"| {path.stem} | `{form}` | {layout} | `{found}`{'' if found == total else ' **differs**'} | {size(int(count))} | {seconds} s | {size(run['peak_memory_bytes'])} |")
    return rows, good


def main():
    records, card = Path(sys.argv[1]), Path(sys.argv[2])
    name, revision, weights, ranks, day, words, made_by = lines(records / "facts")
    version, kernel, processor, cores, memory, files = lines(records / "hardware")
    digest = json.loads((records / "digest.json").read_text())
    before, after = hashes(records / "before"), hashes(records / "after")
    rows, same_digests = step_rows(records, digest["total"])
    equal = sum(after.get(file) == sha for file, sha in before.items())
    same = equal == len(before) == len(after)
    text = [f"# {name}", "", f"{equal} of {len(before)} files came back as the same bytes" + ("." if same else ", and not all are: see below."), ""]
    text += ["| | |", "|---|---|", f"| weights | {weights} |", f"| revision | {revision} |", f"| map | `{digest['map']}` |",
             f"| tensors | {len(digest['tensors'])} logical ones, {size(digest['bytes'])} |", f"| digest | `{digest['total']}` |", f"| program | {version} |",
             f"| hardware | {processor}, {cores} cores, {memory} GiB of memory, {files}; {kernel} |", f"| ranks | {ranks} |", f"| day | {day} |", ""]
    text += ["## The way", "", "Each checkpoint was made of the one before, and read back from the device. The digest is that of the model in its files. The last step had config, index and the other files beside "
             "the weights as `target.reference`.", "",
             "| step | format | layout | digest | size | time, with reading back | peak memory of a rank |", "|---|---|---|---|---|---|---|", *rows, ""]
    text += ["## Files", "", "SHA-256 of each file before and after, by `sha256sum`.", "", "| file | before | after |", "|---|---|---|"]
    for file in sorted({*before, *after}):
        one, other = before.get(file), after.get(file)
        text.append(f"| `{file}` | `{one or 'not there'}` | {'the same' if one == other else f'`{other}`' if other else '**not there**'} |")
    text += ["", "## Command", "", "<!-- test: not run: it takes the complete model, and minutes -->", "```sh"]
    text += [*([made_by] if made_by else []), f"scripts/make_card.sh {words}", "```", ""]
    card.write_text("\n".join(text))
    print(f"{card}: {equal} of {len(before)} files are the same" + ("" if same_digests else ", and digests differ"))
    return 0 if same and same_digests else 1


if __name__ == "__main__":
    sys.exit(main())
