"""The trainer daemon: runs that outlive whoever started them."""
