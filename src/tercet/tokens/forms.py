"""The file formats of tokenizers in a folder.

tokenizer.json                      a single file, as in Tercet's own folders
vocab.json, merges.txt              GPT-2's byte-level BPE
vocab.json, source.spm, target.spm  Marian: shared ids, and one sentencepiece model per side
"""

FORMS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.json", "source.spm", "target.spm"))
