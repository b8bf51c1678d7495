"""``forge chat``: talk with a model or a run's checkpoint."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any

import click

from forge_chat.commands.options import find, overrides, policy_options
from forge_core import DataError, UsageError

if TYPE_CHECKING:
    from forge_chat.conversation import Conversation
    from forge_core import Forge, Generator
    from forge_run.policy_source import PolicySource

COMMANDS = {
    "/help": "this list",
    "/reset": "forget what was said",
    "/exit": "leave, as ctrl-D does",
}
STOPPING = "ctrl-C stops an answer."


@click.command()
@click.argument("model", metavar="MODEL-or-RUN")
@click.argument("words", nargs=-1, metavar="[KEY=VALUE ...]")
@click.option("--system", metavar="TEXT", help="System message that the conversation begins with.")
@policy_options
@click.pass_obj
def chat(
    app: Forge,
    /,
    model: str,
    words: tuple[str, ...],
    system: str | None,
    step: int | None,
    seed: int | None,
    raw: bool,
    **flags: Any,
) -> int:
    """Talk with a model folder, a run (its newest checkpoint) or one checkpoint.

    \b
    forge chat models/Qwen3-0.6B --system "Answer in one sentence."
    forge chat runs/my-20260101-120000

    Answers come as they are sampled. Lines on standard input are messages too. One replica of the
    generator is used, in this process.
    """
    defaults = {"sampling": {"max_tokens": 4096}}
    source = find(app, model, overrides(flags, words), step=step, defaults=defaults)
    talks = bool(source.tokenizer.chat_template) and not raw
    if system is not None and not talks:
        raise UsageError("--system: this model is used without a chat template, so it has no place")
    _note(f"{source.model} on generator {source.generator.name}")
    with asyncio.Runner() as runner:
        generator = runner.run(_build(source))
        try:
            from forge_chat.conversation import Conversation

            conversation = Conversation(
                generator, source.tokenizer, source.sampling(seed=seed), system=system, raw=raw
            )
            if not conversation.remembers:
                without = "--raw" if raw else "The model has no chat template"
                _note(f"{without}: each line goes in as it is, without what was said before.")
            _talk(runner, conversation)
        finally:
            runner.run(generator.close())
    return 0


async def _build(source: PolicySource) -> Generator:
    """The generator, made while the loop runs that it is to live in."""
    from forge_chat.completion import in_process

    return in_process(source)


def _talk(runner: asyncio.Runner, conversation: Conversation) -> None:
    asks = sys.stdin.isatty()
    if asks:
        _note(f"/help lists the commands. {STOPPING}")
    for line in _lines(asks):
        text = line.strip()
        if text == "/exit":
            return
        if text == "/reset":
            conversation.reset()
            _note("Started a new conversation.")
        elif text == "/help":
            width = max(map(len, COMMANDS))
            _note("\n".join(f"{name:<{width}}  {does}" for name, does in COMMANDS.items()))
            _note(STOPPING)
        elif text.startswith("/"):
            _note(f"There is no command {text.split()[0]}; there are {', '.join(COMMANDS)}.")
        elif text:
            try:
                runner.run(_answer(conversation, text))
            except DataError as error:  # about this message; others may do better
                if not asks:
                    raise
                hint = " (/reset makes room)" if len(conversation.history) > 1 else ""
                click.echo(f"error: {error}{hint}", err=True)


def _lines(asks: bool) -> Iterator[str]:
    """What a person types, with the keys that readline knows; or lines of standard input."""
    if not asks:
        yield from sys.stdin
        return
    with suppress(ImportError):  # not in every build of Python; then without history
        import readline  # noqa: F401
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            click.echo("\n(ctrl-D leaves)", err=True)
        except EOFError:
            click.echo()
            return


async def _answer(conversation: Conversation, text: str) -> None:
    """Print the answer as it comes. Ctrl-C cancels this task, and so ends the answer only."""
    note = ""
    try:
        async with aclosing(conversation.say(text)) as pieces:
            async for piece in pieces:
                click.echo(piece, nl=False)
        if conversation.finish_reason == "length":
            note = "[cut off at sampling.max_tokens or the model's window]"
    except asyncio.CancelledError:
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        note = "[stopped]"
    click.echo()
    if note:
        _note(note)


def _note(text: str) -> None:
    """What is not the model's, apart from it: dim, on standard error."""
    click.secho(text, dim=True, err=True)
