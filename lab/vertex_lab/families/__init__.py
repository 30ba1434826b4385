"""Tiny models of known families, unmodified from their libraries, each with a question that Vertex has to answer."""
