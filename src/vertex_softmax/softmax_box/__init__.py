"""Exact optimisation of c · softmax(s) over a box of scores: the theorem, fast, differentiable, and proved.

reference.py states it; native.py, torch_backend.py and triton_backend.py compute it; outward.py proves the rounding;
rigorous.py encloses it in ball arithmetic. affine.py bounds Σ p_j v_j from below by an affine function of scores and
values, affine_outward.py proves its rounding. choices.py minimises Σ p_j v_j where every key chooses one of finitely
many pairs (score, value); choices_outward.py proves its rounding, choices_rigorous.py has it in ball arithmetic. This
package imports nothing from the rest of Vertex but its errors.
"""

from vertex_softmax.softmax_box.affine import affine_minorant
from vertex_softmax.softmax_box.api import (
    ThresholdVertex,
    softmax_box_argmin,
    softmax_box_bounds,
    softmax_box_max,
    softmax_box_min,
)
from vertex_softmax.softmax_box.choices import (
    ChoiceMinimum,
    softmax_choices_argmin,
    softmax_choices_decide,
    softmax_choices_min,
    softmax_choices_terms,
)
from vertex_softmax.softmax_box.choices_rigorous import is_lower_bound_of_choices, softmax_choices_enclosure
from vertex_softmax.softmax_box.probabilities import softmax_box_probabilities
from vertex_softmax.softmax_box.rigorous import is_lower_bound, softmax_box_enclosure

__all__ = [
    "ChoiceMinimum",
    "ThresholdVertex",
    "affine_minorant",
    "is_lower_bound",
    "is_lower_bound_of_choices",
    "softmax_box_argmin",
    "softmax_box_bounds",
    "softmax_box_enclosure",
    "softmax_box_max",
    "softmax_box_min",
    "softmax_box_probabilities",
    "softmax_choices_argmin",
    "softmax_choices_decide",
    "softmax_choices_enclosure",
    "softmax_choices_min",
    "softmax_choices_terms",
]
