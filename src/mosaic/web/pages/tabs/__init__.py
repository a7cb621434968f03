"""A module per tab of the run page."""
