"""Requests as vLLM gets them, and its outputs as completions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.sampling_params import StructuredOutputsParams

from forge_core import ConfigError, DataError, RunFailed, Sampling
from forge_testing.context import bare_context
from forge_vllm.checks import check_generator
from forge_vllm.sampling import RequestParams, check_sampling, completion, completion_part
from forge_vllm.settings import VllmSettings


def output(**sample: Any) -> Any:
    """A final output of one sample, as vLLM makes them."""
    spans = [SimpleNamespace(version=v, start=s) for v, s in sample.pop("spans")]
    return SimpleNamespace(
        finished=sample["finish_reason"] is not None,
        outputs=[
            SimpleNamespace(
                logprobs=SimpleNamespace(logprobs=[-0.5] * len(sample["token_ids"])),
                weight_versions=spans if sample["finish_reason"] else None,
                **sample,
            )
        ],
    )


def test_each_token_has_the_version_of_its_span() -> None:
    spans = [("default", 0), ("2", 3), ("5", 4)]
    result = completion(output(token_ids=(7, 8, 9, 7, 8), finish_reason="length", spans=spans))
    assert list(result.versions) == [0, 0, 0, 2, 5]
    assert result.finish_reason == "length"
    assert list(result.logprobs) == [-0.5] * 5


def test_a_completion_that_was_aborted_before_its_first_token() -> None:
    result = completion(output(token_ids=(), finish_reason="abort", spans=[]))
    assert (list(result.tokens), result.finish_reason) == ([], "cancelled")


@pytest.mark.parametrize(
    ("spans", "reason"),
    [([], "stop"), ([("1", 2)], "stop"), ([("1", 0)], "error"), ([("1", 0)], "no such reason")],
)
def test_what_vllm_does_not_say_is_not_made_up(spans: list[tuple[str, int]], reason: str) -> None:
    with pytest.raises(RunFailed):
        completion(output(token_ids=(7, 8, 9), finish_reason=reason, spans=spans))


def test_parts_of_a_stream_take_their_versions_from_the_whole() -> None:
    middle = output(token_ids=(7, 8, 9), finish_reason=None, spans=[])
    part = completion_part(middle, [("1", 0), ("2", 5), ("3", 6)], start=4)
    assert (list(part.versions), part.finish_reason) == ([1, 2, 3], None)
    last = output(token_ids=(7,), finish_reason="stop", spans=[("1", 0), ("4", 7)])
    part = completion_part(last, [], start=7)
    assert (list(part.versions), part.finish_reason) == ([4], "stop")


def test_samples_of_a_prompt_have_streams_of_their_own() -> None:
    params = RequestParams({})
    seeds = {
        params.of(Sampling(seed=seed, n=8), index, 5).seed
        for seed in range(8)
        for index in range(8)
    }
    assert len(seeds) == 64
    assert params.of(Sampling(n=2), 1, 5).seed is None


def test_what_differs_in_the_seed_alone_is_made_once_and_shares_no_seed() -> None:
    params = RequestParams({})
    plain = params.of(Sampling(), 0, 5)
    assert params.of(Sampling(n=2, priority=1), 1, 5) is plain
    assert params.of(Sampling(), 0, 6).max_tokens == 6
    assert params.of(Sampling(temperature=0.5), 0, 5).temperature == 0.5
    assert params.of(Sampling(), 0, 5, stream=True).output_kind != plain.output_kind
    first, second = (params.of(Sampling(seed=1), index, 5) for index in range(2))
    assert first.seed != second.seed
    assert plain.seed is None


def test_the_models_end_of_sequence_stops_only_where_it_is_asked_for() -> None:
    params = RequestParams({"min_p": 0.1}).of(Sampling(stop_token_ids=(4,), max_tokens=9), 0, 5)
    assert params.ignore_eos
    assert params.stop_token_ids == [4]
    assert params.max_tokens == 5
    assert params.min_p == 0.1


def test_parameters_that_vllm_refuses() -> None:
    with pytest.raises(DataError, match=r"vLLM refuses the sampling parameters: .*min_p"):
        RequestParams({"min_p": 3}).of(Sampling(), 0, 5)


@pytest.mark.parametrize(
    "wrong", [{"n": 0}, {"max_tokens": 0}, {"temperature": -1}, {"top_p": 0}, {"top_k": -1}]
)
def test_values_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=f"sampling.{next(iter(wrong))} is"):
        check_sampling(Sampling(**wrong))


def test_structured_outputs_are_of_vllms_own_class() -> None:
    extra = {"structured_outputs": {"choice": ["yes", "no"]}}
    params = RequestParams(extra)
    first, second = (params.of(Sampling(), index, 5) for index in range(2))
    assert isinstance(first.structured_outputs, StructuredOutputsParams)
    assert first.structured_outputs.choice == ["yes", "no"]
    assert first.structured_outputs is not second.structured_outputs
    with pytest.raises(DataError, match="only use one kind"):
        RequestParams({"structured_outputs": {"regex": "a", "choice": ["yes"]}}).of(
            Sampling(), 0, 5
        )


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (
            {"structured_outputs": {"regexp": "a"}},
            "regexp: .*did you mean regex",
        ),
        ({"structured_outputs": "a"}, "structured_outputs: must be a mapping"),
        ({"repetition_detection": {"min_count": 3}}, "repetition_detection: cannot be set"),
    ],
)
def test_options_that_are_refused_before_the_start(sampling: dict[str, Any], message: str) -> None:
    context = bare_context()
    with pytest.raises(ConfigError, match=message):
        check_generator(VllmSettings(sampling=sampling), context)
