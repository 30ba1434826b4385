"""Commands that the laboratory adds to the command line: reproduce, bench and data."""
