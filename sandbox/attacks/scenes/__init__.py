"""What is tried around a run: by what a program leaves behind, prints or outlives, and by who starts it how."""
