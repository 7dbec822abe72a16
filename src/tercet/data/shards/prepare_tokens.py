"""Tokenization of large text into a folder of tokens, by several processes and machines.

Inputs are grouped into units, and units are written shard by shard into the hidden folder `.parts`. The process that
finds all units complete merges them into the folder. The result depends only on the inputs and settings, so that the
same command resumes after a kill and the bytes do not depend on the number of workers.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from multiprocessing.connection import wait
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from tercet.config import UserError
from tercet.data.cache import progress_bar
from tercet.data.shards.merge_shards import merge_shards
from tercet.data.shards.shard_inputs import Input, Unit, cut_units, digest_inputs, find_inputs, sample_texts
from tercet.data.shards.shard_writer import ShardSettings, read_records, write_unit
from tercet.data.shards.token_folder import TOKENIZER, Contents, read_contents, roles_of
from tercet.data.sources.custom_dataset import Source
from tercet.data.sources.documents import describe_left_out_records
from tercet.data.specs import TextSpec
from tercet.data.split_specs import DocumentClusters, Documents, Fold
from tercet.messages import print_note
from tercet.storage import (
    MANIFEST,
    FolderInUse,
    lock_folder,
    read_sealed_json,
    report_write_errors,
    write_atomically,
    write_sealed_json,
)
from tercet.tokens import Tokenizer

PARTS, PLAN = ".parts", "plan.json"
SHARD_TOKENS = 1 << 26  # 134 MB with 16-bit ids


@dataclass(frozen=True, kw_only=True)
class PreparationResult:
    """Result of `prepare_tokens`.

    Attributes:
        contents: Contents of the folder, or None if other parts are missing or another process is merging the shards.
        missing: Numbers, from 1, of the parts that are not complete.
    """

    contents: Contents | None
    missing: tuple[int, ...] = ()


def prepare_tokens(
    spec: TextSpec,
    out: Path | str,
    *,
    sources: Sequence[Source] = (),
    tokenizer: Tokenizer | None = None,
    shard_tokens: int = SHARD_TOKENS,
    workers: int | None = None,
    part: tuple[int, int] = (1, 1),
    progress: bool = False,
) -> PreparationResult:
    """Tokenize text into shards.

    Args:
        spec: Settings for reading, splitting and tokenizing the text.
        out: Folder to write.
        sources: Sources as in `find_inputs`, such as `texts/*.jsonl.gz`, instead of `spec.source`.
        tokenizer: Tokenizer (default: learned from a sample with `spec.tokenizer`).
        shard_tokens: Approximate tokens per shard.
        workers: Number of processes (default: one per core).
        part: Number of this part and of all parts: (2, 8) is the second of eight machines that share `out`, each of
            which tokenizes every eighth unit of inputs.
        progress: If True, show a bar on stderr, if that is a terminal.

    Raises:
        ValueError: If the number of the part is not from 1 to the number of all parts.
        UserError: If text cannot be read, tokenized or divided, the folder contains something else or was started with
            other inputs or settings, the disk is full, another process is learning the tokenizer or writing this part,
            or a worker was killed.
    """
    out = Path(out)
    number, parts = part
    if not 1 <= number <= parts:
        raise ValueError(f"part {number} of {parts} must be from 1 to {parts}")
    share = _validation_share(spec)
    inputs = find_inputs(spec, sources or [spec.source])
    work = out / PARTS
    _make_folder(out)
    tokenizer_spec = None if tokenizer else spec.tokenizer
    tokenizer = tokenizer or _share_tokenizer(spec, inputs, out)
    if tokenizer.prefix_space:
        raise UserError("prefix_space is for sentence pairs, not for running text; remove it from data.tokenizer")
    made_from = digest_inputs(spec, inputs, tokenizer, shard_tokens, tokenizer_spec)
    if (contents := _find_finished(out, made_from)) is not None:
        return PreparationResult(contents=contents)
    units = cut_units(inputs, shard_tokens)
    _agree_on_plan(work, made_from, parts)
    if not (work / TOKENIZER).exists():
        write_atomically(work / TOKENIZER, tokenizer.to_json().encode())
    settings = ShardSettings(folder=work, tokenizer=tokenizer, shard_tokens=shard_tokens, validation_share=share)
    part_units = [unit for unit in units if unit.number % parts == number - 1]
    lock = work / f"part-{number}-of-{parts}"
    with report_write_errors(lock):
        lock.mkdir(exist_ok=True)
    with lock_folder(lock):
        _write_units(part_units, settings, workers, progress=progress)
    missing = sorted({unit.number % parts + 1 for unit in units if not _is_written(work, unit)})
    if missing:
        return PreparationResult(contents=None, missing=tuple(missing))
    return PreparationResult(contents=_merge(out, units, settings, spec, made_from))


def _validation_share(spec: TextSpec) -> float | None:
    """Return the fraction of the documents to draw, or None if the validation part is not drawn.

    Raises:
        UserError: If it is drawn over clusters.
    """
    if isinstance(spec.validation, DocumentClusters):
        raise UserError(
            "similar documents are found only if all are read together, not in shards; set data.validation to "
            "{kind: documents}, with data.group_field if a column contains clusters"
        )
    return spec.validation.fraction if isinstance(spec.validation, Documents) else None


def _merge(
    out: Path, units: Sequence[Unit], settings: ShardSettings, spec: TextSpec, made_from: str
) -> Contents | None:
    """Return the contents of the merged folder, or None if another process is merging the shards."""
    try:
        with lock_folder(settings.folder):
            if (contents := _find_finished(out, made_from)) is None:
                assert not isinstance(spec.validation, Fold)  # rejected by `find_inputs`
                contents = merge_shards(out, units, settings, spec.validation, made_from=made_from)
    except FolderInUse:
        return None
    shutil.rmtree(settings.folder, ignore_errors=True)
    return contents


def _make_folder(out: Path) -> None:
    if out.is_dir() and not (out / PARTS).exists() and not (out / MANIFEST).exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and was not written by `tercet data prepare`; pass another --out")
    if (out / MANIFEST).exists() and read_contents(out / MANIFEST) is None:
        raise UserError(f"{out} is not empty and was not written by `tercet data prepare`; pass another --out")
    with report_write_errors(out):
        (out / PARTS).mkdir(parents=True, exist_ok=True)


def _find_finished(out: Path, made_from: str) -> Contents | None:
    """Return the contents of `out` and remove its leftover parts, or return None if it is not complete.

    Raises:
        UserError: If it was made from other inputs or settings, or is a folder of another kind.
    """
    if not (out / MANIFEST).exists():
        return None
    contents = read_contents(out / MANIFEST)
    if contents is None or contents.made_from != made_from:
        raise UserError(f"{out} contains tokens of other inputs or settings; pass another --out, or remove it")
    shutil.rmtree(out / PARTS, ignore_errors=True)
    return contents


def _share_tokenizer(spec: TextSpec, inputs: Sequence[Input], out: Path) -> Tokenizer:
    """Return the tokenizer, which the first process learns and the others read.

    Raises:
        UserError: If another process is learning it.
    """
    if (out / TOKENIZER).exists():
        return Tokenizer.load(out / TOKENIZER)
    path = out / PARTS / TOKENIZER
    if not path.exists():
        try:
            with lock_folder(out / PARTS):
                if not path.exists():
                    learned_tokenizer = Tokenizer.train(spec.tokenizer, sample_texts(spec, inputs))
                    write_atomically(path, learned_tokenizer.to_json().encode())
        except FolderInUse as error:
            owner = str(error).partition(";")[0]
            raise UserError(f"the tokenizer is being learned: {owner}; run the same command again later") from None
    return Tokenizer.load(path)


def _agree_on_plan(work: Path, made_from: str, parts: int) -> None:
    """Record the inputs, settings and number of parts, which must be the same in all processes.

    Raises:
        UserError: If the folder was started with other inputs, settings or parts.
    """
    path = work / PLAN
    plan: dict[str, Any] = {"made_from": made_from, "parts": parts}
    if not path.exists():
        write_sealed_json(path, plan)
    recorded_plan = read_sealed_json(path)
    if recorded_plan.get("made_from") != made_from:
        raise UserError(
            f"{work.parent} was started with other inputs or settings; use those, pass another --out, or remove it"
        )
    if recorded_plan.get("parts") != parts:
        raise UserError(
            f"{work.parent} was started in {recorded_plan.get('parts')} parts, but this is one of {parts}; "
            f"pass --part N/{recorded_plan.get('parts')}, or remove it"
        )


def _is_written(work: Path, unit: Unit) -> bool:
    records = read_records(work, unit.number)
    return bool(records) and records[-1].end.ended


def _write_units(units: Sequence[Unit], settings: ShardSettings, workers: int | None, *, progress: bool) -> None:
    """Write the units that are not written yet.

    They are written by `workers` processes (None: one per core), or in this process if one is enough. Records that are
    left out are reported first.
    """
    left = [unit for unit in units if not _is_written(settings.folder, unit)]
    n_workers = min(workers or _cores(), len(left))
    for item in chain.from_iterable(unit.inputs for unit in left):
        for note in describe_left_out_records(item.source):
            print_note(f"tercet: {note}")
    with progress_bar(enabled=progress) as bar:
        task = bar.add_task("tokenizing", total=sum(unit.size for unit in units))
        bar.advance(task, sum(unit.size for unit in units) - sum(unit.size for unit in left))
        if n_workers <= 1:
            for unit in left:
                write_unit(unit, settings)
                bar.advance(task, unit.size)
            return
        _write_by_workers(left, settings, n_workers, lambda unit: bar.advance(task, unit.size))


def _write_by_workers(
    units: Sequence[Unit], settings: ShardSettings, n_workers: int, on_written: Callable[[Unit], None]
) -> None:
    context = multiprocessing.get_context("spawn")
    stop = context.Event()
    plain = (stop, settings.folder, settings.shard_tokens, settings.validation_share, roles_of(settings.tokenizer))
    with ProcessPoolExecutor(n_workers, context, _start_worker, plain) as pool:
        try:
            with _delay_interrupts():  # the pool starts its processes here
                futures = {pool.submit(_work, unit): unit for unit in units}
            for future in as_completed(futures):
                future.result()
                on_written(futures[future])
        except BrokenProcessPool:
            raise UserError(
                "a worker was killed, perhaps for lack of memory; run the same command with fewer --workers to resume"
            ) from None
        except BaseException:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@contextmanager
def _delay_interrupts() -> Generator[None]:
    """Delay Ctrl-C until the end of the context, also for processes that are started within it.

    Such a process never receives it. Otherwise Ctrl-C would print a traceback of each process that is still importing
    modules, since `_start_worker` has not been called there yet.
    """
    if sys.platform == "win32":
        yield
        return
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


_worker: Callable[[Unit], None] | None = None  # set in worker processes


def _start_worker(
    stop: Event, folder: Path, shard_tokens: int, validation_share: float | None, roles: dict[str, int | None]
) -> None:
    """Initialize a worker process, which tokenizes in one thread, ignores Ctrl-C and exits with its parent."""
    global _worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    parent = multiprocessing.parent_process()
    assert parent is not None
    for end in (partial(wait, [parent.sentinel]), stop.wait):
        threading.Thread(target=_exit_after, args=(end,), daemon=True).start()
    settings = ShardSettings(
        folder=folder,
        tokenizer=Tokenizer.load(folder / TOKENIZER).with_ids(**roles),
        shard_tokens=shard_tokens,
        validation_share=validation_share,
    )

    _worker = partial(write_unit, settings=settings)


def _exit_after(end: Callable[[], object]) -> None:
    """Exit immediately when `end` returns; incomplete files have only temporary names."""
    end()
    os._exit(1)


def _work(unit: Unit) -> None:
    assert _worker is not None
    _worker(unit)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
