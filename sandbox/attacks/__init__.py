"""Attacks on the box, for everybody to run on their own host: ``python -m stockade.attacks``."""
