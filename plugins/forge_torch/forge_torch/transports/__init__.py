"""Ways for weights to travel: within a process (``memory``), a host (``shm``, ``cuda_ipc``)."""
