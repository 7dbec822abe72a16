"""Named datasets: text to start with, without looking for any."""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tercet.config import UserError, nearest
from tercet.data.debian import descriptions
from tercet.data.downloads import obtain
from tercet.data.induction import repeated_words
from tercet.data.sources import Files, Source, Texts

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"

FACTS = (
    "elephants greet old friends with their trunks and can hear with their feet.",
    "cats sleep for most of the day and wake up to hunt at dusk.",
    "an octopus has 3 hearts and 8 arms and its blood is blue.",
    "honey bees dance to tell the others where the flowers are.",
    "a blue whale is the largest animal that has ever lived.",
    "penguins cannot fly but they swim very well.",
    "bats find their way in the dark by listening to echoes.",
    "a snail can sleep for months when the weather is too dry.",
    "wolves live in families and look after their old ones.",
    "a giraffe has 7 bones in its neck just as we do.",
    "owls turn their heads because their eyes cannot move.",
    "salmon swim back to the river where they were born.",
)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A dataset that can be asked for by name."""

    description: str
    origin: str
    open: Callable[[], Source]


def find(source: str, *, encoding: str = "utf-8", text_field: str = "text") -> Source:
    """The named dataset `source`, else the file or folder at that path (`./shakespeare` is always a path).

    Raises:
        UserError: where it is neither, with the nearest name of either.
    """
    if source in DATASETS:
        return DATASETS[source].open()
    path = Path(source).expanduser()
    files = Files(root=path, encoding=encoding, text_field=text_field)
    if not path.exists():
        guess = nearest(source, DATASETS)
        if path.parent == Path() and guess.startswith("; did you mean"):
            raise UserError(f"no dataset, file or folder is called {source!r}{guess}")
        if path.parent == Path() and not path.suffix:
            raise UserError(f"no dataset, file or folder is called {source!r}; datasets: {', '.join(sorted(DATASETS))}")
        files.files()  # names the nearest path
    return files


def _animals() -> Source:
    return Texts(name="animals", texts=FACTS)


def _induction() -> Source:
    return Texts(name="induction", texts=repeated_words())


def _python_docs() -> Source:
    from pydoc_data.topics import topics

    return Texts(name="python-docs", texts=tuple(_once(text for _, text in sorted(topics.items()))))


def _once(texts: Iterable[str]) -> Iterator[str]:
    """The texts, each paragraph where it comes first: else what is asked for may have been learnt from."""
    seen = set[str]()
    for text in texts:
        first = list[str]()
        for paragraph in re.split(r"\n\s*\n", text):
            words = " ".join(paragraph.split())
            if words and words not in seen:
                first.append(paragraph)
                seen.add(words)
        if first:
            yield "\n\n".join(first).rstrip() + "\n"


def _shakespeare() -> Source:
    path = obtain(
        SHAKESPEARE_URL,
        sha256=SHAKESPEARE_SHA256,
        dataset="shakespeare",
        called="TinyShakespeare",
        name="input.txt",
    )
    return _Named(root=path, called="shakespeare")


@dataclass(frozen=True, kw_only=True)
class _Named(Files):
    called: str

    @property
    def name(self) -> str:
        return self.called


DATASETS = {
    "animals": Dataset(
        description="a dozen one-sentence facts about animals: small enough to learn by heart in seconds",
        origin="written for Tercet, under its licence",
        open=_animals,
    ),
    "debian-descriptions": Dataset(
        description="descriptions of Debian packages, 24 MB: text to pretrain on for debian-sections, of which it "
        "leaves out what is for validation",
        origin="the indices of the machine's own apt, fetched once; each description under its package's licence",
        open=descriptions,
    ),
    "induction": Dataset(
        description="20,000 words of random letters, each said again and again: only looking back tells what comes",
        origin="drawn by Tercet, always the same",
        open=_induction,
    ),
    "python-docs": Dataset(
        description="the language reference that comes with Python: 0.4 MB in some 80 topics, each passage once",
        origin="pydoc_data.topics of the running Python, so it differs between versions; PSF licence",
        open=_python_docs,
    ),
    "shakespeare": Dataset(
        description="TinyShakespeare, 1.1 MB of plays: the usual first text for a character model",
        origin="public domain; collected by Andrej Karpathy, downloaded once from github.com/karpathy/char-rnn",
        open=_shakespeare,
    ),
}
