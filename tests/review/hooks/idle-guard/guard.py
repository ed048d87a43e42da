"""A guard by name."""

import sys

sys.stdin.read()
