"""Every link of the documentation leads somewhere: the file is there, and the heading in it."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md")), *sorted((REPOSITORY / "tests").rglob("README.md"))]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def prose(text):
    """Without code, in which brackets are no links."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))


def anchors(text):
    titles = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.replace("`", "").lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page):
    lost = []
    for pair in LINK.findall(prose(page.read_text())):
        link = pair[0] or pair[1]
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target.read_text())):
            lost.append(link)
    assert not lost, f"{page}: {lost}"


def test_every_page_of_docs_is_in_its_index():
    index = (REPOSITORY / "docs" / "README.md").read_text()
    listed = {(REPOSITORY / "docs" / link.partition("#")[0]).resolve() for pair in LINK.findall(index) for link in pair if link}
    missing = [str(path.relative_to(REPOSITORY)) for path in sorted((REPOSITORY / "docs").rglob("*.md"))
               if path.name != "README.md" and path.resolve() not in listed and path.parent.resolve() not in listed]
    assert not missing, f"docs/README.md does not name {missing}"


def test_every_recipe_is_in_the_index_by_question():
    recipes = REPOSITORY / "docs" / "recipes"
    listed = {link for pair in LINK.findall((recipes / "README.md").read_text()) for link in pair}
    missing = [path.name for path in sorted(recipes.glob("*.md")) if path.name not in listed | {"README.md"}]
    assert not missing, f"docs/recipes/README.md does not name {missing}"


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 120
