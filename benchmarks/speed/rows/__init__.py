"""The rows, in the order of the table; those of a GPU in the order of their weight."""

from benchmarks.speed.row import Row
from benchmarks.speed.rows.beam import BEAM
from benchmarks.speed.rows.bert import BERT
from benchmarks.speed.rows.gpt import GPT
from benchmarks.speed.rows.gpu_beam import BEAM_ON_GPU
from benchmarks.speed.rows.gpu_decoding import DECODING
from benchmarks.speed.rows.gpu_encoding import ENCODING
from benchmarks.speed.rows.gpu_loss import LOSSES
from benchmarks.speed.rows.gpu_training import TRAINING
from benchmarks.speed.rows.greedy import GREEDY
from benchmarks.speed.rows.loading import LOADING
from benchmarks.speed.rows.startup import START_UP
from benchmarks.speed.rows.tokenizing import TOKENIZING
from benchmarks.speed.rows.translation import TRANSLATION

ROWS: dict[str, Row] = {
    row.name: row for row in (*GPT, BERT, TRANSLATION, *GREEDY, BEAM, *START_UP, TOKENIZING, LOADING)
}

_gpu = {row.name: row for row in (*TRAINING, *DECODING, *ENCODING, BEAM_ON_GPU, *LOSSES)}
GPU_ROWS: dict[str, Row] = {
    name: _gpu[name]
    for name in (
        "gpt-124m",
        "greedy-1",
        "greedy-32",
        "gpt-baby",
        "bert",
        "translation",
        "serving",
        "embed",
        "beam",
        *(row.name for row in LOSSES),
    )
}
