"""Leased networks. This package decides nothing about policy and knows nothing of bubblewrap."""
