"""Pictures and HTML pages of results. Nothing here computes a bound."""
