"""Review of hooks that somebody else wrote: run them in the recorder, and say what they do."""
