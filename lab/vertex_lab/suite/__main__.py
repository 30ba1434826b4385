"""`python -m vertex_lab.suite`: the command `vertex suite` where the laboratory is not installed."""

from vertex_lab.commands.suite import app

if __name__ == "__main__":
    app()
