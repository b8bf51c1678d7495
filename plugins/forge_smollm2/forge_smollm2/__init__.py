"""SmolLM2-135M-Instruct: a small real model for trying things out and for tests."""
