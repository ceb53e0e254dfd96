"""The refusals in the program's sources: each sentence with the file where it is, found without a compiler.

A refusal is what makes an Error: fail(kind, "sentence", …), Error(kind, "sentence"), a call of a function that is declared [[noreturn]] and puts a
sentence into its own ("refuse("the list has no end")"), and the few that COLLECTED names. What ends in exit code 70 is a bug and no refusal.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FOLDERS = ("core", "stages", "pipeline")

# Functions and types that hold a sentence until another file refuses with it: file → (their names, that file). RETURNED: what the file returns.
RETURNED = "return"
COLLECTED = {
    "core/base/text/key_table.cpp": (["expected", RETURNED], "pipeline/job/job_spec.cpp"),
    "core/formats/foreign.cpp": ([RETURNED], "core/formats/format.cpp"),
    "core/formats/megatron/headers/classify.cpp": (["add"], "core/formats/megatron/headers/classify.cpp"),
    "core/layout/pipeline_chunks.cpp": (["Misfit"], "core/layout/pipeline_chunks.cpp"),
    "core/quant/scheme.cpp": ([RETURNED], "core/plan/views/source_view.cpp"),
    "core/transport/nccl/rank_facts.cpp": ([RETURNED], "core/transport/nccl/nccl_transport.cpp"),
    "pipeline/job/job_spec.cpp": (["add", "push_back"], "pipeline/job/job_spec.cpp"),
    "stages/write/leftovers.cpp": ([RETURNED], "stages/write/publish.cpp"),
}
# [[noreturn]] functions that do not refuse, and those whose callers add only what to do.
NO_REFUSALS = {"fail", "broken", "abort", "end_with", "be_child", "report", "throw_error_of"}
ADVISED = {"refuse_making", "refuse_renaming", "refuse_tracker"}

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<raw>R"(?P<mark>[^(\s]*)\((?P<text>.*?)\)(?P=mark)")|(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<char>(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)*')|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<number>[0-9][0-9A-Za-z_'.]*)|(?P<sign>::|->|\[\[|\]\]|\S)""",
    re.DOTALL | re.VERBOSE)
ESCAPES = {"n": "\n", "t": "\t", "0": "\0"}
FIELD = re.compile(r"\{\{|\}\}|\{[^{}]*\}")


@dataclass
class Token:
    kind: str  # string, word, sign, number, char
    text: str


def tokens(code):
    """Without comments; neighbouring string literals are one."""
    found = []
    for match in TOKEN.finditer(code):
        if match["comment"] is not None:
            continue
        kind = match.lastgroup
        text = match[0]
        if match["raw"] is not None:
            kind, text = "string", match["text"]
        elif kind == "string":
            text = re.sub(r"\\(.)", lambda escape: ESCAPES.get(escape[1], escape[1]), text[1:-1])
        if kind == "string" and found and found[-1].kind == "string":
            found[-1].text += text
        else:
            found.append(Token(kind, text))
    return found


def group_at(code, at):
    """The tokens between the bracket at `at` and the one that closes it."""
    depth = 0
    for end in range(at, len(code)):
        if code[end].kind == "sign":
            depth += sum(each in "([{" for each in code[end].text) - sum(each in ")]}" for each in code[end].text)
            if depth == 0:
                return code[at + 1:end]
    return code[at + 1:]


def fixed_parts(sentence):
    """What stands between the fields of a format."""
    parts = [""]
    at = 0
    for match in FIELD.finditer(sentence):
        parts[-1] += sentence[at:match.start()]
        at = match.end()
        if match[0] in ("{{", "}}"):
            parts[-1] += match[0][0]
        else:
            parts.append("")
    parts[-1] += sentence[at:]
    return parts


def words_in(sentence):
    return len(re.findall(r"[A-Za-z]{2,}", " ".join(fixed_parts(sentence))))


@dataclass
class Site:
    file: str
    sentence: str
    kind: str  # of ErrorKind, or "" where a caller chooses
    helper: str = ""  # the function that puts the sentence into its own
    refused_in: tuple = ()  # the files of that function
    pattern: re.Pattern = field(default=None, repr=False)
    longest: str = field(default="", repr=False)

    def __post_init__(self):
        parts = [re.sub(r"[\x00-\x1f\x7f]", " ", part) for part in fixed_parts(self.sentence)]
        self.longest = max(parts, key=len)
        self.pattern = re.compile(".*?".join(map(re.escape, parts)))

    @property
    def key(self):
        return self.file, self.sentence

    def is_in(self, text):
        return self.longest in text and self.pattern.search(text) is not None


