"""MOSAIC: start, watch and compare reinforcement-learning runs."""
