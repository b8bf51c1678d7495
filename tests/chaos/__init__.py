"""The chaos campaign: seeded cases that try to make a run lose work, lie or hang.

``python -m tests.chaos --help`` in the project's root, or ``scripts/chaos.sh``. Each area is a
module with ``AREA``; ``cases.py`` has what they share.
"""
