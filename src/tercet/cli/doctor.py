"""`tercet doctor`: show hardware, kernels and environment, check the connection of ranks, or verify files."""

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from tercet.cli.parser import Verbs, parse_number
from tercet.messages import counted, one_line, print_note
from tercet.spec import Interval

LARGE_PAGES = {
    "always": "large pages always",
    "madvise": "large pages on request",
    "never": "no large pages, so reading weights takes longer; "
    "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled turns them on",
}

if TYPE_CHECKING:
    from tercet.diagnosis import ClusterFacts, Diagnosis, RankPlace, RecipeUse

Timeout = Annotated[float, Interval(gt=0, le=86_400)]  # seconds


def register(verbs: Verbs, summary: str) -> None:
    parser = verbs.add_parser(
        "doctor",
        help=summary,
        description="Show what this machine provides and what Tercet selects: versions, CPU instruction sets, kernels "
        "and why they were chosen, the cache, the precision that training.precision=auto selects, GPUs, compiler and "
        "network. With a recipe, also show the device, precision and memory that its training uses. If torchrun or "
        "srun starts several processes, they connect, and rank 0 reports round-trip times and the all-reduce speed. "
        "With --verify, only check the files of a folder; with --check-part, only a part of your own.",
        epilog="Examples: tercet doctor --json; tercet doctor demo; torchrun --nproc-per-node 2 -m tercet doctor; "
        "tercet doctor --verify runs/mine; "
        "tercet doctor --check-part my_package.fourier:Fourier --allow-code my_package",
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE|RUN|DATA",
        nargs="?",
        help="recipe, run or data, as in `tercet train`, whose use of this machine is shown",
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="override a key of the recipe; can be repeated"
    )
    parser.add_argument(
        "--data", metavar="PATH", help="file, folder or named dataset to train on, as in `tercet train` (data.source)"
    )
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=parse_number(Timeout), default=60.0,
        help="maximum time that several processes wait for each other (default: 60)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", metavar="FOLDER",
        help="compare every file of a run, model or prepared folder with its recorded hash; exit code 1 if one is "
        "damaged",
    )  # fmt: skip
    parser.add_argument(
        "--check-part", metavar="MODULE:CLASS",
        help="check that a part of your own package (position scheme, activation, norm, feed-forward network, "
        "attention, objective, optimizer or dataset) satisfies the conditions of Tercet's; a dataset with settings is "
        "'{kind: \"my_package.database:Query\", path: reviews.db}'; exit code 1 if not",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    from tercet.config import UserError
    from tercet.diagnosis.cluster import find_rank_place

    if args.verify is not None:
        return _verify(args)
    if args.check_part is not None:
        return _check_part(args)
    if args.recipe is None and (args.set or args.data is not None):
        raise UserError("--set and --data require a recipe; pass one, such as tercet doctor demo")
    launch = find_rank_place(os.environ)
    answer = {} if launch is not None and launch.rank else _diagnose(args)
    if launch is not None and launch.world_size > 1:
        _meet(launch, args, answer)
    if args.json and answer:
        print(json.dumps(answer, indent=2, ensure_ascii=False))
    return 0


def _check_part(args: argparse.Namespace) -> int:
    _reject_recipe(args, "--check-part only checks a part")

    from tercet.diagnosis import check_part

    result = check_part(args.check_part)
    if args.json:
        print(json.dumps(asdict(result), indent=2, ensure_ascii=False))
    else:
        size = f"{counted(result.parameters, 'parameter', 'parameters')} in a small model"
        tasks = _describe_tasks(result.targets) if result.targets else ""
        print(f"{result.part}: {result.contents or tasks or size}")
        for check in result.checks:
            print(f"pass  {check.name}" if check.passed else f"FAIL  {check.name}: {check.problem}")
    return 0 if all(check.passed for check in result.checks) else 1


def _describe_tasks(targets: Sequence[str]) -> str:
    """Return the tasks for which an objective can be used, as recipes name them."""
    tasks = [f"labels with problem_type {' or '.join(targets)}"]
    if "single_label_classification" in targets:
        tasks = ["language", "masked", "translation", "chat", *tasks]
    return f"for task {', '.join(tasks)}"


def _verify(args: argparse.Namespace) -> int:
    _reject_recipe(args, "--verify only checks a folder")

    from tercet.checkpoint import verify

    result = verify(args.verify)
    if args.json:
        print(json.dumps(asdict(result), indent=2, ensure_ascii=False))
    else:
        for damage in result.damaged:
            print(damage)
        whole = f"{counted(result.files, 'file', 'files')}, {result.bytes / 1e6:,.1f} MB"
        print(f"{whole}: {len(result.damaged)} damaged" if result.damaged else f"{whole}: no damage")
    return 1 if result.damaged else 0


def _reject_recipe(args: argparse.Namespace, reason: str) -> None:
    from tercet.config import UserError

    if args.recipe is not None or args.set or args.data is not None:
        raise UserError(f"{reason}; leave the recipe, --set and --data out")


def _diagnose(args: argparse.Namespace) -> dict[str, Any]:
    """Print a report on this machine and, if a recipe is passed, on its use of the machine.

    With --json, nothing is printed. The report is returned for the JSON object in both cases.
    """
    recipe = None if args.recipe is None else _read_recipe(args)  # reject an invalid recipe before torch is imported

    from tercet.diagnosis import diagnose_recipe, doctor

    diagnosis = doctor()
    answer = asdict(diagnosis)
    _print(_describe(diagnosis), args)
    if recipe is not None:
        use = diagnose_recipe(str(args.recipe), recipe, progress=True)
        answer["recipe"] = asdict(use)
        _print(dict(_describe_use(use)), args)
    return answer


def _meet(launch: "RankPlace", args: argparse.Namespace, answer: dict[str, Any]) -> None:
    from tercet.diagnosis.ranks import describe_report, meet_ranks

    if launch.rank == 0:
        print_note(f"waiting up to {args.timeout:g} s for {launch.world_size - 1} more of {launch.world_size} ranks")
    report = meet_ranks(launch, timeout=args.timeout)
    if report is not None:
        answer["ranks"] = asdict(report)
        _print(describe_report(report), args)


def _read_recipe(args: argparse.Namespace) -> Any:
    from tercet.training.request import RunRequest, resolve

    changes: dict[str, Any] = {}
    if args.set:
        from tercet.settings_yaml import merge_assignments

        changes = merge_assignments({}, args.set)
    return resolve(RunRequest(recipe=args.recipe, changes=changes, data=args.data)).recipe


def _print(lines: dict[str, str], args: argparse.Namespace) -> None:
    for name, value in lines.items() if not args.json else ():
        print(f"{name:<10} {one_line(value)}", flush=True)


def _describe(diagnosis: "Diagnosis") -> dict[str, str]:
    memory = "unknown" if diagnosis.memory_bytes is None else _gigabytes(diagnosis.memory_bytes)
    cache = f"cannot be used: {diagnosis.cache_refusal}" if diagnosis.cache_refusal else "writable"
    compiler = (
        "none" if diagnosis.compiler is None else f"{diagnosis.compiler}: {diagnosis.compiler_version or 'no answer'}"
    )
    return {
        "tercet": f"{diagnosis.tercet}, Python {diagnosis.python}, PyTorch {diagnosis.torch}, {diagnosis.system}",
        "cpu": f"{diagnosis.cpu}: {' '.join(diagnosis.instructions) or 'instructions unknown'}",
        "threads": f"{diagnosis.threads} PyTorch threads on {diagnosis.cores} cores",
        "memory": f"{memory}; {LARGE_PAGES.get(diagnosis.large_pages, diagnosis.large_pages)}",
        "kernels": f"{diagnosis.kernel_level} ({diagnosis.kernel_origin}): {diagnosis.kernel_reason}",
        "table": diagnosis.kernel_table,
        "cache": f"{diagnosis.cache}, {_gigabytes(diagnosis.cache_free_bytes)} free: {cache}",
        "disk": f"{_gigabytes(diagnosis.free_bytes)} free in this folder",
        "precision": f"{diagnosis.precision} if training.precision is auto",
        "gpu": _describe_gpus(diagnosis.cluster),
        "compiler": compiler,
        **dict(_describe_cluster(diagnosis.cluster)),
    }


def _describe_gpus(facts: "ClusterFacts") -> str:
    gpus = [
        gpu.name + ("" if gpu.memory_bytes is None else f" ({_gigabytes(gpu.memory_bytes)}, compute capability "
                    f"{gpu.capability}, {'bf16' if gpu.bf16 else 'no bf16'})")
        for gpu in facts.gpus
    ]  # fmt: skip
    driver = "" if facts.gpu_driver is None else f"; driver {facts.gpu_driver}"
    return f"{', '.join(gpus) or 'none'}{driver}"


def _describe_cluster(facts: "ClusterFacts") -> Iterator[tuple[str, str]]:
    backends = ", ".join(f"nccl {facts.nccl}" if name == "nccl" and facts.nccl else name for name in facts.backends)
    yield "backends", f"{backends or 'none'} (torch.distributed)"
    yield "network", f"{facts.host}: {', '.join(facts.interfaces) or 'no interface except loopback'}"
    if facts.launch is None:
        yield "launch", "a single process, without variables of torchrun or SLURM"
    else:
        launch = facts.launch
        yield (
            "launch",
            (
                f"by {launch.by}: rank {launch.rank} of {launch.world_size}, local rank {launch.local_rank}, "
                f"rank 0 at {launch.master or 'an unknown address'}"
            ),
        )
    if facts.variables:
        yield "variables", " ".join(f"{name}={value}" for name, value in facts.variables.items())


def _describe_use(use: "RecipeUse") -> Iterator[tuple[str, str]]:
    devices = f"{use.devices} x {use.device} by {use.strategy}" if use.devices > 1 else use.device
    threads = f", {use.threads} {'thread' if use.threads == 1 else 'threads'}" if use.device == "cpu" else ""
    yield "recipe", f"{use.recipe}: {use.precision} on {devices}{threads}"
    checkpointing = ", activations are recomputed" if use.checkpointing else ""
    yield "a step", f"{use.micro_batches:,} x {use.micro_batch:,} {use.rows} on each device{checkpointing}"
    available = "unknown" if use.device_bytes is None else _gigabytes(use.device_bytes)
    verdict = {True: "fits", False: "does not fit: see tercet train --plan", None: "unknown if it fits"}[use.fits]
    yield "needs", f"about {_gigabytes(use.memory_bytes)} of the device's {available}: {verdict}"


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB" if count >= 999.5e6 else f"{count / 1e6:,.0f} MB"
