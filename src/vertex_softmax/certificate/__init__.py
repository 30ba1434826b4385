"""Certificates: proofs that hold in spite of floating point, and the independent checker of them (checker/)."""
