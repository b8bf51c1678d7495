"""Built for another kernel: importing this means not having looked at the version."""

raise AssertionError("imported although the version does not fit")
