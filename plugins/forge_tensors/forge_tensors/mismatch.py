"""How far the trainer's logprobs lie from the sampler's, for the tokens that were sampled.

Two engines never agree bit for bit, and old weights widen the gap. It is measured on every step.
"""

from __future__ import annotations

import torch

from forge_tensors.metric_sums import MetricSums

FIELD = "sampler_logprobs"


def add_mismatch(metrics: MetricSums, logprobs: torch.Tensor, sampler: torch.Tensor) -> None:
    """Add the mismatch of N tokens to a step's metrics.

    With ``d = logprobs - sampler``:

    - ``mismatch/logprob_abs_mean`` and ``mismatch/logprob_abs_max``: of ``|d|``, in nats;
    - ``mismatch/kl``: of the trainer's policy from the sampler's, KL(sampler || trainer), estimated
      from the sampler's own samples as the mean of ``exp(d) - 1 - d`` (k3 in J. Schulman,
      "Approximating KL divergence", 2020): unbiased and never negative.

    Args:
        metrics: to add to.
        logprobs: under the weights about to be updated, at the sampler's temperature. [N]
        sampler: as the sampler reported them. [N]
    """
    if logprobs.numel() == 0:
        return
    difference = logprobs.detach() - sampler
    size = difference.abs()
    metrics.add("mismatch/logprob_abs_mean", size.sum(), size.numel())
    metrics.add_max("mismatch/logprob_abs_max", size.max())
    wide = difference.double()  # exp overflows float32 above 88 nats
    metrics.add("mismatch/kl", (wide.expm1() - wide).sum(), size.numel())
