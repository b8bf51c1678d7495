"""The versions that were tested together, as ``forge doctor`` compares them."""

TESTED_VERSIONS = {
    "torch": "2.13.0",
    "transformers": "5.19.0",
    "tokenizers": "0.23.3",
    "safetensors": "0.8.0",
    "numpy": "2.3.5",
    "pydantic": "2.14.3",
    "pydantic-settings": "2.16.3",
    "pluggy": "1.7.0",
    "click": "8.5.1",
    "rich": "15.0.0",
    "PyYAML": "6.0.3",
}
"""Distribution -> version, without a build's local part (``+cpu``)."""

TESTED_PYTHONS = {
    "3.11": "everything",
    "3.12": "the kernel and the default plugins",
    "3.13": "the kernel and the default plugins",
}
"""Python -> what was tested with it. The engines of our plugins have wheels for each of them."""
