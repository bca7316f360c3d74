"""A vLLM start-up log, read: its memory, its time, why it failed, and the line behind it.

`read_starts` reads a log of any size in one pass. A `Start` holds the figures as they are printed;
`memory_sum`, `phases_of`, `findings_of` and `reconstructed_line` say what they mean.
"""

from kvplan.offline.startup_log.configuration import reconstructed_line
from kvplan.offline.startup_log.facts import Rank, Refusal, Start
from kvplan.offline.startup_log.findings import Finding, findings_of
from kvplan.offline.startup_log.memory_sum import MemorySum, memory_sum
from kvplan.offline.startup_log.phases import PHASES, Phases, phases_of
from kvplan.offline.startup_log.read import NoStart, read_starts

__all__ = [
    "PHASES",
    "Finding",
    "MemorySum",
    "NoStart",
    "Phases",
    "Rank",
    "Refusal",
    "Start",
    "findings_of",
    "memory_sum",
    "phases_of",
    "read_starts",
    "reconstructed_line",
]
