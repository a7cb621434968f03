"""python -m gym_gui: the same as mosaic up."""
