"""What is checked about handlers: their entries, their commands, the code that they run. Nothing is executed."""
