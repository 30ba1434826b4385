"""What is asked of a network: properties, and the files they are written in."""
