"""The changes that can be made to a C++ source: tokens in, places and replacements out.

The sources are formatted by clang-format, so a binary operator has a space on both sides, and the angle brackets of templates have none.
"""

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
      | (?P<directive>^[ \t]*\#(?:[^\n\\]|\\.|\\\n)*)
      | (?P<text>(?:u8|[uUL])?R"(?P<fence>[^(\s]*)\(.*?\)(?P=fence)"|(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)+')
      | (?P<number>\d(?:[\w.]|'\d|(?<=[eEpP])[+-])*)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<mark><=>|<<=|>>=|->\*|\.\.\.|::|->|\+\+|--|&&|\|\||[-+*/%&|^<>=!]=|<<|>>|[^\s\w])""",
    re.X | re.S | re.M)

SWAPS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+", "*": "+", "/": "*",
         "%": "*", "|": "&", "&": "|", "+=": "-=", "-=": "+=", "*=": "+=", "|=": "&=", "&=": "|="}
WORD_SWAPS = {"true": "false", "false": "true"}
CALL_SWAPS = {"min": "max", "max": "min", "any_of": "all_of", "all_of": "any_of", "lower_bound": "upper_bound", "upper_bound": "lower_bound"}
# Calls whose arguments are words for people, or that change only speed.
WORDS_ONLY = {"fail", "format", "format_to", "join", "reserve", "info", "warn", "debug", "trace", "error", "static_assert", "print", "println",
              "shrink_to_fit", "noexcept", "requires", "alignas", "quoted", "fail_usage", "RESHARD_EXPECT"}
# Their comparisons say an order: "less or equal" is none.
ORDERS = {"sort", "stable_sort"}
NO_EFFECT = {"reserve", "shrink_to_fit", "info", "debug", "trace", "static_assert", "madvise", "posix_fadvise",
             "RESHARD_EXPECT"}
JUMPS = {"continue", "break", "return"}


@dataclass(frozen=True)
class Token:
    kind: str
    text: str
    begin: int
    end: int


@dataclass(frozen=True)
class Change:
    begin: int
    end: int
    new: str
    what: str


def tokens_of(source):
    return [Token(m.lastgroup if m.lastgroup != "fence" else "text", m.group(), m.start(), m.end())
            for m in TOKEN.finditer(source) if m.lastgroup not in ("comment", "directive")]


def partners(tokens):
    """Index of the bracket that closes each one, and the other way round."""
    partner, open_ones = {}, []
    for i, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in "([{":
            open_ones.append(i)
        elif token.text in ")]}" and open_ones:
            j = open_ones.pop()
            partner[i], partner[j] = j, i
    return partner


class Finder:
    def __init__(self, source):
        self.source = source
        self.tokens = tokens_of(source)
        self.partner = partners(self.tokens)
        self.closed = self.closed_places()

    def text(self, i):
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def closed_places(self):
        """Tokens that a change would not matter in: words for people, hints of speed."""
        closed = set()
        for i, token in enumerate(self.tokens):
            if token.kind == "word" and token.text in WORDS_ONLY | ORDERS and self.text(i + 1) == "(" and i + 1 in self.partner:
                closed.update(range(i + 1, self.partner[i + 1] + 1))
        return closed

    def spaced(self, token):
        return self.source[token.begin - 1].isspace() and self.source[token.end:token.end + 1].isspace()

    def swap(self, i, new):
        token = self.tokens[i]
        return Change(token.begin, token.end, new, f"{token.text} -> {new}")

    def of_mark(self, i):
        token = self.tokens[i]
        if token.text in SWAPS and self.spaced(token) and self.text(i - 1) not in ("", "(", ",", "return", "="):
            if token.text in "&*" and self.tokens[i - 1].kind == "word" and self.text(i + 1) in ("const", ")", ","):
                return
            yield self.swap(i, SWAPS[token.text])
        elif token.text == "!":
            yield Change(token.begin, token.end, "", "! dropped")

    def of_number(self, i):
        token = self.tokens[i]
        match = re.fullmatch(r"(0|[1-9]\d*)([uUlL]*)", token.text.replace("'", ""))
        if not match or self.text(i - 1) == "<<" or self.text(i + 1) in ("<<", ">") or (self.text(i - 1) == "<" and not self.spaced(self.tokens[i - 1])):
            return
        value = int(match[1])
        yield self.swap(i, f"{1 - value if value < 2 else value + 1}{match[2]}")
        if value > 1:
            yield self.swap(i, f"{value - 1}{match[2]}")

    def of_word(self, i):
        token = self.tokens[i]
        if token.text in WORD_SWAPS and self.text(i - 1) != "noexcept":
            yield self.swap(i, WORD_SWAPS[token.text])
        if token.text in CALL_SWAPS and self.text(i - 1) == "::" and self.text(i + 1) in "(<":
            yield self.swap(i, CALL_SWAPS[token.text])
        if token.text == "if" and self.text(i + 1) == "(" and i + 1 in self.partner:
            yield from self.of_condition(i + 1, self.partner[i + 1])
        if token.text in JUMPS and self.text(i + 1) == ";" and self.starts_statement(i):
            yield Change(token.begin, token.end, "", f"{token.text} removed")
        if self.starts_statement(i):
            yield from self.of_statement(i)

    def of_condition(self, first, last):
        begin, end = self.tokens[first].end, self.tokens[last].begin
        inside = self.source[begin:end]
        depth_zero = [t.text for j, t in enumerate(self.tokens[first + 1:last], first + 1) if self.depth_is_zero(first, j)]
        if ";" in depth_zero:
            begin += inside.rindex(";") + 1
        elif "=" in depth_zero:
            return
        condition = self.source[begin:end].strip()
        yield Change(begin, end, f" !({condition})", "condition negated")
        yield Change(begin, end, f" (({condition}) || true)", "condition always true")
        yield Change(begin, end, f" (({condition}) && false)", "condition always false")

    def depth_is_zero(self, first, j):
        depth = 0
        for k in range(first + 1, j):
            depth += self.text(k) in ("(", "[", "{")
            depth -= self.text(k) in (")", "]", "}")
        return depth == 0

    def starts_statement(self, i):
        before = self.text(i - 1)
        if before in (";", "{", "}", "else", "do"):
            return True
        if before == ")" and i - 1 in self.partner:
            head = self.text(self.partner[i - 1] - 1)
            return head in ("if", "for", "while", "constexpr")
        return False

    def of_statement(self, i):
        """A call or an assignment that is a whole statement; declarations are none."""
        j = i
        while True:
            if self.tokens[j].kind != "word" or self.text(j) in JUMPS | NO_EFFECT | {"throw", "delete", "using", "co_return"}:
                return
            j += 1
            while self.text(j) in ("(", "[") and j in self.partner:
                j = self.partner[j] + 1
            if self.text(j) not in (".", "->", "::"):
                break
            j += 1
        closing = self.text(j)
        if closing == ";" and self.text(j - 1) == ")":
            yield self.removal(i, j)
        elif closing in ("=", "+=", "-=", "|=", "&=", "*="):
            end = j
            while self.text(end) not in (";", "}", ""):
                end = self.partner[end] + 1 if self.text(end) in ("(", "[", "{") and end in self.partner else end + 1
            if self.text(end) == ";":
                yield self.removal(i, end)

    def removal(self, first, last):
        """Removes a statement up to its semicolon, which stays."""
        return Change(self.tokens[first].begin, self.tokens[last].begin, "", "statement removed")

    def changes(self):
        result = []
        for i, token in enumerate(self.tokens):
            if i in self.closed or token.kind == "text":
                continue
            if token.kind == "mark":
                result += self.of_mark(i)
            elif token.kind == "number":
                result += self.of_number(i)
            elif token.kind == "word":
                result += self.of_word(i)
        return result


def changes_of(source):
    return Finder(source).changes()


def line_of(source, offset):
    return source.count("\n", 0, offset) + 1


def code_at(source, change):
    """The lines of the change as one, before and after: knows the place again when other lines have moved."""
    begin = source.rfind("\n", 0, change.begin) + 1
    end = source.find("\n", change.end)
    end = end if end >= 0 else len(source)
    before, after = source[begin:end], source[begin:change.begin] + change.new + source[change.end:end]
    return " ".join(before.split()), " ".join(after.split())


def apply(source, change):
    return source[:change.begin] + change.new + source[change.end:]
