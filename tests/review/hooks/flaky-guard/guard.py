"""Draws its exit code from a hat."""

import os
import sys

sys.stdin.read()
sys.exit(os.urandom(1)[0])
