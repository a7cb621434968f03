"""The web GUI: forms, pages, the live view; it knows the daemon through its client only."""
