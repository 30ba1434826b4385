"""What every other package may use: errors, rounding constants, and files that are read and written as a whole."""
