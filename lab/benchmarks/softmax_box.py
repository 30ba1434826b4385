"""The primitive against the sort version: the same as `vertex bench softmax-box`.

python lab/benchmarks/softmax_box.py [--device cpu|cuda] [--out DIR] [--quick]
"""

import sys

from vertex_softmax.cli.main import main

sys.argv[1:1] = ["bench", "softmax-box"]
main()
