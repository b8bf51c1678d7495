"""Types of token data: numpy arrays of one dimension, and what is taken for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

# As strings: a plugin that names them in its signatures does not import numpy at start.
IntArray: TypeAlias = "npt.NDArray[np.int32]"
FloatArray: TypeAlias = "npt.NDArray[np.float32]"
BoolArray: TypeAlias = "npt.NDArray[np.bool_]"

Ints: TypeAlias = "Sequence[int] | npt.NDArray[np.integer[Any]] | torch.Tensor"
"""What is taken for token ids and versions."""
Floats: TypeAlias = "Sequence[float] | npt.NDArray[np.number[Any]] | torch.Tensor"
"""What is taken for logprobs and fields."""
Flags: TypeAlias = "Sequence[bool] | npt.NDArray[np.bool_] | torch.Tensor"
"""What is taken for masks."""
