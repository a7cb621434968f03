"""The tabs of the run page, one module each."""
