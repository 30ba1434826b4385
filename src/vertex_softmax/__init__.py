"""Vertex: exact optimisation through softmax, and proofs that a softmax-attention network cannot be fooled.

The import alone reads nothing else: torch and the rest come with the first name that is used, so that the command line
can help, complete and complain without them.
"""

from typing import TYPE_CHECKING

from vertex_softmax.foundation.errors import VertexError

if TYPE_CHECKING:
    from vertex_softmax.bounds.branch_and_bound import Search
    from vertex_softmax.methods.options import Options
    from vertex_softmax.methods.verdict import Verdict
    from vertex_softmax.runs.attack import attack
    from vertex_softmax.runs.certification import Certification
    from vertex_softmax.runs.certified_radius import radius
    from vertex_softmax.runs.certify import bound, certify
    from vertex_softmax.runs.counterexamples import Attacking
    from vertex_softmax.runs.report.figures import plot_bounds as plot_bounds
    from vertex_softmax.runs.report.figures import plot_radii as plot_radii
    from vertex_softmax.runs.report.figures import plot_rates as plot_rates
    from vertex_softmax.runs.report.figures import plot_slack as plot_slack
    from vertex_softmax.runs.report.figures import plot_softmax_box as plot_softmax_box
    from vertex_softmax.sets import Box, LinfBall, LpBall, TokenBall, TokenChoices
    from vertex_softmax.sets.loading import load
    from vertex_softmax.softmax_box import (
        is_lower_bound,
        softmax_box_argmin,
        softmax_box_bounds,
        softmax_box_enclosure,
        softmax_box_max,
        softmax_box_min,
        softmax_box_probabilities,
    )

__version__ = "0.2.0"

__all__ = [
    "Attacking",
    "Box",
    "Certification",
    "LinfBall",
    "LpBall",
    "Options",
    "Search",
    "TokenBall",
    "TokenChoices",
    "Verdict",
    "VertexError",
    "attack",
    "bound",
    "certify",
    "is_lower_bound",
    "load",
    "radius",
    "softmax_box_argmin",
    "softmax_box_bounds",
    "softmax_box_enclosure",
    "softmax_box_max",
    "softmax_box_min",
    "softmax_box_probabilities",
]

_HOMES = (
    "softmax_box",
    "runs.certify",
    "runs.certification",
    "runs.counterexamples",
    "runs.attack",
    "runs.certified_radius",
    "methods.options",
    "sets",
)
"""Modules that the names come from; the primitive is first, the others stand on it."""
_PLOTS = ("plot_bounds", "plot_radii", "plot_rates", "plot_slack", "plot_softmax_box")
"""Pictures, with the extra `report`; not among the names of `import *`."""
_MODULES = ("bounds", "graph", "methods", "ops", "runs", "sets", "softmax_box")
"""Modules that are there with the names, as `vertex_softmax.sets`."""

if not TYPE_CHECKING:  # a type checker would take any name for one of ours

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _PLOTS:
            return getattr(import_module(f"{__name__}.runs.report.figures"), name)
        if name not in __all__ and name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()
        for home in [import_module(f"{__name__}.{home}") for home in _HOMES]:
            found.update({public: getattr(home, public) for public in __all__ if hasattr(home, public)})
        return found[name]

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, *_PLOTS, *_MODULES})
