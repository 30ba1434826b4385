"""Sweeps: many verification instances, each in a process of its own, with a journal of the answers."""
