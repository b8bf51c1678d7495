"""The kernel stays small. ``python tests/packaging/test_size.py`` shows its lines by folder."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

KERNEL = Path(__file__).parents[2] / "forge_core"

MOST = 6_500
"""Lines of code in ``forge_core``. What is not kernel goes into a package of its own."""

_NO_CODE = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def code_lines(source: str) -> int:
    """Lines that are not blank, only a comment, or part of a string that stands by itself."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def by_part() -> Counter[str]:
    """Lines of each folder of the kernel, and of each module beside them."""
    counts: Counter[str] = Counter()
    for file in KERNEL.rglob("*.py"):
        part = file.relative_to(KERNEL).parts[0]
        counts[part] += code_lines(file.read_text(encoding="utf-8"))
    return counts


def test_what_is_counted() -> None:
    lines = ['"""Doc."""', "", "# A comment", 'x = """a', 'b"""  # two lines', "", ""]
    lines += ["def f():", '    """Doc', "", '    more."""', "    return x"]
    assert code_lines("\n".join(lines) + "\n") == 4


def test_the_kernel_is_small() -> None:
    counts = by_part()
    assert counts.total() <= MOST, f"{counts.total()} lines: {counts.most_common()}"


if __name__ == "__main__":
    for part, count in by_part().most_common():
        print(f"{count:6,}  {part}")
    print(f"{by_part().total():6,}  together, of at most {MOST:,}")
