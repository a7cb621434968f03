"""The commands of `mosaic`, a module per noun; nothing here imports gRPC or rich before a command runs."""
