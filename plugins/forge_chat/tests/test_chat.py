"""``forge chat``: on a terminal (a real one, as a process sees it), and with lines piped in."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from forge_chat.text_stream import TextStream
from forge_core import (
    BuildContext,
    Completion,
    Forge,
    GeneratorComponent,
    ModelSection,
    Sampling,
    Settings,
    hookimpl,
)
from forge_models.folder import load_tokenizer, materialize
from forge_testing.command import CommandResult, run_in_process


def chat(*arguments: object, stdin: str, app: Forge | None = None) -> CommandResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", StringIO(stdin))
        return run_in_process("chat", *map(str, arguments), app=app)


def greedy(model: Path, prompt: str, count: int) -> str:
    options = ("--raw", "--json", "--temperature", "0", "--max-tokens", str(count))
    result = run_in_process("generate", str(model), *options, prompt)
    assert result.exit_code == 0, result.stderr
    return str(json.loads(result.stdout)["text"])


def test_what_was_said_goes_in_again(tiny_chat_model: Path) -> None:
    options = ("--temperature", 0, "--max-tokens", 5)
    result = chat(
        tiny_chat_model, *options, "--system", "be", stdin="hi\n\nmore\n/reset\nhi\n/exit\nno"
    )
    assert result.exit_code == 0, result.stderr
    opening = "<system>be;<user>hi;<assistant>"
    first = greedy(tiny_chat_model, opening, 5)
    second = greedy(tiny_chat_model, f"{opening}{first};<user>more;<assistant>", 5)
    assert result.stdout == f"{first}\n{second}\n{first}\n"


def test_without_a_template_each_line_stands_by_itself(
    tiny_model: Path, tiny_chat_model: Path
) -> None:
    options = ("--temperature", 0, "--max-tokens", 5)
    result = chat(tiny_model, *options, stdin="abc\nabc\n")
    answer = greedy(tiny_model, "abc", 5)
    assert result.stdout == f"{answer}\n{answer}\n"
    assert "The model has no chat template: each line goes in as it is" in result.stderr
    raw = chat(tiny_chat_model, *options, "--raw", stdin="abc\n")
    assert raw.stdout == f"{answer}\n"
    assert "--raw: each line goes in as it is" in raw.stderr


def test_a_seed_repeats_a_conversation(tiny_chat_model: Path) -> None:
    options = ("--max-tokens", 8)
    first, again, other = (
        chat(tiny_chat_model, *options, "--seed", seed, stdin="a\na\n").stdout for seed in (1, 1, 2)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("options", "stdin", "error"),
    [
        ((), "x" * 300, "the prompt's"),
        (("--system", "be", "--raw"), "a", "--system: this model is used without a chat template"),
        (
            ("generator.procs=2",),
            "a",
            "generator.procs: the generator runs in this command",
        ),
        (("sampling.n=2",), "a", "sampling.n: unknown key"),
        (("--step", 1), "a", "--step 1: "),
    ],
)
def test_what_is_wrong_ends_a_piped_chat(
    tiny_chat_model: Path, options: tuple[object, ...], stdin: str, error: str
) -> None:
    result = chat(tiny_chat_model, *options, stdin=stdin)
    assert result.exit_code == 2
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert error in last


class Whole:
    """A generator that does not stream."""

    async def generate(self, prompt: list[int], sampling: Sampling) -> list[Completion]:
        return [
            Completion([*prompt, 1], [0.0] * (len(prompt) + 1), [0] * (len(prompt) + 1), "stop")
        ]

    async def update_weights(self, manifest: Any) -> Any: ...

    async def stats(self) -> dict[str, float]:
        return {}

    async def close(self) -> None: ...


class WholePlugin:
    @hookimpl
    def forge_generators(self) -> Iterator[GeneratorComponent]:
        def build(settings: Settings, context: BuildContext) -> Whole:
            return Whole()

        yield GeneratorComponent(
            name="whole", settings=Settings, build=build, summary="repeats the prompt"
        )


def test_a_generator_that_does_not_stream_answers_too(tiny_model: Path) -> None:
    app = Forge(plugins=[WholePlugin()])
    result = chat(tiny_model, "--generator", "whole", stdin="abc\n", app=app)
    assert result.stdout == "abc\n"


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        master, slave = pty.openpty()
        self._screen = master
        self.process = subprocess.Popen(
            [sys.executable, "-m", "forge_core", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
            preexec_fn=_own_terminal,
        )
        os.close(slave)

    def send(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def until(self, text: str, keys: str = "") -> str:
        """Everything on the screen up to a text that has not been read before.

        Args:
            text: not read before.
            keys: pressed until it comes, every five seconds.
        """
        seen = ""
        end = time.monotonic() + 300
        press = time.monotonic()
        while text not in seen:
            now = time.monotonic()
            assert now < end, f"no {text!r} in {seen!r}"
            if keys and now >= press:
                self.send(keys)
                press = now + 5
            left = (press if keys else end) - now
            if select.select([self._screen], [], [], left)[0]:
                try:
                    seen += os.read(self._screen, 1).decode(errors="replace")
                except OSError:
                    pytest.fail(f"the command ended after {seen!r}")
        return seen

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


def _own_terminal() -> None:
    """Make standard input the controlling terminal, so that ctrl-C is a signal, and heed it: what a
    shell starts in the background does not, nor what that starts."""
    import fcntl
    import termios

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture(scope="module")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that, greedy, does not come to an end soon."""
    config = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 16,
        "max_position_embeddings": 100_000,
    }
    init = {"architecture": "qwen3", "config": config, "characters": "abcdefgh"}
    section = ModelSection.model_validate({"init": init})
    return materialize(section, tmp_path_factory.mktemp("talkative"), seed=0)


