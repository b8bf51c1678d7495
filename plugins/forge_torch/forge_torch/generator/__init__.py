"""The generator ``torch``, in the order a request meets its parts.

``generator`` (asyncio front, weights) -> ``engine`` (which rows run) -> ``hf_decoder`` or
``llama_decoder`` (next-token logits, with ``cache``) -> ``sampling`` (tokens and logprobs).
"""
