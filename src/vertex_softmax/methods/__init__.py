"""The methods that a user can name: ways to bound an objective, from interval arithmetic up to branch and bound."""
