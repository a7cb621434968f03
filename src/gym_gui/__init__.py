"""The name under which MOSAIC's GUI is also started."""
