"""What a user can name: the ways to bound an objective, from interval arithmetic up."""
