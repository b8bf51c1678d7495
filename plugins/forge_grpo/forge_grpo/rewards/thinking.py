"""Reward ``thinking``: the completion reasons inside one tag and then answers."""

from __future__ import annotations

import re

from forge_core import RewardSample
from forge_grpo.settings import ThinkingSettings


class Thinking:
    """1 for one pair of tags with text inside and text behind; 0.5 for the pair alone; else 0.

    A prompt may already have opened the tag (chat templates of reasoning models do).
    """

    def __init__(self, settings: ThinkingSettings) -> None:
        self.opening, self.closing = f"<{settings.tag}>", f"</{settings.tag}>"

    def __call__(self, sample: RewardSample) -> float:
        text = sample.completion
        if sample.prompt.rstrip().endswith(self.opening):
            text = self.opening + text
        if text.count(self.opening) != 1 or text.count(self.closing) != 1:
            return 0.0
        pattern = rf"\s*{re.escape(self.opening)}(.*){re.escape(self.closing)}(.*)"
        match = re.fullmatch(pattern, text, re.DOTALL)
        if match is None:
            return 0.0
        reasoning, answer = match[1].strip(), match[2].strip()
        return 1.0 if reasoning and answer else 0.5
