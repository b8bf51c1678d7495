"""Forge plugin: recipe ``ppo``, proximal policy optimization with a critic."""
