"""Episodes of tasks, and groups of them between the sampler that makes them and the trainer."""
