"""Bounds on files, folders and requests that may come from an untrusted source.

Code that reads such input checks these bounds before it allocates memory, runs a loop or opens a file. A bound is far
above the sizes of valid input and far below what harms a laptop. The error message for larger input contains the bound.
"""

# Servers. Sizes in bytes, times in seconds.
MAX_CONNECTIONS = 10_000  # about 20 KiB each; fewer if the limit of open files is lower
RESERVED_FILES = 32  # file descriptors reserved for model files, the log and libraries
MAX_HEAD_BYTES = 32 * 1024  # request line and headers; browsers send 1 to 8 KiB
HEAD_SECONDS = 15.0  # maximum time from the connection or the last response to the end of the request head
BODY_SECONDS = 30.0  # maximum time from the end of the head to the end of the body
READING_SECONDS = 30.0  # time in which a client must read MIN_READ_BYTES of a pending response
MIN_READ_BYTES = 16 * 1024
STALLED_SECONDS = 300.0  # a longer step of a model is reported by /health as a stall, unless requests may take longer
MAX_BODY_BYTES = 1 << 20  # body of one request; default of `tercet serve --max-body`
MAX_BODIES_BYTES = 1 << 28  # bodies of all concurrent requests; further requests get 503 and may be retried
MAX_FILLED_CHARACTERS = 16_000_000  # response with all candidates for the masks of a request, each with its whole text
MAX_FOUND_CHARACTERS = 16_000_000  # texts of the results of a search
MAX_CHUNKS = 16_384  # chunks of the texts of a request
MAX_CHUNK_TOKENS = 1 << 22  # tokens of these chunks, which overlap; a body of MAX_BODY_BYTES has at most a million
MAX_ERROR_CHARACTERS = 1000  # length of an error message, which may quote the request
EXPLORER_CONNECTIONS = 256  # connections of local browsers, each of which opens six
MAX_LENGTH_PENALTY_POWER = 16.0  # alpha of a beam search; papers use 0.6 to 2. A float64 can hold (10^6 tokens)^16

# Settings. The ranges of single numbers are in their types; see `spec.py`.
YAML_BYTES = 1 << 20  # a complete recipe has about 2,000; an alphabet of all characters has 500,000
YAML_DEPTH = 32  # levels of nesting; a recipe has 5
YAML_NODES = 10_000  # keys and values; a complete recipe has about 200
NUMBER_CHARACTERS = 100  # length of a number, a boolean or a null

# Files of a run folder that the dashboard reads.
METRICS_BYTES = 1 << 30  # size of metrics.csv, sufficient for about 10 million logged steps
METRICS_COLUMNS = 100
RECIPE_CHARACTERS = 2000  # length of a displayed value
SAMPLE_BYTES = 1 << 20  # size of a file such as samples/step-000250.txt
WATCHED_RUNS = 16  # runs on one page; more curves are hard to distinguish

# Data files, and the size of a request to a model.
FILE_BYTES = 1 << 40  # rejects special files such as /proc/kcore, which reports 128 times as much
UNPACKED_BYTES = 4 << 20  # any compressed or sparse file may unpack to this size
UNPACKED_RATIO = 200  # maximum ratio of larger files: text compresses 3 to 10 times, tables 50 times, zeros 1,000 times
DOWNLOAD_BYTES = 1 << 30  # the largest named dataset has 24 MB
LINE_CHARACTERS = 16 << 20  # length of a line, a JSON object or a row, which may become 500 MB of Python objects
LABEL_CHARACTERS = 1000
LABELS_OF_A_TEXT = 10_000  # labels of one text, if it may have several
LABEL_NUMBER = 10**15  # absolute value of a numeric label; 1/10^15 is the smallest deviation. Float32 ends at 10^38
PROMPT_BYTES = 16 << 20
FOLDER_ENTRIES = 1_000_000  # files in a folder of texts, which takes seconds to list
DOCUMENT_BYTES = 1 << 28  # a document to extract text from, and its content if it is compressed; a thick book has 1 MB
POOL_CHARACTERS = 16 << 20  # total length of the lines that are read ahead and sorted by length

SAMPLES = 1_000_000  # per prompt; generated in batches
NEW_TOKENS = 1 << 20  # per text; they take hours, and 200 bytes of memory per token
DRAFT_TOKENS = 1024  # per forward pass
CANDIDATES = 1 << 20  # per mask or query; a vocabulary has at most as many tokens
SCHEMA_CHARACTERS = 1 << 15  # a JSON schema or regular expression for generated text; compiling it may take a second
SCHEMA_PATTERNS = 3  # patterns that one value of a JSON schema must match; the time to intersect them is exponential
BEAM = 1024  # hypotheses per sentence, each with logits of vocabulary size
BATCH_TOKENS = 1 << 22  # per batch, including padding
POOL_LINES = 1 << 20

# Model folders: files

MAX_SETTINGS_BYTES = 8 << 20  # a file such as config.json or a shard index, which normally has kilobytes
MAX_VOCABULARY_BYTES = 64 << 20  # the largest tokenizer.json in use (262,144 ids) has 33 MB
MAX_PIECES_BYTES = 8 << 20  # a sentencepiece model; the largest in use have 5 MB
MAX_TEMPLATE_BYTES = 1 << 20  # the longest chat templates in use have a few thousand bytes
MAX_CARD_BYTES = 4 << 20  # a README.md
MAX_HEADER_BYTES = 16 << 20  # header of a safetensors file, which has about 100 bytes per tensor
MAX_PICKLE_BYTES = 4 << 20  # pickle in a pytorch_model.bin, without the weights: about 100 bytes per tensor
MAX_GGUF_HEADER_BYTES = 64 << 20  # settings and names; the largest vocabularies need a quarter of this
MAX_GGUF_ITEMS = 4 << 20  # total length of all lists: tokens, scores, types and merges
MAX_TENSORS = 1 << 16  # a model of 1,024 layers has about 20,000
MAX_JSON_DEPTH = 64
MAX_DIGITS = 32  # length of an integer in JSON

# Model folders: sizes

MAX_IDS = 1 << 20  # size of a vocabulary; the largest in use have 262,144 tokens
MAX_SHARED_NAMES = 4  # total size of the tensors in a pickle per byte of the file; Marian's embedding has four names

# Model folders: tokenizers

MAX_TOKEN_CHARACTERS = 1024  # length of one token; tokens of spaces or dashes have up to 128
MAX_STEPS = 16  # steps of a normalizer, a pre-tokenizer or a decoder
MAX_GROWTH = 64  # characters that normalization may make of one; NFKC makes up to 18
MAX_WORDPIECE_CHARACTERS = 1000  # length of a word, since WordPiece takes quadratic time; BERT's limit is 100

# Model folders: chat templates

TEMPLATE_SECONDS = 2  # normal templates take a millisecond
MAX_TEMPLATE_MEMORY = 512 << 20  # bytes
MAX_PROMPT_BYTES = 32 << 20  # output of a chat template
