"""Where runs are executed."""
