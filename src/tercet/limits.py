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
STALLED_SECONDS = 300.0  # of one step of a model, or one batch: longer, and /health says that it hangs
MAX_BODY_BYTES = 1 << 20  # of one request; `tercet serve --max-body` says another
MAX_BODIES_BYTES = 1 << 28  # of all requests that are read or answered at a time; more are told to come back
MAX_FILLED_CHARACTERS = 16_000_000  # of all candidates for the masks of a request, each of them with the text around it
MAX_ERROR_CHARACTERS = 1000  # of an error's message, which may quote the request
EXPLORER_CONNECTIONS = 256  # a page is for one's own browser, which opens six
MAX_LENGTH_PENALTY_POWER = 16.0  # a beam's alpha; papers use 0.6 to 2, and (10^6 tokens)^alpha must be a float64

# Settings. The ranges of single numbers stand in their types: `spec.py`.
YAML_BYTES = 1 << 20  # a recipe has some 3,000; an alphabet of all characters that there are, 500,000
YAML_DEPTH = 32  # mappings in mappings; a recipe has 5
YAML_NODES = 10_000  # keys and values; a recipe has 200
NUMBER_CHARACTERS = 100  # of a number, a switch or a null

# A run's folder, as its page reads it.
METRICS_BYTES = 1 << 30  # of a metrics.csv: some 10 million logged steps
METRICS_COLUMNS = 100
RECIPE_CHARACTERS = 2000  # of a value that is shown
SAMPLE_BYTES = 1 << 20  # of a samples/step-000250.txt
WATCHED_RUNS = 16  # on one page; more cannot be told apart

# Data: files of text, and how much of a model is asked for in one go.
FILE_BYTES = 1 << 40  # /proc/kcore claims 128 times as much
UNPACKED_BYTES = 4 << 20  # a packed file may always become so much text,
UNPACKED_RATIO = 200  # and beyond that so much for a byte: text packs 3 to 10 times, tables 50; zeros 1,000 times
DOWNLOAD_BYTES = 1 << 30  # the largest named dataset has 24 MB
LINE_CHARACTERS = 16 << 20  # of a line, a JSON object or a table's row, of which 500 MB of objects may be made
LABEL_CHARACTERS = 1000
LABELS_OF_A_TEXT = 10_000  # where it may have several
LABEL_NUMBER = 10**15  # the largest label that is a number; one over it the least deviation. A float32 ends at 10^38
PROMPT_BYTES = 16 << 20
FOLDER_ENTRIES = 1_000_000  # of a folder of texts: some seconds to walk through
POOL_CHARACTERS = 16 << 20  # of lines that are read before they are sorted by length

SAMPLES = 1_000_000  # of a prompt: they are worked off a few at a time
NEW_TOKENS = 1 << 20  # of a text: some hours of writing, and 200 bytes each
DRAFT_TOKENS = 1024  # that are guessed for one pass
CANDIDATES = 1 << 20  # shown of a vocabulary
BEAM = 1024  # hypotheses of a sentence, each with a row of logits as wide as the vocabulary
BATCH_TOKENS = 1 << 22  # of a batch, padding included
POOL_LINES = 1 << 20

# Model folders: files

MAX_SETTINGS_BYTES = 8 << 20  # a config, a card, a generation config, a map of shards: honest ones have kilobytes
MAX_VOCABULARY_BYTES = 64 << 20  # the largest tokenizer.json in use (262,144 ids) has 33 MB
MAX_PIECES_BYTES = 8 << 20  # a sentencepiece model; the largest in use have 5 MB
MAX_TEMPLATE_BYTES = 1 << 20  # the longest chat templates in use have a few thousand
MAX_CARD_BYTES = 4 << 20  # a README.md
MAX_HEADER_BYTES = 16 << 20  # of a safetensors file: some 100 bytes a tensor
MAX_PICKLE_BYTES = 4 << 20  # of a pytorch_model.bin without its numbers: some 100 bytes a tensor
MAX_GGUF_HEADER_BYTES = 64 << 20  # settings and names; the largest vocabularies take a quarter of it
MAX_GGUF_ITEMS = 4 << 20  # of all lists together: tokens, their scores, their kinds and merges
MAX_TENSORS = 1 << 16  # a model of 1,024 layers has some 20,000
MAX_JSON_DEPTH = 64
MAX_DIGITS = 32  # of a number in JSON

# Model folders: sizes

MAX_IDS = 1 << 20  # the largest vocabularies have 262,144
MAX_SHARED_NAMES = 4  # names that one tensor of a pickle may go by: a Marian's embedding has four

# Model folders: tokenizers

MAX_TOKEN_CHARACTERS = 1024  # of one token; runs of spaces and dashes have 128
MAX_STEPS = 16  # of a normalizer, a pre-tokenizer, a decoder
MAX_GROWTH = 64  # how many characters one may become before it is cut; NFKC alone makes 18 of one
MAX_WORDPIECE_CHARACTERS = 1000  # of a word that is cut into pieces, which takes their square; BERT's are 100

# Model folders: chat templates

TEMPLATE_SECONDS = 2  # an honest one takes a millisecond
MAX_TEMPLATE_MEMORY = 512 << 20
MAX_PROMPT_BYTES = 32 << 20  # what a template may make of messages
