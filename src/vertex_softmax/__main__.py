"""`python -m vertex_softmax` is the command `vertex`.

A process that was started with VERTEX_PARENT set to the id of its parent ends when that parent does, however it ends:
no computation outlives the sweep that asked for it. On Linux; elsewhere the variable says nothing.
"""

from __future__ import annotations

from vertex_softmax.runs.processes import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    from vertex_softmax.cli.main import main

    main()
