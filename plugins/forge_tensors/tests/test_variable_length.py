"""What torch's kernel for unequal lengths is asked for, and where it is left out."""

from __future__ import annotations

import warnings

import pytest
import torch

from forge_tensors import variable_length
from forge_tensors.attention import plan
from forge_tensors.variable_length import arguments, takes, trouble, works_on

# Parameters behind max_k, as torch releases have had them.
OLDEST = {"is_causal", "return_aux"}
MIDDLE = {"return_aux", "scale", "window_size"}
NEWEST = {"return_aux", "scale", "window_size", "enable_gqa", "seqused_k", "num_splits"}


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        (OLDEST, {"is_causal": True}),
        (MIDDLE, {"window_size": (-1, 0), "scale": 0.5}),
        (NEWEST, {"window_size": (-1, 0), "scale": 0.5, "enable_gqa": True}),
    ],
)
def test_only_arguments_that_it_has_are_passed(
    accepted: set[str], expected: dict[str, object]
) -> None:
    scaling = 0.5 if "scale" in accepted else None
    assert arguments(accepted, scaling=scaling, grouped=True) == expected
    assert "enable_gqa" not in arguments(accepted, scaling=None, grouped=False)


def test_no_way_to_ask_for_causal_attention() -> None:
    with pytest.raises(NotImplementedError, match="causal"):
        arguments({"return_aux"}, scaling=None, grouped=False)


@pytest.mark.parametrize(
    ("dtype", "sizes", "scaling", "accepted", "expected"),
    [
        (torch.bfloat16, (64, 64, 64), 64**-0.5, NEWEST, True),
        (torch.float16, (256, 256, 256), None, NEWEST, True),
        (torch.float32, (64, 64, 64), None, NEWEST, False),
        (torch.bfloat16, (60, 60, 60), None, NEWEST, False),  # not a multiple of 8
        (torch.bfloat16, (512, 512, 512), None, NEWEST, False),
        (torch.bfloat16, (192, 192, 128), None, NEWEST, False),
        (torch.bfloat16, (64, 64, 64), 0.3, NEWEST, True),
        (torch.bfloat16, (64, 64, 64), 0.3, OLDEST, False),  # no argument for it
        (torch.bfloat16, (64, 64, 64), 64**-0.5, OLDEST, True),
    ],
)
def test_what_it_takes(
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    scaling: float | None,
    accepted: set[str],
    expected: bool,
) -> None:
    found = takes(dtypes=(dtype,) * 3, head_sizes=sizes, scaling=scaling, accepted=accepted)
    assert found is expected


def test_mixed_types_are_left_to_the_general_way() -> None:
    mixed = (torch.float32, torch.float32, torch.bfloat16)
    assert not takes(dtypes=mixed, head_sizes=(64,) * 3, scaling=None)


def test_this_torch_takes_what_it_is_asked_for() -> None:
    accepted = variable_length._ACCEPTED
    found = arguments(accepted, scaling=0.1, grouped=True)
    wanted = {"window_size": (-1, 0), "scale": 0.1, "enable_gqa": True}
    assert found == {name: value for name, value in wanted.items() if name in accepted}


def test_a_device_without_the_kernel_falls_back_with_a_reason() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not works_on(torch.device("cpu"))  # it is not expected there
    assert not plan([3, 4], "cpu").variable_length
    reason = trouble(torch.device("cpu"))
    assert reason is not None
    assert reason.startswith(f"torch {torch.__version__}: ")
    assert "\n" not in reason
    variable_length._tried.cache_clear()
    with pytest.warns(UserWarning, match="without torch's kernel for unequal lengths"):
        assert not variable_length._tried(torch.device("cpu"))
    variable_length._tried.cache_clear()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_it_works_on_this_gpu() -> None:
    assert trouble(torch.device("cuda", 0)) is None
