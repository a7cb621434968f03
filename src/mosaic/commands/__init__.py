"""The commands of `mosaic`, one module per noun. Importing one loads neither gRPC nor rich."""
