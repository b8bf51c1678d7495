"""Groups of episodes between the sampler that makes them and the trainer that takes them."""
