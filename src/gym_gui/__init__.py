"""The alternative package name that also starts MOSAIC's GUI."""
