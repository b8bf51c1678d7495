"""Policy-gradient losses, one file each."""
