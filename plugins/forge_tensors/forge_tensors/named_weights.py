"""The weights of a loaded model under the names that they have in Hugging Face folders."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def named_weights(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Every weight once, without copying: tied ones under the first of their names.

    Transformers keeps some weights in another form than in the folder (the experts of a mixture
    fused, for instance); these are turned back, which copies them.
    """
    from transformers.core_model_loading import revert_weight_conversion

    weights: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    for name, tensor in model.state_dict().items():
        place = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        weights[name] = tensor
    reverted: dict[str, torch.Tensor] = revert_weight_conversion(model, weights)
    return reverted
