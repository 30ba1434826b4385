"""Pictures and pages, made from result numbers alone: nothing here computes a bound."""
