"""The forward proof: what is known of every node as a function of the input's unknowns, from the input to the output.

Read forms.py, pairs.py and ellipsoids.py first, then one file for each kind of op, then propagation.py.
"""
