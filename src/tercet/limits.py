"""Bounds on files, folders and requests that may come from others.

Code that reads such bytes checks these bounds before it allocates, loops or opens. A bound is far above what valid
files have and far below what harms a laptop. If a bound is exceeded, the message names it.
"""

# Servers. Sizes in bytes, times in seconds.
MAX_CONNECTIONS = 10_000  # about 20 KiB each; fewer if the limit of open files is lower
RESERVED_FILES = 32  # file descriptors reserved for model files, the log and libraries
MAX_HEAD_BYTES = 32 * 1024  # request line and headers; browsers send 1 to 8 KiB
HEAD_SECONDS = 15.0  # from the connection or the last response to the end of the request head
BODY_SECONDS = 30.0  # from the end of the head to the end of the body
READING_SECONDS = 30.0  # a client must read MIN_READ_BYTES of a pending response
MIN_READ_BYTES = 16 * 1024  # within READING_SECONDS
STALLED_SECONDS = 300.0  # of one step of a model or one batch, after which /health reports a stall
MAX_BODY_BYTES = 1 << 20  # of one request; default of `tercet serve --max-body`
MAX_BODIES_BYTES = 1 << 28  # of all concurrent requests; further ones are answered with a request to retry
MAX_FILLED_CHARACTERS = 16_000_000  # of all candidates for the masks of a request, each with its whole text
MAX_ERROR_CHARACTERS = 1000  # of an error message, which may quote the request
EXPLORER_CONNECTIONS = 256  # for local browsers, each of which opens six
MAX_LENGTH_PENALTY_POWER = 16.0  # a beam's alpha; papers use 0.6 to 2, and (10^6 tokens)^alpha must be a float64

# Settings. The ranges of single numbers are in their types; see `spec.py`.
YAML_BYTES = 1 << 20  # a recipe has about 3,000; an alphabet of all characters has 500,000
YAML_DEPTH = 32  # nested mappings; a recipe has 5
YAML_NODES = 10_000  # keys and values; a recipe has 200
NUMBER_CHARACTERS = 100  # of a number, a boolean or a null

# A run folder, as the dashboard reads it.
METRICS_BYTES = 1 << 30  # of a metrics.csv: about 10 million logged steps
METRICS_COLUMNS = 100
RECIPE_CHARACTERS = 2000  # of a displayed value
SAMPLE_BYTES = 1 << 20  # of a samples/step-000250.txt
WATCHED_RUNS = 16  # on one page; more curves are hard to distinguish

# Data files, and the size of a request to a model.
FILE_BYTES = 1 << 40  # /proc/kcore reports 128 times as much
UNPACKED_BYTES = 4 << 20  # a compressed file may always unpack to this size,
UNPACKED_RATIO = (
    200  # and beyond it to this many bytes per byte: text compresses 3 to 10 times, tables 50, zeros 1,000 times
)
DOWNLOAD_BYTES = 1 << 30  # the largest named dataset has 24 MB
LINE_CHARACTERS = 16 << 20  # of a line, a JSON object or a row, which may become 500 MB of objects
LABEL_CHARACTERS = 1000
LABELS_OF_A_TEXT = 10_000  # if a text may have several labels
LABEL_NUMBER = 10**15  # the largest numeric label; its inverse is the smallest deviation. A float32 ends at 10^38
PROMPT_BYTES = 16 << 20
FOLDER_ENTRIES = 1_000_000  # of a folder of texts, which takes seconds to list
POOL_CHARACTERS = 16 << 20  # of lines that are read ahead and sorted by length

SAMPLES = 1_000_000  # per prompt; generated in batches
NEW_TOKENS = 1 << 20  # per text: hours of generation, and 200 bytes each
DRAFT_TOKENS = 1024  # per forward pass
CANDIDATES = 1 << 20  # of a vocabulary
BEAM = 1024  # hypotheses per sentence, each with logits of vocabulary size
BATCH_TOKENS = 1 << 22  # per batch, including padding
POOL_LINES = 1 << 20

# Model folders: files

MAX_SETTINGS_BYTES = 8 << 20  # a config, card, generation config or shard index, which normally have kilobytes
MAX_VOCABULARY_BYTES = 64 << 20  # the largest tokenizer.json in use (262,144 ids) has 33 MB
MAX_PIECES_BYTES = 8 << 20  # a sentencepiece model; the largest in use have 5 MB
MAX_TEMPLATE_BYTES = 1 << 20  # the longest chat templates in use have a few thousand bytes
MAX_CARD_BYTES = 4 << 20  # a README.md
MAX_HEADER_BYTES = 16 << 20  # of a safetensors file: about 100 bytes per tensor
MAX_PICKLE_BYTES = 4 << 20  # of a pytorch_model.bin without its numbers: about 100 bytes per tensor
MAX_GGUF_HEADER_BYTES = 64 << 20  # settings and names; the largest vocabularies need a quarter of it
MAX_GGUF_ITEMS = 4 << 20  # of all lists in total: tokens, scores, types and merges
MAX_TENSORS = 1 << 16  # a model of 1,024 layers has about 20,000
MAX_JSON_DEPTH = 64
MAX_DIGITS = 32  # of a number in JSON

# Model folders: sizes

MAX_IDS = 1 << 20  # the largest vocabularies have 262,144
MAX_SHARED_NAMES = 4  # names of one tensor in a pickle; the embedding of Marian has four

# Model folders: tokenizers

MAX_TOKEN_CHARACTERS = 1024  # of one token; runs of spaces and dashes have 128
MAX_STEPS = 16  # of a normalizer, a pre-tokenizer, a decoder
MAX_GROWTH = 64  # characters that one character may become in normalization; NFKC makes 18 of one
MAX_WORDPIECE_CHARACTERS = 1000  # of a word, whose tokenization takes quadratic time; BERT's limit is 100

# Model folders: chat templates

TEMPLATE_SECONDS = 2  # normal templates take a millisecond
MAX_TEMPLATE_MEMORY = 512 << 20
MAX_PROMPT_BYTES = 32 << 20  # output of a template
