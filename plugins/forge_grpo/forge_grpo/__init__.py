"""GRPO and its relatives, verifiable rewards."""
