"""How much is believed of what a file, a folder or a request says of itself: the one list of bounds.

Whoever reads bytes that someone else may have written asks here before it allocates, loops or opens. A bound is far
above what honest files have and far below what hurts a laptop; where one is met, the message names it.
"""

# The service, and everything that listens. Sizes in bytes, times in seconds.
MAX_CONNECTIONS = 10_000  # a connection holds some 20 KiB; where fewer files may be open, there are fewer
RESERVED_FILES = 32  # kept free of connections: model files, the log, what the libraries open
MAX_HEAD_BYTES = 32 * 1024  # of a request's line and headers; browsers send 1 to 8 KiB
HEAD_SECONDS = 15.0  # from the connection, or from the last answer, to the end of a request's head
BODY_SECONDS = 30.0  # from the head to the end of the body
READING_SECONDS = 30.0  # in which a client must take some of an answer that waits for it,
MIN_READ_BYTES = 16 * 1024  # and so much of it
MAX_BODY_BYTES = 1 << 20  # of one request; `tercet serve --max-body` says another
MAX_BODIES_BYTES = 1 << 28  # of all requests that are read or answered at a time; more are told to come back
MAX_ERROR_CHARACTERS = 1000  # of an error's message, which may quote the request
EXPLORER_CONNECTIONS = 256  # a page is for one's own browser, which opens six
MAX_LENGTH_PENALTY_POWER = 16.0  # a beam's alpha; papers use 0.6 to 2, and (10^6 tokens)^alpha must be a float64

# Settings. The ranges of single numbers stand in their types: `spec.py`.
YAML_BYTES = 1 << 20  # a recipe has some 3,000; an alphabet of all characters that there are, 500,000
YAML_DEPTH = 32  # mappings in mappings; a recipe has 5
YAML_NODES = 10_000  # keys and values; a recipe has 200
NUMBER_CHARACTERS = 100  # of a number, a switch or a null
