#!/usr/bin/env python3
"""Makes the sources of the site: the pages of docs/, a contents list by section, and a page for each file or folder outside docs/ that they link to.

    stage.py FOLDER
"""

import posixpath
import re
import shutil
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DOCS = REPOSITORY / "docs"
CODE = re.compile(r"(^```.*?^```$|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
LANGUAGES = {".toml": "toml", ".sh": "bash", ".sbatch": "bash", ".py": "python"}
SECTIONS = {
    "Start": ["quick-start", "installing", "commands", "python", "job-spec", "running-on-slurm", "gpu"],
    "Recipes": ["recipes/*"],
    "Operate": ["nightly", "while-a-job-runs", "interrupted-runs", "troubleshooting", "digest", "layout-pictures", "python-reader"],
    "What to expect": ["guarantees", "limits", "comparison", "measurements", "pytorch-writers", "scaling", "threat-model", "glossary"],
    "Models": ["model-families", "adding-a-model", "model-maps", "megatron-args", "peers", "cards/*"],
    "Formats": ["formats/*"],
    "Development": ["contributing", "architecture", "invariants", "how-it-is-tested", "releasing", "decisions/*"],
}


def contents(staged):
    """The hidden contents lists of the first page; an Error where a page of docs/ is in no section."""
    text, listed = "", set()
    for title, entries in SECTIONS.items():
        pages = []
        for entry in entries:
            found = sorted(staged.glob(entry + ".md"), key=lambda page: (page.name != "README.md", page.name))
            if not found:
                sys.exit(f"stage.py: {title} lists {entry}, and docs/ has no such page: correct SECTIONS")
            pages += [page.relative_to(staged).with_suffix("").as_posix() for page in found]
        listed |= set(pages)
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(pages) + "\n```\n"
    left = sorted({page.relative_to(staged).with_suffix("").as_posix() for page in staged.rglob("*.md")} - listed - {"index"})
    if left:
        sys.exit(f"stage.py: in no section of the site: {', '.join(left)}. Add each to SECTIONS")
    return text


def page_of(path):
    """The text of a file of the repository, or the names in a folder, as a page. Its own links are dropped: they lead out of the site."""
    place = REPOSITORY / path
    if place.is_dir():
        readme = place / "README.md"
        text = readme.read_text() if readme.exists() else f"# {path}\n"
        names = [f"- `{one.name}{'/' if one.is_dir() else ''}`" for one in sorted(place.iterdir()) if not one.name.startswith((".", "__"))]
        text += "\n## Files\n\n" + "\n".join(names) + "\n"
    else:
        text = place.read_text()
        if place.suffix != ".md":
            return f"# {path}\n\n``````{LANGUAGES.get(place.suffix, 'none')}\n{text}\n``````\n"
    return re.sub(r"\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text)


def rewritten(text, page, outside):
    """Links of a page to folders and to files outside docs/ lead to pages of the site; collects those files in outside."""
    def moved(link):
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[1]))
        place, anchor = REPOSITORY / target, link[2] or ""
        if not place.exists():
            sys.exit(f"stage.py: docs/{page} links to {target}, which does not exist")
        if target == "docs/README.md":
            inside = "index.md"
        elif target.startswith("docs/"):
            inside = target[5:] + ("/README.md" if (place / "README.md").exists() else "")
            if place.is_dir() and inside == target[5:]:
                outside.add(target)
                inside = f"repository/{target}.md"
        else:
            outside.add(target)
            inside = f"repository/{target}.md"
        return f"]({posixpath.relpath(inside, posixpath.dirname(page) or '.')}{anchor})"

    text = re.sub(r"\[[\w./-]+\.md\]\(", "[](", text)  # a link whose text is the file's name gets the page's title
    return "".join(piece if at % 2 else LINK.sub(moved, piece) for at, piece in enumerate(CODE.split(text)))


def main():
    staged = Path(sys.argv[1])
    shutil.rmtree(staged, ignore_errors=True)
    shutil.copytree(DOCS, staged)
    outside = set()
    for page in sorted(staged.rglob("*.md")):
        page.write_text(rewritten(page.read_text(), page.relative_to(staged).as_posix(), outside))
    (staged / "README.md").rename(staged / "index.md")
    with open(staged / "index.md", "a") as index:
        index.write(contents(staged))
    for path in sorted(outside):
        page = staged / "repository" / f"{path}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text("---\norphan: true\n---\n" + page_of(path))


main()
