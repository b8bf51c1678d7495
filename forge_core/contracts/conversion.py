"""Token data as numpy arrays: what authors give becomes one type, or is refused by name.

Lists, arrays and tensors on any device are taken alike. An array that is of the right type already
is taken as it is, without a copy. Imported where token data are made: ``forge --help`` and
``forge plugins`` do not pay for numpy.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from forge_core.contracts.arrays import BoolArray, FloatArray, IntArray

_SMALLEST, _LARGEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max


def ints(value: Any, name: str) -> IntArray:
    """Whole numbers in one dimension, as int32.

    Args:
        value: what was given.
        name: of it, for messages.

    Raises:
        ValueError: they are something else, or do not fit int32.
    """
    if type(value) is np.ndarray and value.dtype == np.int32 and value.ndim == 1:
        return value
    array = _row(value, name)
    if not array.size:
        return array.astype(np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {_kind(array)}; only whole numbers are allowed")
    if array.dtype.itemsize >= 4 and (array.min() < _SMALLEST or array.max() > _LARGEST):
        raise ValueError(f"{name} holds a number that does not fit 32 bits")
    return array.astype(np.int32, copy=False)


def floats(value: Any, name: str) -> FloatArray:
    """Numbers in one dimension, as float32. Arguments and errors as for ``ints``."""
    if type(value) is np.ndarray and value.dtype == np.float32 and value.ndim == 1:
        return value
    array = _row(value, name)
    if array.size and array.dtype.kind not in "fiub":
        raise ValueError(f"{name} holds {_kind(array)}; only numbers are allowed")
    return array.astype(np.float32, copy=False)


def flags(value: Any, name: str) -> BoolArray:
    """True or False (or 1 or 0) in one dimension, as bool. Arguments and errors as for ``ints``."""
    if type(value) is np.ndarray and value.dtype == np.bool_ and value.ndim == 1:
        return value
    array = _row(value, name)
    if array.size and (
        array.dtype.kind not in "iub" or not np.logical_or(array == 0, array == 1).all()
    ):
        what = "numbers other than 0 and 1" if array.dtype.kind in "iuf" else _kind(array)
        raise ValueError(f"{name} holds {what}; only True and False are allowed")
    return array.astype(np.bool_, copy=False)


def number_or_floats(value: Any, length: int, name: str) -> float | FloatArray:
    """One number, or one for each of ``length`` tokens, as float32.

    Raises:
        ValueError: it is neither; names it.
    """
    if type(value) is float:
        return value
    if not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        try:
            array = _numpy(value)
        except (TypeError, ValueError):
            array = np.asarray(None)
        if array.ndim or array.dtype.kind not in "fiub":
            raise ValueError(
                f"{name} is a {type(value).__name__}; a number or one number for each token is "
                "allowed"
            )
        return float(array)
    if isinstance(value, str | bytes | dict | set | frozenset):
        raise ValueError(
            f"{name} is a {type(value).__name__}; a number or one number for each token is allowed"
        )
    array = floats(value, name)
    if len(array) != length:
        raise ValueError(f"{name} has {len(array)} numbers for {length} tokens")
    return array


def equal(one: Any, other: Any) -> bool:
    """Whether two values of token data are the same: arrays by their numbers."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def joined(parts: Sequence[Any], dtype: Any) -> Any:
    """Arrays end to end; one array is taken as it is, none is an empty one."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def packed(array: npt.NDArray[Any], protocol: SupportsIndex) -> pickle.PickleBuffer | bytes:
    """An array for a pickle: its bytes, and nothing for each of its elements. From protocol 5 on it
    can be written to on the other side."""
    if operator.index(protocol) < 5:
        return array.tobytes()
    return pickle.PickleBuffer(np.ascontiguousarray(array).data)


def _row(value: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(value, str | bytes | dict | set | frozenset):
        raise ValueError(f"{name} is a {type(value).__name__}; a list, array or tensor is allowed")
    try:
        array = _numpy(value)
    except (TypeError, ValueError) as error:  # rows of unequal length, and the like
        raise ValueError(f"{name} is not a row of numbers: {error}") from error
    if array.ndim != 1:
        what = f"has {array.ndim} dimensions" if array.ndim else f"is a {type(value).__name__}"
        raise ValueError(f"{name} {what}; one number for each token is allowed")
    return array


def _numpy(value: Any) -> npt.NDArray[Any]:
    if hasattr(value, "detach"):  # a tensor
        tensor = value.detach().cpu()
        # numpy has no bfloat16; every float type below float32 fits into it.
        value = tensor.float() if tensor.is_floating_point() and tensor.itemsize < 4 else tensor
        value = value.numpy()
    return np.asarray(value)


def _kind(array: npt.NDArray[Any]) -> str:
    """What an array holds, in words, such as ``a str``."""
    if array.dtype.kind in "OUS":
        odd = [item for item in array.tolist() if not isinstance(item, int | float)]
        return f"a {type(odd[0]).__name__}" if odd else "numbers that are too large"
    return f"numbers of type {array.dtype}"
