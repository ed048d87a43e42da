"""What is tried from inside. Each file is sent into the box as it stands: nothing but the standard library."""
