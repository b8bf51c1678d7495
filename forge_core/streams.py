"""Standard streams that are closed, full, gone, or cannot show every character."""

from __future__ import annotations

import codecs
import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

_ASCII = {
    "→": "->", "·": "-", "…": "...", "✓": "+", "✗": "x", "■": "#", "▶": ">", "◆": "*", "─": "-",
    "━": "=", "│": "|", "┤": "|", "└": "+", "⏎": "\\n", "█": "#",
}  # fmt: skip
_ASCII |= {"▁▂▃▄▅▆▇"[level]: "__..--="[level] for level in range(7)}

_LOST = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EBADF, errno.ENXIO)
"""What a write to a closed pipe, a full disk or a terminal that is gone raises."""


def prepare() -> None:
    """Open standard streams that are closed, and make every text writable on the others.

    A closed descriptor would be given to the next file that is opened: what is printed would end
    in it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one: those below it are open by now.
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        show_everything(stream)


def show_everything(stream: object) -> None:
    """Write what the stream's encoding cannot show as ASCII, instead of raising."""
    codecs.register_error("forge", _shown)
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="forge")


def _shown(error: UnicodeError) -> tuple[str, int]:
    """Characters that the stream's encoding cannot show, as ASCII."""
    assert isinstance(error, UnicodeEncodeError)
    return "".join(
        _ASCII.get(character, character.encode("ascii", "backslashreplace").decode())
        for character in error.object[error.start : error.end]
    ), error.end


def say(line: str | Callable[[], object]) -> None:
    """Print a line on standard error, which may be gone too."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if isinstance(line, str):
            print(line, file=sys.stderr, flush=True)
        else:
            line()


def broken_output(error: Exception) -> str | None:
    """Why standard output cannot be written, if ``click.echo`` or a last flush has raised that."""
    if not isinstance(error, OSError) or error.errno not in _LOST or error.filename is not None:
        return None
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = frame.tb_frame.f_globals.get("__name__") if frame is not None else None
    return os.strerror(error.errno) if where in ("click.utils", "forge_core.cli") else None


class _Lasting(io.FileIO):
    """A descriptor that accepts every write: from the first that fails on, into nothing."""

    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in _LOST:
                raise
            self.failure = error
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            return len(data)


class LastingText(io.TextIOWrapper):
    """Text over a ``_Lasting`` descriptor."""

    @property
    def failure(self) -> OSError | None:
        """The write that failed."""
        return cast("_Lasting", cast("io.BufferedWriter", self.buffer).raw).failure


def check(stream: object) -> None:
    """
    Raises:
        OSError: the stream is a lasting one, and what was written to it is lost.
    """
    failure = getattr(stream, "failure", None)
    if isinstance(failure, OSError):
        raise failure


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Standard output and error that never raise for being closed, full or gone.

    So that what a component prints does not fail it after ``forge run | head`` has lost its reader.
    The console calls ``check`` and is given up.
    """
    before = sys.stdout, sys.stderr
    replaced = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        # Not what a test or a notebook has put in its place.
        if type(stream) is io.TextIOWrapper and stream.fileno() in (1, 2):
            with contextlib.suppress(OSError):
                stream.flush()
            text = LastingText(
                io.BufferedWriter(_Lasting(stream.fileno(), "w", closefd=False)),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, text)
            replaced.append(text)
    try:
        yield
    finally:
        for text in replaced:
            text.flush()
        sys.stdout, sys.stderr = before
