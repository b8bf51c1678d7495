"""Peak memory and time of token logprobs: the naive way, in chunks, and whole distributions.

    python benchmarks/logprob_memory.py [--tokens 4096] [--vocabulary 151936] [--hidden 256]

Each way runs in a process of its own: forward and backward from hidden states and a head to the
gradients of both. What counts is peak resident memory over what the inputs and the gradient of the
head take, which all ways need. ``whole`` computes the same logprobs from whole distributions, as a
loss's ``terms`` may, with entropy and the 64 most probable tokens beside them. Exits 1 if chunks
need more than a quarter of the naive way.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import torch

from forge_core import OutputNeeds
from forge_tensors.logprobs import token_logprobs

LIMIT = 0.25
WAYS = ("naive", "chunked", "whole")


def measure(way: str, tokens: int, vocabulary: int, hidden_size: int) -> dict[str, float]:
    """Peak memory over the baseline, in MB, and seconds of one forward and backward pass."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, hidden_size, generator=generator, requires_grad=True)
    weight = torch.randn(vocabulary, hidden_size, generator=generator) / hidden_size**0.5
    weight.requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=generator)
    weight.grad = torch.zeros_like(weight)
    hidden.grad = torch.zeros_like(hidden)
    baseline = peak()
    start = time.perf_counter()
    if way == "naive":
        log_p = torch.log_softmax(hidden @ weight.T, -1)
        logprobs = log_p.gather(1, targets[:, None]).squeeze(1)
    elif way == "chunked":
        logprobs = token_logprobs(hidden, weight, targets).logprobs
    else:

        def chosen(log_softmax: torch.Tensor, tokens: slice | torch.Tensor) -> torch.Tensor:
            return log_softmax.gather(1, targets[tokens, None]).squeeze(1)

        needs = OutputNeeds(entropy=True, top_logprobs=64, log_softmax=True)
        scores = token_logprobs(hidden, weight, targets, needs=needs, terms=chosen)
        assert scores.terms is not None
        logprobs = scores.terms
    logprobs.mean().backward()
    seconds = time.perf_counter() - start
    check = float(logprobs.detach().double().mean())
    gradient = float(weight.grad.double().norm())
    return {
        "megabytes": peak() - baseline,
        "seconds": seconds,
        "mean": check,
        "gradient": gradient,
    }


def peak() -> float:
    """Highest resident memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--hidden", type=int, default=256)
    arguments = parser.parse_args()
    results = {}
    for way in WAYS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            sizes = (arguments.tokens, arguments.vocabulary, arguments.hidden)
            results[way] = pool.submit(measure, way, *sizes).result()
    naive, *chunks = (results[way] for way in WAYS)
    ratio = max(each["megabytes"] for each in chunks) / naive["megabytes"]
    same = all(
        abs(naive[key] - each[key]) <= 1e-5 * abs(naive[key])
        for each in chunks
        for key in ("mean", "gradient")
    )
    for way in WAYS:
        print(f"{way:8} {results[way]['megabytes']:9,.0f} MB {results[way]['seconds']:7.2f} s")
    print(f"memory   {ratio:.3f} of the naive way (at most {LIMIT})")
    print(json.dumps({"ratio": ratio, "same_result": same, **results}))
    good = ratio <= LIMIT and same
    print("OK" if good else "FAILED")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
