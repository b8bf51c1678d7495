"""Replicas on this host: objects in the run's process, or processes of their own."""
