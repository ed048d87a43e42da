"""The edge of a run: header values read outside, the proxy that puts them in, and a box that trusts its certificates."""
