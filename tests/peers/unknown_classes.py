"""Classes our program has never heard of, for torch_file_test.py."""

import collections
import copyreg
import dataclasses
import enum


class Colour(enum.Enum):
    RED = 1
    GREEN = "g"


class Mode(enum.IntFlag):
    READ = 1
    WRITE = 2


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def __eq__(self, other):
        return type(self) is type(other) and self.__dict__ == other.__dict__

    __hash__ = None


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __eq__(self, other):
        return (self.x, self.y) == (other.x, other.y)

    __hash__ = None


class WithKeywords:
    """Pickled by NEWOBJ_EX in protocol 4, by functools.partial in protocol 2."""

    def __new__(cls, a, *, b=0):
        self = super().__new__(cls)
        self.a, self.b = a, b
        return self

    def __getnewargs_ex__(self):
        return (self.a,), {"b": self.b}

    def __eq__(self, other):
        return (self.a, self.b) == (other.a, other.b)

    __hash__ = None


class Reduced:
    def __init__(self, *arguments):
        self.arguments = arguments
        self.state = None

    def __reduce__(self):
        return Reduced, self.arguments, {"state": self.state}

    def __setstate__(self, state):
        self.state = state["state"]

    def __eq__(self, other):
        return (self.arguments, self.state) == (other.arguments, other.state)

    __hash__ = None


class ListWithName(list):
    name = None


class DictWithName(dict):
    name = None


class Outer:
    class Inner:
        def __eq__(self, other):
            return type(self) is type(other) and self.__dict__ == other.__dict__

        __hash__ = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    number: int
    text: str


Point = collections.namedtuple("Point", "x y")


class BySetter:
    """Its state is set by a function, which protocol 2 writes as a call whose result is thrown away."""


def set_state(target, state):
    target.__dict__.update(state)


def reduce_by_setter(value):
    return BySetter, (), value.__dict__, None, None, set_state


copyreg.pickle(BySetter, reduce_by_setter)
