"""Reference generator, trainer and transports, wherever torch runs."""
