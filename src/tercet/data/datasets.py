"""Named datasets: text to start with, without looking for any."""

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tercet.config import UserError, nearest
from tercet.data.sources import Files, Source, Texts

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
DOWNLOAD_SECONDS = 30

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


def cache_folder() -> Path:
    """Where Tercet keeps what can be made or downloaded again: TERCET_CACHE, else the user's cache folder."""
    return Path(os.environ.get("TERCET_CACHE") or platformdirs.user_cache_dir("tercet"))


def _animals() -> Source:
    return Texts(name="animals", texts=FACTS)


def _python_docs() -> Source:
    from pydoc_data.topics import topics

    return Texts(name="python-docs", texts=tuple(text for _, text in sorted(topics.items())))


def _shakespeare() -> Source:
    given = os.environ.get("TERCET_DATA")
    cached = cache_folder() / "shakespeare" / "input.txt"
    places = [*([Path(given, "shakespeare", "input.txt"), Path(given, "input.txt")] if given else []), cached]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        _write_whole(cached, _download(SHAKESPEARE_URL))
        path = cached
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != SHAKESPEARE_SHA256:
        raise UserError(
            f"{path} is not TinyShakespeare (sha256 {found[:12]}..., not {SHAKESPEARE_SHA256[:12]}...); "
            "remove it to download it again, or give the file's path as the source to use it as it is"
        )
    return _Named(root=path, called="shakespeare")


@dataclass(frozen=True, kw_only=True)
class _Named(Files):
    called: str

    @property
    def name(self) -> str:
        return self.called


def _download(url: str) -> bytes:
    remedy = f"put {url} at shakespeare/input.txt in a folder and set TERCET_DATA to that folder"
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("TERCET_OFFLINE", "HF_HUB_OFFLINE")):
        raise UserError(f"shakespeare is not on this machine and downloads are switched off; {remedy}")
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as answer:
            data: bytes = answer.read()
    except OSError as error:
        raise UserError(f"cannot download shakespeare ({error}); {remedy}") from None
    if hashlib.sha256(data).hexdigest() != SHAKESPEARE_SHA256:
        raise UserError(f"what {url} gave is not TinyShakespeare (wrong sha256); {remedy}")
    return data


def _write_whole(path: Path, data: bytes) -> None:
    """The file appears at once and whole, or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write to {path.parent}: {reason}; set TERCET_CACHE to another folder") from None


DATASETS = {
    "animals": Dataset(
        description="a dozen one-sentence facts about animals: small enough to learn by heart in seconds",
        origin="written for Tercet, under its licence",
        open=_animals,
    ),
    "python-docs": Dataset(
        description="the language reference that comes with Python: half a megabyte of prose in some 80 topics",
        origin="pydoc_data.topics of the running Python, so it differs between versions; PSF licence",
        open=_python_docs,
    ),
    "shakespeare": Dataset(
        description="TinyShakespeare, 1.1 MB of plays: the usual first text for a character model",
        origin="public domain; collected by Andrej Karpathy, downloaded once from github.com/karpathy/char-rnn",
        open=_shakespeare,
    ),
}
