"""What is there for the sake of a compiler or a device, each with the figure that justifies it."""
