"""Where a completion states its final answer, found in its text. Nothing is parsed here."""

from __future__ import annotations

import re
from fractions import Fraction

from forge_core import RewardSample

STATED = re.compile(r"(?i:\banswer\b)(?:\s+is)?\s*[:=]?\s*(?P<answer>\S[^\n]*)")
MARKUP = " \t\r*`"
GSM8K_MARKER = re.compile(r"^####\s*")
SENTENCE_END = re.compile(r"\.(?:\s|$)")
BETWEEN_BOXES = re.compile(r"[\s,;$.]*(?:and|or)?[\s,;$.]*")
"""Text between two boxed answers that makes them one answer of several parts."""

DIGITS = r"(?:[1-9]\d{0,2}(?:[, ]\d{3})+|\d+)"
NUMBER = re.compile(rf"([+-]?)[$€£¥]?((?:{DIGITS}(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{{1,3}})?)")
LONGEST_NUMBER = 1000
"""Characters; Python refuses to read integers of more than 4,300 digits."""

DECIMAL_COMMA = re.compile(r"-?(?:0,\d+|\d+,\d{1,2}|\d+,\d{4,}|\d{4,},\d+)")
"""A comma that does not separate thousands."""
SCIENTIFIC = re.compile(r"(?<![\w.\\])(\d+(?:\.\d+)?[eE][+-]?\d{1,2})(?![\w.^{])")
UPRIGHT = re.compile(r"\\mathrm\{([a-z])\}")
"""A constant such as e, which Math-Verify knows in italics only."""
DIGIT_GAP = re.compile(r"(?<=\d)(?:\{,\}|\\[,!; ]|[~\u00a0\u2009\u202f])(?=\d{3}(?!\d))")

MIXED = re.compile(r"(-?\d+)\s+(\d+)/(\d+)")
"""A mixed number such as ``3 1/2``."""
LIST = re.compile(r"""\[\s*[\["']""")
HEX = re.compile(r"0[xX][0-9a-fA-F]+|0[bB][01]+")
NUMBERS_IN_A_ROW = re.compile(r"\d\s+\d")

FUNCTION = re.compile(r"(?:arc)?(?:sin|cos|tan|cot|sec|csc)|ln|log|exp|sqrt|pi|inf(?:inity)?")
COMMAND = re.compile(r"\\[A-Za-z]+")
WORDED = re.compile(r"[\w\s.,:;'’\"!?&()-]+")
WORD = re.compile(r"[^\W\d_]{2,}")
CLOCK = re.compile(r"\d+:\d\d")
LETTER = re.compile(r"\(?([^\W\d_])\)?[.):]?")
CHOICE = re.compile(r"(?:option |choice )?(?:\(([a-z])\)|([a-z])(?:[.):]|$))(?:\s|$)")
WRAPPER = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")


def outside_reasoning(sample: RewardSample, tag: str | None) -> str:
    """The completion behind its reasoning; empty if the reasoning was cut off.

    Args:
        sample: its prompt may have opened the tag, as chat templates of reasoning models do.
        tag: name of the tag around the reasoning, or None to keep everything.
    """
    text = sample.completion
    if tag is None:
        return text
    opening, closing = f"<{tag}>", f"</{tag}>"
    if sample.prompt.rstrip().endswith(opening):
        text = opening + text
    _, _, text = text.rpartition(closing)
    text, _, _ = text.partition(opening)
    return text


def tagged(text: str, tag: str | None, *, cut_off: bool) -> str | None:
    """The text in the last pair of answer tags, or after an opening tag that is not closed.

    Args:
        text: without the reasoning.
        tag: name of the tag, or None.
        cut_off: the completion ran into its length, so that an unclosed tag holds half an answer.

    Returns:
        None if there is no such tag.
    """
    if tag is None:
        return None
    _, found, rest = text.rpartition(f"<{tag}>")
    if not found:
        return None
    inside, closed, _ = rest.partition(f"</{tag}>")
    return "" if cut_off and not closed else inside.strip()


def tidy(text: str) -> str:
    """One way to write minus signs, grouped digits and powers of ten (``1.5e3`` is ``1500``)."""
    text = UPRIGHT.sub(r"\1", DIGIT_GAP.sub("", text.replace("\u2212", "-")))
    return SCIENTIFIC.sub(lambda match: decimal(Fraction(match[1])), text)


