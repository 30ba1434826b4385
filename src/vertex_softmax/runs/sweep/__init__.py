"""Many instances of verification, each in a process of its own, with a journal."""
