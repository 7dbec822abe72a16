"""The forms in which a folder keeps its tokenizer: what stands there, before anything reads it.

tokenizer.json                      all in one, as our own folders have it
vocab.json, merges.txt              GPT-2's BPE of bytes
vocab.json, source.spm, target.spm  Marian's: one list of ids, cut by one sentencepiece model on each side
"""

FORMS = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("vocab.json", "source.spm", "target.spm"))
