"""One branch-and-bound tree shared among workers: processes of this machine, or of a Ray cluster."""
