"""The program's errors as exceptions. Each kind is an exit code of the program (docs/troubleshooting.md)."""

from __future__ import annotations


class ReshardError(Exception):
    """`sentence`: where, what disagrees, what to do. `code`: the exit code of the program."""

    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence, code)
        self.sentence = sentence
        self.code = code

    def __str__(self) -> str:
        return f"{self.sentence} (exit code {self.code})"


class JobError(ReshardError):
    """2: the job or an argument is wrong."""


class SourceError(ReshardError):
    """3: the source is damaged, incomplete or of an unsupported form."""


class TargetError(ReshardError):
    """4: the target exists, is locked, or is another program's."""


class InputOutputError(ReshardError):
    """5: a read or a write failed, or the source changed during the run."""


class ResourceError(ReshardError):
    """6: not enough disk, memory or ranks."""


class SelfCheckError(ReshardError):
    """7: the result did not verify. Nothing was published."""


class StallError(ReshardError):
    """8: a rank stalled or was lost."""


class InternalError(ReshardError):
    """70: a bug of the program."""


class InterruptedError(ReshardError):
    """75: stopped by a signal. The same call resumes there."""


_KINDS: dict[int, type[ReshardError]] = {
    2: JobError,
    3: SourceError,
    4: TargetError,
    5: InputOutputError,
    6: ResourceError,
    7: SelfCheckError,
    8: StallError,
    70: InternalError,
    75: InterruptedError,
}


def error_of(sentence: str, code: int) -> ReshardError:
    return _KINDS.get(code, ReshardError)(sentence, code)
