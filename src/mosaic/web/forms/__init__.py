"""The forms that submit runs: one module each, registered by its `add`."""
