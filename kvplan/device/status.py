"""What became of requests, and what a pool left out."""

from __future__ import annotations

from enum import IntEnum, IntFlag


class RequestStatus(IntEnum):
    """What became of a request in a batch."""

    OK = 0
    OUT_OF_BLOCKS = 1  #: nothing was taken for it
    TABLE_TOO_NARROW = 2  #: the table's rows, or the output, have no room for it
    TOO_MANY_TOKENS = 3  #: its tokens go beyond the slot mapping
    BAD_REQUEST = 4  #: a row, length or count out of range


class PoolError(IntFlag):
    """What a pool was asked for that it left out."""

    BAD_BLOCK_ID = 1
    BLOCK_NOT_IN_USE = 2
    TOO_MANY_FREE = 4
    IDS_LEFT_OUT = 8


class WindowKind(IntEnum):
    """Which tokens below the next one stay readable."""

    NONE = 0  #: all
    SLIDING = 1  #: the last ``window_tokens``
    CHUNKED = 2  #: those of the next token's chunk of ``window_tokens``
