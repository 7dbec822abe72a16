# %% [markdown]
# # A translator
#
# Train a small encoder-decoder to translate a toy language, in seconds on two cores. Its verbs are at the end of the
# sentence, so the translation reorders words. Nothing is downloaded.

# %%
import random
from pathlib import Path

import tercet
from tercet.evaluate import score_translations
from tercet.plots import plot_attention

draw = random.Random(1)
who = {"ein Mann": "a man", "eine Frau": "a woman", "das Kind": "the child", "der Hund": "the dog"}
does = {"sieht": "sees", "kauft": "buys", "trägt": "carries", "sucht": "wants"}
what = {"ein Buch": "a book", "einen Ball": "a ball", "das Brot": "the bread", "rote Blumen": "red flowers"}
when = {"heute": "today", "gestern": "yesterday", "jeden Tag": "every day"}


def pair():
    (w, a), (d, b), (x, c), (t, e) = (draw.choice(list(part.items())) for part in (who, does, what, when))
    return f"{t} , daß {w} {x} {d}", f"{a} {b} {c} {e}"


pairs = list(dict.fromkeys(pair() for _ in range(400)))
test, train = pairs[:30], pairs[30:]
Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in train), encoding="utf-8")
len(train), train[0]

# %%
side = {"d_model": 48, "n_layers": 2, "n_heads": 2, "d_ff": 96}
run = tercet.train(
    "numbers",
    source="pairs.tsv",
    out="runs/notebook-translation",
    changes={
        "data.tokenizer": {"kind": "words", "bos": True, "pad": True, "prefix_space": True},
        "data.validation": {"kind": "drawn", "count": 20},
        "model.encoder": side,
        "model.decoder": side,
        "model.max_len": 16,
        "task.batch_tokens": 512,
        "training.max_steps": 105,
        "training.validate_every": 35,
        "training.save_every": 105,
    },
)
run

# %%
run.translate("gestern , daß der Hund rote Blumen kauft")

# %%
run.translations("jeden Tag , daß eine Frau das Brot sucht", n_best=3)[0]

# %% [markdown]
# Compute BLEU on held-out sentences, with a bootstrap interval. The baseline below returns the translation of the
# training sentence with the most words in common.

# %%
sources, references = [source for source, _ in test], [target for _, target in test]
score_translations(run.translate(sources), references)


# %%
def translate_by_lookup(text):
    return max(train, key=lambda pair: len(set(pair[0].split()) & set(text.split())))[1]


score_translations([translate_by_lookup(source) for source in sources], references)

# %%
run.plot()

# %% [markdown]
# Plot the decoder's attention. For the verb, it attends to the end of the source.

# %%
plot_attention(run.trained_model, sources[0], stack="decoder", layer=1)
