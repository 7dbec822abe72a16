"""Someone with models of `transformers`: convert in, fine-tune, evaluate, convert back; the logits agree.

The models have random weights, since real ones would have to be downloaded.
"""

import random
from pathlib import Path
from pydoc_data.topics import topics

from newcomers.desk import Desk

MAKE_MODELS = '''
"""Write a small Llama and a small BERT with random weights, each with a tokenizer."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, set_seed

set_seed(1)
bpe = Tokenizer(models.BPE())
bpe.pre_tokenizer, bpe.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
alphabet = pre_tokenizers.ByteLevel.alphabet()
bpe.train(["mine.txt"], trainers.BpeTrainer(vocab_size=1000, special_tokens=["<|end|>"], initial_alphabet=alphabet))
PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>").save_pretrained("llama")
sizes = {"hidden_size": 128, "intermediate_size": 344, "num_hidden_layers": 3, "num_attention_heads": 4}
config = LlamaConfig(vocab_size=bpe.get_vocab_size(), num_key_value_heads=2, max_position_embeddings=256, **sizes,
                     bos_token_id=None, eos_token_id=bpe.token_to_id("<|end|>"), pad_token_id=None)
LlamaForCausalLM(config).save_pretrained("llama")

special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
words = Tokenizer(models.WordPiece(unk_token="[UNK]"))
words.pre_tokenizer, words.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
words.train(["mine.txt"], trainers.WordPieceTrainer(vocab_size=2000, special_tokens=special))
words.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
PreTrainedTokenizerFast(tokenizer_object=words, **names).save_pretrained("bert")
config = BertConfig(vocab_size=words.get_vocab_size(), max_position_embeddings=128, **sizes)
BertForMaskedLM(config).save_pretrained("bert")
'''
AGREE = '''
"""Compare logits: python agree.py TERCET_FOLDER TRANSFORMERS_FOLDER."""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import tercet

ours, theirs = sys.argv[1:]
text = "The statement returns a value, and an exception is raised otherwise."
expected = torch.as_tensor(tercet.load(ours).read(text).logits)
batch = AutoTokenizer.from_pretrained(theirs)([text], return_tensors="pt")
with torch.no_grad():
    logits = AutoModelForCausalLM.from_pretrained(theirs)(input_ids=batch["input_ids"]).logits[0]
assert logits.shape == expected.shape, (logits.shape, expected.shape)
print(f"largest difference of the logits: {(logits - expected).abs().max():.1e}")
assert (logits - expected).abs().max() < 1e-4
'''
AGREE_ON_LABELS = '''
"""Compare probabilities: python agree_on_labels.py TERCET_FOLDER TRANSFORMERS_FOLDER."""

import sys

from transformers import pipeline

import tercet

ours, theirs = sys.argv[1:]
texts = ["An exception is raised.", "The tuple is read from left to right."]
classify = pipeline("text-classification", model=theirs, top_k=None)
for expected, scores in zip(tercet.load(ours).classify(texts), classify(texts), strict=True):
    for score in scores:
        assert abs(expected.scores[score["label"]] - score["score"]) < 1e-5, (expected, scores)
print("the probabilities agree")
'''
KINDS = {"error": ("exception", "raise", "error"), "loop": ("iteration", "loop", "iterable", "sequence")}


def write_files(folder: Path) -> None:
    text = "\n".join(body for _, body in sorted(topics.items()))
    (folder / "mine.txt").write_text(text[:300_000], encoding="utf-8")
    (folder / "new.txt").write_text(text[300_000:330_000], encoding="utf-8")
    sentences = [" ".join(part.split()) for part in text.replace("\n\n", ". ").split(". ")]
    kinds = {sentence: kinds_of(sentence) for sentence in sentences if 20 < len(sentence) < 200}
    rows = [(sentence.replace('"', ""), found[0]) for sentence, found in kinds.items() if len(found) == 1]
    random.Random(1).shuffle(rows)
    lines = "".join(f'"{sentence}",{kind}\n' for sentence, kind in rows)
    (folder / "labels.csv").write_text(f"text,label\n{lines}", encoding="utf-8")
    for name, code in (("make_models", MAKE_MODELS), ("agree", AGREE), ("agree_on_labels", AGREE_ON_LABELS)):
        (folder / f"{name}.py").write_text(code.lstrip(), encoding="utf-8")


def kinds_of(sentence: str) -> list[str]:
    return [kind for kind, words in KINDS.items() if any(word in sentence for word in words)]


def work(desk: Desk) -> None:
    desk.type("""
        pip install tercet transformers
        python make_models.py
        tercet inspect llama
        tercet evaluate llama --data new.txt
        tercet convert llama llama-tercet
        tercet convert llama-tercet llama-again --to hf
        python agree.py llama llama-again
        python agree.py llama-tercet llama
        tercet train finetune-lm --pretrained llama --data mine.txt --set training.optimizer.lr=1e-3 \\
            --set training.max_epochs=8 --out runs/mine
        tercet evaluate runs/mine --json > scores.json
        tercet evaluate runs/mine --compare llama --data new.txt
        tercet generate runs/mine --prompt "The statement" --max-new-tokens 20
        tercet convert runs/mine mine-hf --to hf
        python agree.py runs/mine mine-hf
    """)
    desk.check_counts("scores.json")
    desk.type("""
        tercet train finetune-lm --pretrained llama --data mine.txt --set 'adapter={kind: lora, targets: [all]}' \\
            --set training.optimizer.lr=5e-4 --set training.max_steps=60 --out runs/lora
        tercet convert runs/lora lora-hf --to hf --merge
        python agree.py runs/lora lora-hf
        tercet train finetune-classify --pretrained bert --data labels.csv --set model.pooler=true \\
            --set model.classifier.pooling=pooler --set training.max_epochs=20 --set training.optimizer.lr=3e-4 \\
            --out runs/labels
        tercet evaluate runs/labels --json > labels.json
        tercet convert runs/labels labels-hf --to hf
        python agree_on_labels.py runs/labels labels-hf
    """)
    with desk.check("the classifier is better than the most frequent label", trained=True):
        scores = desk.read("labels.json")
        assert scores["accuracy"] > scores["majority"] + 0.05
        assert not scores["verdicts"]
