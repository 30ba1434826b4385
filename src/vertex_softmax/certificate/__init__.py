"""Certificates: proofs that survive floating point, and the checker that believes none of it (checker/)."""
