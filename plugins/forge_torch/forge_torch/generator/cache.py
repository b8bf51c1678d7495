"""The keys and values of all running rows, aligned at their newest token.

Every row ends in the same column, so that a step writes one column for all rows with a plain slice,
and attention reads one rectangle: from the start of the longest row to that column.

                 first            end
    row 0   . . . a a a a a a a a a |
    row 1   . . . . . . b b b b b b |     starts = [3, 6, 9]
    row 2   . . . . . . . . . c c c |

Rows that finish leave no hole: the last rows take their places. Columns before the longest row's
start are given up when the right edge is reached.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_SPARE_COLUMNS = 64
"""Steps that a grown or shifted store has room for, at least half of these."""


_Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""


class KVCache:
    """Keys and values by layer, for B rows of unequal length.

    Stores grow as needed and are kept when rows leave. What lies outside a row is finite but
    meaningless; ``visible`` says what counts.

    Attributes:
        starts: first column of each row. [B]
        first: column where the longest row starts.
        end: column behind the newest token of every row.
        ragged: whether the rows differ in length.
        new_columns: how many columns the forward pass under way writes.

    Args:
        device: where the stores are.
        transposed_keys: keep keys as [rows, heads, dim, columns], the layout in which a CPU
            multiplies a single query with them fastest, instead of [rows, heads, columns, dim].
    """

    def __init__(self, device: torch.device, *, transposed_keys: bool = False) -> None:
        self.starts: list[int] = []
        self.first = 0
        self.end = 0
        self.ragged = False
        self.new_columns = 0
        self._device = device
        self._dims = (3 if transposed_keys else 2, 2)  # the columns' dimension in keys and values
        self._stores: dict[int, _Pair] = {}
        self._running: dict[int, _Pair] = {}  # the stores' first B rows
        self._rows = 0
        self._columns = 0
        self._start_column: torch.Tensor | None = None
        self._visible: torch.Tensor | None = None

    @property
    def length(self) -> int:
        """Tokens of the longest row, T."""
        return self.end - self.first

    def begin(self, lengths: Sequence[int]) -> None:
        """Start a new cache with rows of these lengths, which the next forward pass writes."""
        self._rows = len(lengths)
        self._columns = self.end = self.new_columns = max(lengths)
        self._set_starts([self.end - length for length in lengths])

    def extend(self) -> None:
        """Add the column that the next forward pass writes."""
        if self.end == self._columns:
            live = self.length
            # Shifting must stay rare against the attention over the same columns.
            if self._columns - live < _SPARE_COLUMNS // 2:
                columns = live + max(_SPARE_COLUMNS, live // 2)
            else:
                columns = self._columns
            self._move(end=live, rows=self._rows, columns=columns)
        self.end += 1
        self.new_columns = 1

    def write(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> _Pair:
        """Store a layer's new columns and return all that its rows may see.

        Args:
            layer: index; layers need not have equal heads or sizes.
            key: [B, heads, new columns, dim]
            value: [B, heads, new columns, dim]

        Returns:
            Views of keys ([B, heads, T, dim], or [B, heads, dim, T] if transposed) and values
            [B, heads, T, dim].
        """
        keys_dim, values_dim = self._dims
        if keys_dim == 3:
            key = key.transpose(2, 3)
        if layer not in self._running:
            keys, values = self._store_like(key, keys_dim), self._store_like(value, values_dim)
            self._stores[layer] = (keys, values)
            self._running[layer] = (keys[: len(self.starts)], values[: len(self.starts)])
        keys, values = self._running[layer]
        past = self.end - self.new_columns
        keys.narrow(keys_dim, past, self.new_columns).copy_(key)
        values.narrow(values_dim, past, self.new_columns).copy_(value)
        return self._live(keys, values)

    def write_column(self, layer: int, key: torch.Tensor, value: torch.Tensor) -> _Pair:
        """``write`` of a single column. Key and value [B, heads, dim]."""
        keys, values = self._running[layer]
        keys_dim, values_dim = self._dims
        keys.select(keys_dim, self.end - 1).copy_(key)
        values.select(values_dim, self.end - 1).copy_(value)
        return self._live(keys, values)

    def positions(self) -> torch.Tensor:
        """Positions of the new columns in their rows; 0 before a row's start. [B, new columns]"""
        columns = torch.arange(self.end - self.new_columns, self.end, device=self._device)
        return (columns - self._starts_tensor()).clamp_(min=0)

    def visible(self) -> torch.Tensor:
        """Which of the columns that ``write`` returns belong to each row. [B, T] bool"""
        if self._visible is None:
            columns = torch.arange(self._columns, device=self._device)
            self._visible = columns >= self._starts_tensor()
        return self._visible[:, self.first : self.end]

    def adopt(self, other: KVCache, sources: Sequence[int]) -> None:
        """Append rows copied from another cache, where each may be copied several times.

        Args:
            other: with the same layers.
            sources: row of ``other`` for each new row here.
        """
        running, length = len(self.starts), other.length
        rows, end = running + len(sources), max(self.end, length)
        if rows > self._rows or end > self.end:
            enough = end <= self._columns
            self._move(
                end=end,
                rows=max(rows, self._rows),
                columns=self._columns if enough else end + _SPARE_COLUMNS,
            )
        chosen = torch.tensor(sources, device=self._device)
        for layer, stores in other._stores.items():
            if layer not in self._stores:
                keys, values = (
                    self._store_like(store, dim)
                    for store, dim in zip(stores, self._dims, strict=True)
                )
                self._stores[layer] = (keys, values)
            for mine, theirs, dim in zip(self._stores[layer], stores, self._dims, strict=True):
                copied = theirs.narrow(dim, other.first, length).index_select(0, chosen)
                mine[running:rows].narrow(dim, end - length, length).copy_(copied)
        self._set_starts(self.starts + [other.starts[row] + end - other.end for row in sources])

    def keep(self, order: Sequence[int]) -> None:
        """Keep only these rows, in this order.

        Args:
            order: old index of each row; rows that move take the place of one that leaves, as
                ``fill_holes`` arranges it.
        """
        for target, source in enumerate(order):
            if target == source:
                continue
            for stores in self._stores.values():
                for store, dim in zip(stores, self._dims, strict=True):
                    live = store.narrow(dim, self.first, self.length)
                    live[target].copy_(live[source])
        if not order:
            self.end = 0
        self._set_starts([self.starts[source] for source in order])

    def _live(self, keys: torch.Tensor, values: torch.Tensor) -> _Pair:
        length = self.end - self.first
        return (
            keys.narrow(self._dims[0], self.first, length),
            values.narrow(self._dims[1], self.first, length),
        )

    def _set_starts(self, starts: list[int]) -> None:
        self.starts = starts
        self.first = min(starts, default=self.end)
        self.ragged = max(starts, default=self.first) > self.first
        rows = len(starts)
        self._running = {
            layer: (keys[:rows], values[:rows]) for layer, (keys, values) in self._stores.items()
        }
        self._start_column = None
        self._visible = None

    def _starts_tensor(self) -> torch.Tensor:
        """[B, 1]"""
        if self._start_column is None:
            self._start_column = torch.tensor(self.starts, device=self._device).unsqueeze(-1)
        return self._start_column

    def _store_like(self, tensor: torch.Tensor, dim: int) -> torch.Tensor:
        # Zeros, not empty: 0 times a stray NaN would be NaN.
        shape = list(tensor.shape)
        shape[0], shape[dim] = self._rows, self._columns
        return tensor.new_zeros(shape)

    def _move(self, *, end: int, rows: int, columns: int) -> None:
        """Let the live columns end at ``end``, in stores of this size."""
        length, running = self.length, len(self.starts)
        resized = rows != self._rows or columns != self._columns
        self._rows, self._columns = rows, columns
        for layer, stores in self._stores.items():
            moved = []
            for store, dim in zip(stores, self._dims, strict=True):
                live = store[:running].narrow(dim, self.first, length)
                target = self._store_like(store, dim) if resized else store
                # In place, source and target may overlap.
                target[:running].narrow(dim, end - length, length).copy_(
                    live if resized else live.clone()
                )
                moved.append(target)
            self._stores[layer] = (moved[0], moved[1])
        offset, self.end = end - self.end, end
        self._set_starts([start + offset for start in self.starts])


def fill_holes(alive: Sequence[bool]) -> list[int]:
    """Which row goes where when some leave: the last ones take the places of those that left.

    Returns:
        Old index for each of the rows that stay; as few as possible move.
    """
    order = [row for row, stays in enumerate(alive) if stays]
    count = len(order)
    spare = [row for row in order if row >= count]
    return [row if alive[row] else spare.pop() for row in range(count)]
