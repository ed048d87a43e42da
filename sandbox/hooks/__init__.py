"""Hooks of coding agents: what a host sends them, what their answers mean, and how they run confined."""
