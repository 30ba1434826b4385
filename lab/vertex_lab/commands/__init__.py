"""Commands that the laboratory adds to the command line: reproduce, bench, data and suite."""
