"""Plugins of an app: ``manager`` finds and checks them, ``catalog`` looks components up by name."""
