"""How long start-up planning takes here, beside vLLM where it can be imported.

The kinds of work: `planning` a whole engine, `placement` of the tensors of one worker,
`construction` of a block pool, `allocation` from it and its `memory`, the search for an approximate
divisor (`gcd`), and `scale`, far beyond any model. Each is timed on several sides in one process,
taking turns: vLLM's own functions, kvplan from native objects, kvplan as the drop-in with vLLM's
objects in and out, and the C++ library under Google Benchmark where its executables are built. The
answers are compared before anything is timed.
"""

from kvplan.bench.report import Report, Row
from kvplan.bench.run import DEFAULT_WORKS, WORKS, Settings, run

__all__ = ["DEFAULT_WORKS", "WORKS", "Report", "Row", "Settings", "run"]
