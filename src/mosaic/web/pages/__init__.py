"""The pages: one module each, registered by its `add`."""
