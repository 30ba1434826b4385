"""The accuracy of a small transformer over ALL of its inputs, proved: see __main__.py."""