def kind_in(group):
    kinds = [group[i + 2].text for i in range(len(group) - 2) if group[i].text == "ErrorKind" and group[i + 1].text == "::"]
    return kinds[0] if kinds else ""


def sentence_in(group):
    return next((token.text for token in group if token.kind == "string"), "")


def is_error_of_a_kind(code, at):
    """( or { in front of ErrorKind::…, and a sentence or fmt::format(sentence) behind the comma."""
    if code[at].text not in ("(", "{") or [token.text for token in code[at + 1:at + 3]] != ["ErrorKind", "::"]:
        return False
    behind = code[at + 5:at + 10]
    if not behind or code[at + 4].text != ",":
        return False
    return behind[0].kind == "string" or [token.text for token in behind[:4]] == ["fmt", "::", "format", "("]


def helpers_of(codes):
    """Names of functions that are declared [[noreturn]]: in which files."""
    helpers = {}
    for file, code in codes.items():
        for at, token in enumerate(code):
            if token.text == "noreturn" and token.kind == "word":
                name = next(code[i].text for i in range(at + 1, len(code) - 1)
                            if code[i].kind == "word" and code[i + 1].text == "(" and code[i - 1].text in ("void", "::", "]]"))
                if name not in NO_REFUSALS | ADVISED:
                    helpers.setdefault(name, set()).add(file)
    return helpers


def is_seen(declared, file):
    """Whether a file can call what another declares: its own, or one of a header of its folder, of those above and beside it, or of core/base."""
    if declared == file:
        return True
    folders = declared.split("/")[:-1]
    around = folders[:-1] if len(folders) > 2 else folders
    return declared.endswith(".hpp") and (folders[:2] == ["core", "base"] or file.startswith("/".join(around) + "/"))


def without_first(group):
    """The arguments behind the first."""
    depth = 0
    for at, token in enumerate(group):
        if token.kind == "sign":
            depth += sum(each in "([{" for each in token.text) - sum(each in ")]}" for each in token.text)
            if depth == 0 and token.text == ",":
                return group[at + 1:]
    return []


def read_sources(root=REPOSITORY):
    return {path.relative_to(root).as_posix(): tokens(path.read_text())
            for folder in FOLDERS for path in sorted((root / folder).rglob("*")) if path.suffix in (".cpp", ".hpp")}


def returned(code):
    """The tokens of each return statement."""
    for at, token in enumerate(code):
        if token.text == "return" and token.kind == "word":
            end = next((i for i in range(at, len(code)) if code[i].text == ";"), len(code))
            yield code[at + 1:end]


def sites_of(codes):
    """Every refusal of the sources, by its key."""
    helpers = helpers_of(codes)
    found = {}

    def add(file, group, helper="", refused_in=()):
        sentence, kind = sentence_in(group), kind_in(group)
        least = 2
        if helper == "fail_errno":
            sentence = sentence_in(without_first(group))
            sentence, least = sentence and f"{{}}: {sentence} failed: {{}}", 2
        elif helper == RETURNED:
            least = 4
        if kind != "internal" and words_in(sentence) >= least:
            sentence = sentence.strip(" ")
            found.setdefault((file, sentence), Site(file, sentence, kind, helper, tuple(refused_in)))

    for file, code in codes.items():
        collected, refused_in = COLLECTED.get(file, ((), ""))
        for at, token in enumerate(code[:-1]):
            before = code[at - 1].text if at > 0 else ""
            if token.kind == "sign" and before != "fail" and is_error_of_a_kind(code, at):
                add(file, group_at(code, at))
            if token.kind != "word" or before == "void" or code[at + 1].text not in ("(", "{"):
                continue
            declared = [each for each in helpers.get(token.text, ()) if is_seen(each, file)]
            if token.text in ("fail", "Error"):
                add(file, group_at(code, at + 1))
            elif declared:
                add(file, group_at(code, at + 1), token.text, {path.rpartition(".")[0] for path in declared})
            elif token.text in collected:
                add(file, group_at(code, at + 1), token.text, [refused_in.rpartition(".")[0]])
        if RETURNED in collected:
            for group in returned(code):
                add(file, group, RETURNED, [refused_in.rpartition(".")[0]])
    return found


def sites(root=REPOSITORY):
    return sites_of(read_sources(root))
