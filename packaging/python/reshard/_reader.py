"""The process that reads the tensors of one checkpoint (docs/python-reader.md): started once, and again after a fork or when it was ended from outside."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import tempfile
import threading
import weakref
from collections.abc import Sequence
from typing import IO, Any

from ._errors import InputOutputError, InterruptedError, JobError, ReshardError, error_of
from ._program import error_of_end, start

LENGTH_BYTES = 4
SECONDS_TO_END = 5.0


class _Process:
    """A started reader and this process's end of its socket."""

    def __init__(self, words: Sequence[str]) -> None:
        self.said: IO[bytes] = tempfile.TemporaryFile(prefix="reshard-")
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.child: subprocess.Popen[bytes] = start(["extract", *words, "--serve"], theirs, self.said)
        except BaseException:
            self.socket.close()
            self.said.close()
            raise

    def answer(self) -> tuple[dict[str, Any], mmap.mmap | None]:
        """The next document, and the bytes that came with it. EOFError: there is none."""
        head, memory = self._received(LENGTH_BYTES)
        text, _ = self._received(int.from_bytes(head, "little"))
        return json.loads(text), memory

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], mmap.mmap | None]:
        text = json.dumps(request).encode()
        try:
            self.socket.sendall(len(text).to_bytes(LENGTH_BYTES, "little") + text)
            return self.answer()
        except ConnectionError:
            raise EOFError from None

    def _received(self, count: int) -> tuple[bytes, mmap.mmap | None]:
        parts: list[bytes] = []
        memory = None
        while count > 0:
            data, descriptors, _, _ = socket.recv_fds(self.socket, min(count, 1 << 20), 1, socket.MSG_CMSG_CLOEXEC)
            for descriptor in descriptors:
                try:
                    memory = mmap.mmap(descriptor, 0)
                finally:
                    os.close(descriptor)
            if not data:
                raise EOFError
            parts.append(data)
            count -= len(data)
        return b"".join(parts), memory

    def end(self, at_once: bool) -> int:
        """It ends when its socket is closed; `at_once`: also in the middle of an answer."""
        self.socket.close()
        if at_once:
            self.child.terminate()
        try:
            code = self.child.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            self.child.kill()
            code = self.child.wait()
        return code

    def last_words(self) -> str:
        with self.said:
            self.said.seek(0)
            return self.said.read().decode(errors="replace")

    def forget(self) -> None:
        """In a forked process: the reader is that of the parent."""
        self.socket.close()
        self.said.close()
        self.child.returncode = 0  # it is not waited for


class Reader:
    """Any thread may ask; answers are made one at a time. `words`: the path and how it is read."""

    def __init__(self, path: str, words: Sequence[str]) -> None:
        self._path = path
        self._words = list(words)
        self._closed = False
        self._running: list[_Process] = []  # one or none
        self._at_end = weakref.finalize(self, _end, self._running)
        self._lock = threading.Lock()
        self._hello: dict[str, Any] | None = None
        _READERS.add(self)

    def hello(self) -> dict[str, Any]:
        """Format, tensors and notes."""
        with self._lock:
            if self._hello is None:
                self._start()
            assert self._hello is not None
            return self._hello

    def ask(self, request: dict[str, Any]) -> tuple[dict[str, Any], mmap.mmap | None]:
        with self._lock:
            if self._closed:
                raise JobError(f"{self._path}: the checkpoint is closed. Open it again.", 2)
            if not self._running:
                self._start()
            document, memory = self._exchanged(lambda process: process.ask(request))
        if "error" in document:
            raise error_of(str(document["error"]), int(document["exit_code"]))
        return document, memory

    def close(self) -> None:
        with self._lock:
            self._closed = True
            _end(self._running)

    def _start(self) -> None:
        self._running.append(_Process(self._words))
        hello, _ = self._exchanged(_Process.answer)
        if self._hello is not None and hello["tensors"] != self._hello["tensors"]:
            _end(self._running)
            raise InputOutputError(f"{self._path}: other tensors are there than when it was opened. Open it again.", 5)
        self._hello = hello

    def _exchanged(self, exchange: Any) -> tuple[dict[str, Any], mmap.mmap | None]:
        (process,) = self._running
        try:
            answer: tuple[dict[str, Any], mmap.mmap | None] = exchange(process)
            return answer
        except EOFError:
            self._running.clear()
            raise self._error(process) from None
        except BaseException:  # its answer would be taken for that of the next request
            self._running.clear()
            process.end(at_once=True)
            raise

    def _error(self, process: _Process) -> ReshardError:
        code = process.end(at_once=False)
        said = process.last_words()
        if code >= 0:
            return error_of_end(said, code)
        name = signal.Signals(-code).name
        hint = " The system may have been out of memory." if -code == signal.SIGKILL else ""
        return InterruptedError(f"{self._path}: the process that reads it was ended by {name}.{hint} The next read starts another one.", 75)

    def _forget(self) -> None:
        for process in self._running:
            process.forget()
        self._running.clear()
        self._lock = threading.Lock()  # a thread that is not here may have held it


def _end(running: list[_Process]) -> None:
    while running:
        process = running.pop()
        process.end(at_once=False)
        process.said.close()


def _forget_all() -> None:
    for reader in list(_READERS):
        reader._forget()


_READERS: weakref.WeakSet[Reader] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forget_all)