def number(text: str, *, decimal_comma: bool = False) -> Fraction | None:
    """The number that the text is, whole: ``1,234.5``, ``1 000``, ``-1.5e-3``, ``$5``.

    Args:
        text: to be read.
        decimal_comma: ``1,5`` is 1.5, and not two numbers. ``0,5`` always is.
    """
    text = text.strip().removeprefix("\\")  # of an escaped dollar
    if len(text) > 2 and text[0] == text[-1] == "$":
        text = text[1:-1].strip()
    if DECIMAL_COMMA.fullmatch(text) and (decimal_comma or text.lstrip("-").startswith("0,")):
        text = text.replace(",", ".")
    match = NUMBER.fullmatch(text) if len(text) < LONGEST_NUMBER else None
    return Fraction(match[1] + re.sub("[, ]", "", match[2])) if match else None


def is_worded(text: str) -> bool:
    """Whether the text is words (``Paris``, ``March 3``), one letter or a time: no formula."""
    if not WORDED.fullmatch(text):
        return False
    return bool(has_words(text) or CLOCK.search(text) or LETTER.fullmatch(text.strip()))


def is_words(answer: str) -> bool:
    """Whether an answer can be nothing but words: no symbol (``x``, ``ab``), no quantity."""
    words = words_of(answer)
    if not (is_worded(answer) or is_worded(words)):
        return False
    return len(words) > 3 and not any(letter.isdigit() for letter in words)


def is_data(answer: str) -> bool:
    """Whether an answer is digits in a row (a grid, a route), a list of lists or texts, or hex:
    as a formula they would be products, equal in any order."""
    row = NUMBERS_IN_A_ROW.search(answer) and not MIXED.fullmatch(answer)
    return "\\" not in answer and bool(row or LIST.search(answer) or HEX.fullmatch(answer))


def last_part(answer: str) -> str:
    """The final answer of a reference that is a whole solution in the form of GSM8K."""
    _, marker, final = answer.rpartition("####")
    return final.strip() if marker else answer.strip()


def has_words(text: str) -> bool:
    """Whether there is a word in it that names no function or command."""
    return any(not FUNCTION.fullmatch(word) for word in WORD.findall(COMMAND.sub("", text)))


def boxed(text: str) -> list[str]:
    """What the last ``\\boxed{...}`` holds, and those in a row with it, in order."""
    found: list[tuple[int, int, str]] = []
    for match in re.finditer(r"\\boxed\s*\{", text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        if not depth:
            found.append((match.start(), end, text[match.end() : end - 1]))
    row: list[str] = []
    begins = len(text)
    for start, end, inside in reversed(found):
        if row and not BETWEEN_BOXES.fullmatch(text[end:begins]):
            break
        row.insert(0, inside)
        begins = start
    return row


def stated(text: str) -> str:
    """What follows the last "answer", to the end of its sentence; else the last line."""
    matches = list(STATED.finditer(text))
    if matches:
        line = SENTENCE_END.split(matches[-1]["answer"], maxsplit=1)[0]
    else:
        lines = [line for line in text.splitlines() if line.strip()]
        line = lines[-1].rstrip().removesuffix(".") if lines else ""
    return GSM8K_MARKER.sub("", line.strip(MARKUP))


def same_words(completion: str, answer: str) -> bool:
    """Whether the completion, or its final answer, is the answer's words; case does not count."""
    boxes = boxed(completion)
    found = words_of((boxes[0] if len(boxes) == 1 else "") if boxes else stated(completion))
    wanted = words_of(answer)
    if not wanted:
        return False
    if words_of(completion) == wanted:
        return True
    if len(wanted) == 1 and wanted.isalpha():
        choice = CHOICE.match(found)
        if choice is not None:
            found = choice[1] or choice[2]
    return found == wanted


def words_of(text: str) -> str:
    """Text without its markup, white space, outer punctuation and case."""
    text = WRAPPER.sub(r"\1", text.replace("\\boxed", "").replace("**", ""))
    text = " ".join(text.translate(str.maketrans("", "", "${}")).split()).casefold()
    text = text.strip(" .,;:!?\"'`")
    if "\\" in text:  # a formula that cannot be parsed
        text = text.replace(" ", "")
    single = LETTER.fullmatch(text)
    return single[1] if single else text


def decimal(value: Fraction) -> str:
    """Decimals of a number whose denominator divides a power of ten."""
    places = 0
    while value.denominator != 1 and (value * 10**places).denominator != 1:
        places += 1
    digits = str(abs(value.numerator * 10**places // value.denominator)).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)
