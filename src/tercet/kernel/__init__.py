"""Work at which PyTorch is slow, in C++ that is compiled where it runs; each part has a plain way beside it."""

from tercet.kernel.few_rows import few_rows as few_rows
from tercet.kernel.few_rows import takes as takes
