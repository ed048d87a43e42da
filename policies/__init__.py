"""What is allowed: the policy model, its layers, and the decision that follows from mode, provenance and host."""
