"""The share of a GPU that the copy of a replay memory may use: enforced by the run, and shown by the dry run."""

# A GPU's memory is for networks first, and page-locked memory cannot be swapped out.
TWIN_SHARE, LARGEST_TWIN = 0.5, 8 * 2**30


def room(free: float, largest: float = LARGEST_TWIN) -> float:
    """Return the bytes that a copy may use when `free` bytes are free."""
    return min(largest, TWIN_SHARE * free)
