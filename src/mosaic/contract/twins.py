"""How much of a GPU the copy of a replay memory may take: the run keeps to it, the dry run tells it."""

# A GPU's memory is for networks first, and page-locked memory cannot be swapped out.
TWIN_SHARE, LARGEST_TWIN = 0.5, 8 * 2**30


def room(free: float, largest: float = LARGEST_TWIN) -> float:
    """Bytes, where so many are free."""
    return min(largest, TWIN_SHARE * free)
