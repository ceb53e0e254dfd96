"""refusals.md has each refusal of the sources, none that is gone, and names tests that exist."""

import pytest
import refusals
import sites
from reasons import NAMED_BY_HAND, REASONS

MOST_UNTESTED = 0  # each refusal has a test, or a reason


@pytest.fixture(scope="module")
def found():
    return sites.sites()


@pytest.fixture(scope="module")
def page():
    return refusals.read_page(refusals.TABLE.read_text())


def shown(keys):
    return "\n".join(f"{file}: {sentence}" for file, sentence in sorted(keys))


def test_the_table_has_the_refusals_of_the_sources(found, page):
    assert not found.keys() - page.keys(), "not in refusals.md, run refusals.py table (README.md):\n" + shown(found.keys() - page.keys())
    assert not page.keys() - found.keys(), "in refusals.md, but no longer in the sources:\n" + shown(page.keys() - found.keys())


def test_the_table_names_tests_that_exist(page):
    assert not {test for test, _ in page.values() if test} - refusals.tests().keys()


def test_untested_refusals_do_not_become_more(page):
    untested = [key for key, (test, reason) in page.items() if not test and not reason]
    assert len(untested) <= MOST_UNTESTED, "a new refusal needs a test:\n" + shown(untested)
    assert len(untested) == MOST_UNTESTED, "fewer than MOST_UNTESTED: lower it"


def test_the_page_is_what_the_script_makes(found, page):
    assert refusals.page_of(refusals.rows_of(found, {}, {key: test for key, (test, _) in page.items()})) == refusals.TABLE.read_text()


@pytest.mark.parametrize("named", [each[1:] for each in REASONS + NAMED_BY_HAND], ids=lambda named: named[0])
def test_each_reason_is_of_a_refusal(found, named):
    file, part = named
    assert any(site.file == file and part in site.sentence for site in found.values())


CODE = r'''
// fail(ErrorKind::source, "a comment refuses nothing");
[[noreturn]] void wrong(std::string_view why) { fail(ErrorKind::source, "{}: {}", place, why); }
void one(int a) {
  if (a < 0) fail(ErrorKind::usage, "{}: \"a\" is {}, "
                  "below zero.", place, f(a, "other"));
  if (a > 9) wrong(fmt::format("{} is more than {}", a, 9));
  fail(ErrorKind::internal, "{}: cannot happen at all", a);
  throw Error(ErrorKind::io, fmt::format("the disk says {}", a));
}
Error two() { return {ErrorKind::resources, "there is no memory"}; }
'''


def test_sentences_are_found_in_code():
    made = sites.sites_of({"core/a.cpp": sites.tokens(CODE)})
    assert [(site.sentence, site.kind, site.helper) for site in made.values()] == [
        ('{}: "a" is {}, below zero.', "usage", ""), ("{} is more than {}", "", "wrong"), ("the disk says {}", "io", ""), ("there is no memory", "resources", "")]


def test_records_lead_to_sentences(tmp_path, monkeypatch):
    found = sites.sites_of({"core/a.cpp": sites.tokens(CODE)})
    monkeypatch.setattr(refusals, "source_of", lambda path: path[3:] if path.startswith("/x/") else "")
    monkeypatch.setattr(refusals, "name_of", lambda name: name)
    (tmp_path / "a.txt").write_text("A.One\t/x/core/a.cpp\t5\t2\t{}: \"a\" is {}, below zero.\tp: \"a\" is 7, below zero.\n"
                                    "A.Two\t/x/core/a.cpp\t3\t3\t{}: {}\tp: 10 is more than 9\n"
                                    "A.Three\t/usr/include/c++/optional\t9\t5\t\tthe disk says 5\n")
    made = refusals.producers(found, [tmp_path / "a.txt"])
    assert {key[1]: names for key, names in made.items()} == {
        '{}: "a" is {}, below zero.': {"A.One"}, "{} is more than {}": {"A.Two"}, "the disk says {}": {"A.Three"}, "there is no memory": set()}


def test_a_page_is_read_as_it_was_written():
    site = sites.Site("core/a.cpp", "a | b\\c `d` {}*_<x>\nend", "io")
    text = refusals.page_of([(site, "", "")])
    assert refusals.read_page(text) == {site.key: ("", "")}
