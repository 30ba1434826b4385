"""Searches that answer questions: attacks, which look for counterexamples, and the cascade of attacks and bounds."""
