"""``forge generate``: text from a model or a run's checkpoint."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from forge_chat.commands.options import find, is_override, overrides, policy_options
from forge_core import UsageError

if TYPE_CHECKING:
    from forge_chat.completion import Answer
    from forge_chat.prompts import GivenPrompt
    from forge_core import Forge, Sampling
    from forge_run.policy_source import PolicySource


@click.command()
@click.argument("model", metavar="MODEL-or-RUN")
@click.argument("words", nargs=-1, metavar="[PROMPT ...] [KEY=VALUE ...]")
@click.option(
    "-i",
    "--input",
    "file",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Prompts, one a line; *.jsonl: text, {'prompt': ...} or {'messages': [...]} a line.",
)
@click.option("-n", "--samples", type=click.IntRange(min=1), default=1, help="Of each prompt.")
@click.option("--json", "as_json", is_flag=True, help="For programs: an object a completion.")
@policy_options
@click.pass_obj
def generate(
    app: Forge,
    /,
    model: str,
    words: tuple[str, ...],
    file: Path | None,
    samples: int,
    as_json: bool,
    step: int | None,
    seed: int | None,
    raw: bool,
    **flags: Any,
) -> None:
    """Complete prompts with a model folder, a run (its newest checkpoint) or one checkpoint.

    \b
    forge generate models/Qwen3-0.6B "What is a monad?" --temperature 0.7
    forge generate runs/my-20260101-120000 12+34= -n 4
    forge generate models/Qwen3-0.6B --input prompts.jsonl --json > answers.jsonl

    Without a prompt, lines of standard input are read. A run brings its own generator and sampling
    with it; KEY=VALUE changes them.
    """
    source = find(app, model, overrides(flags, list(filter(is_override, words))), step=step)
    prompts = _prompts([word for word in words if not is_override(word)], file)
    if sys.stderr.isatty():
        click.secho(f"{source.model} on generator {source.generator.name}", dim=True, err=True)
    sampling = source.sampling(n=samples, seed=seed)
    cut = asyncio.run(_generate(source, prompts, sampling, raw=raw, as_json=as_json))
    if cut and not as_json:
        total = len(prompts) * samples
        which = "the completion was" if total == 1 else f"{cut} of {total} completions were"
        limit = f"sampling.max_tokens={sampling.max_tokens} or the model's window"
        click.secho(f"{which} cut off at {limit}", dim=True, err=True)


def _prompts(texts: list[str], file: Path | None) -> list[GivenPrompt]:
    from forge_chat.prompts import from_arguments, from_file, from_lines

    if texts and file is not None:
        raise UsageError("forge generate: give prompts or --input, not both")
    if texts:
        return from_arguments(texts)
    if file is not None and str(file) != "-":
        return from_file(file)
    if file is None and sys.stdin.isatty():
        raise UsageError("forge generate: give a prompt, --input FILE, or lines on standard input")
    return from_lines(sys.stdin, "standard input")


async def _generate(
    source: PolicySource,
    prompts: list[GivenPrompt],
    sampling: Sampling,
    *,
    raw: bool,
    as_json: bool,
) -> int:
    """Print all answers; returns how many completions ran into their length."""
    from forge_chat.completion import generate as complete

    cut = 0
    alone = len(prompts) * sampling.n == 1
    async for answer in complete(source, prompts, sampling, raw=raw):
        cut += sum(completion.finish_reason == "length" for completion in answer.completions)
        if as_json:
            _print_json(answer, source)
        elif alone:
            click.echo(answer.texts[0])
        else:
            _print_text(answer)
    return cut


def _print_json(answer: Answer, source: PolicySource) -> None:
    prompt = answer.given.prompt
    shown = (
        prompt
        if isinstance(prompt, str)
        else [{"role": m.role, "content": m.content, **m.extra} for m in prompt]
    )
    for text, completion in zip(answer.texts, answer.completions, strict=True):
        row = {
            "prompt": shown,
            "text": text,
            "finish_reason": completion.finish_reason,
            "tokens": completion.tokens.tolist(),
            "logprobs": completion.logprobs.tolist(),
            "model": str(source.model),
            "step": source.step,
        }
        click.echo(json.dumps(row, ensure_ascii=False))


def _print_text(answer: Answer) -> None:
    """A prompt in bold, its completions indented beneath it."""
    prompt = answer.given.prompt
    click.secho(prompt if isinstance(prompt, str) else prompt[-1].content, bold=True)
    for text in answer.texts:
        click.echo("  " + text.replace("\n", "\n  "))
