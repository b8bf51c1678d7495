"""The Forge peer of the speed comparison; same command line and result line as the others."""

from __future__ import annotations

import sys

from peer import parse_arguments


def main() -> int:
    parse_arguments(__doc__)
    print("forge peer not written yet", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
