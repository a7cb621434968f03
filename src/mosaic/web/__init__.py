"""The web GUI: forms, pages, the live view. It accesses the daemon only through its client."""
