"""``forge doctor``: what is installed, what this machine has, and what of it stops runs."""
