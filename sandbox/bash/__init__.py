"""A bash for models: commands in sandboxes of their own, and results that say what the sandbox did."""
