"""Ways for weights to travel: ``memory`` in one process, ``shm`` between processes of a host."""
