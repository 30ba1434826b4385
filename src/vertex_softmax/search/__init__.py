"""Looking for inputs: attacks, which find counterexamples and say how good a bound could at best be."""
