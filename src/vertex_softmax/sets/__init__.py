"""The sets that the input of a network may come from: boxes, balls in the maximum, Euclidean and ℓ1
norms, choices of words; products of sets, for models of several inputs, and unions.

ball = LinfBall(images, 0.02, clip=(0, 1))
len(ball), ball.lower, ball.upper, ball.centre
ball[:10]                                       # the sets of the first ten inputs
"""

from vertex_softmax.sets.base import InputSet
from vertex_softmax.sets.box import Box
from vertex_softmax.sets.linf_ball import LinfBall
from vertex_softmax.sets.lp_ball import LpBall
from vertex_softmax.sets.product import Product
from vertex_softmax.sets.token_ball import TokenBall
from vertex_softmax.sets.token_choices import TokenChoices
from vertex_softmax.sets.union import Union

__all__ = ["Box", "InputSet", "LinfBall", "LpBall", "Product", "TokenBall", "TokenChoices", "Union"]
