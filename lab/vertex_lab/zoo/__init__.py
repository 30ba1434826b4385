"""Small networks to verify: their architectures, how they are trained, and the data that comes with the package."""