@pytest.fixture
def terminal(talkative: Path) -> Iterator[Terminal]:
    options = ("--temperature", "0", "sampling.max_tokens=90000")
    terminal = Terminal("chat", str(talkative), *options)
    yield terminal
    terminal.close()


def test_a_chat_on_a_terminal(terminal: Terminal, talkative: Path) -> None:
    assert f"{talkative} on generator torch" in terminal.until("> ")
    answer = greedy(talkative, "abc", 20)

    terminal.send("abc\n")
    terminal.until(answer)  # while it goes on
    terminal.send("\x03")
    terminal.until("[stopped]")
    terminal.until("> ")

    terminal.send("\x1b[A\n")  # up: the line before
    assert "abc" in terminal.until(answer)
    terminal.send("\x03")
    terminal.until("[stopped]")
    terminal.until("> ")

    terminal.send("/help\n")
    assert "/reset" in terminal.until("ctrl-C stops an answer.")
    terminal.send("/hepl\n")
    terminal.until("There is no command /hepl; there are /help, /reset, /exit.")
    terminal.send("xyz\n")  # not in its alphabet
    terminal.until("error: the model's tokenizer cannot encode 'xyz'")
    terminal.until("> ")
    terminal.send("half a line")
    terminal.until("half a line")
    # Again if need be: a signal that comes just before readline waits is seen at the next key.
    terminal.until("(ctrl-D leaves)", keys="\x03")
    terminal.until("> ")
    terminal.send("\x04")
    assert terminal.process.wait(timeout=300) == 0


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return bytes(tokens).decode(errors="replace")


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_character_comes_when_it_is_whole(size: int) -> None:
    text = "aé漢🙂 b"
    tokens = list(text.encode())
    stream = TextStream(Bytes())  # type: ignore[arg-type]
    pieces = [stream.add(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    assert "".join([*pieces, stream.end()]) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_what_stays_half_is_shown_at_the_end() -> None:
    stream = TextStream(Bytes())  # type: ignore[arg-type]
    assert stream.add(list("é".encode()[:1])) == ""
    assert stream.end() == "\ufffd"


def test_spaces_before_words_are_kept(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)
    stream = TextStream(tokenizer)
    assert "".join(stream.add([token]) for token in tokenizer.encode("a b  c")) == "a b  c"
