"""Checks of a custom part: for a part of a model, the invariants that Tercet's own parts satisfy, on small models."""

from functools import partial

from tercet.config import UserError
from tercet.custom_code import load_class, suggest_import_path
from tercet.data import CustomDataset
from tercet.data.sources.custom_dataset import plain_source, read_source
from tercet.diagnosis.custom_dataset import check_dataset_part
from tercet.diagnosis.custom_objective import check_objective_part
from tercet.diagnosis.custom_optimizer import check_optimizer_part
from tercet.diagnosis.part_case import PARTS, new_case
from tercet.diagnosis.part_checks import PartCheck, PartChecks, choose_remedy, run_check
from tercet.diagnosis.part_conditions import CAUSES, CHECKS, POINTWISE, REPEATS
from tercet.messages import describe_error
from tercet.objectives import CustomObjective
from tercet.spec import Custom
from tercet.training import CustomOptimizer


def check_part(path: str) -> PartChecks:
    """Check a part of a model, an objective, an optimizer or a dataset from another package.

    Args:
        path: Import path of its spec, such as "my_package.fourier:Fourier"; with settings of a dataset, as in
            `{kind: "my_package.reads:Records", path: reads.db}`.

    Raises:
        UserError: If it cannot be imported, is not allowed, cannot be checked, cannot be built, or is a dataset whose
            examples cannot be read.
    """
    source = plain_source(path)
    kind = path if isinstance(source, str) else source.get("kind")
    if not isinstance(kind, str) or ":" not in kind:
        raise UserError(suggest_import_path(str(kind)))
    try:
        part = load_class(kind, Custom)
    except ValueError as error:
        raise UserError(str(error)) from None
    if issubclass(part, CustomDataset):
        dataset = read_source(path)
        assert isinstance(dataset, CustomDataset)
        return check_dataset_part(dataset)
    if kind != path:
        raise UserError(f"{kind} is checked with its default settings; pass only its import path")
    if issubclass(part, CustomObjective):
        return check_objective_part(part)
    if issubclass(part, CustomOptimizer):
        return check_optimizer_part(part)
    found = next((PARTS[base] for base in PARTS if issubclass(part, base)), None)
    if found is None:
        kinds = ", ".join(name for name, _ in PARTS.values())
        raise UserError(f"{path} cannot be checked, only {kinds}, objective, optimizer and dataset")
    setting, names = found
    try:
        case = new_case(setting, names, path)
    except Exception as error:  # the code is the user's, and may raise anything
        raise UserError(f"{path}: {describe_error(error)}") from None
    checks: list[PartCheck] = []
    for name, (settings, check, remedy) in CHECKS.items():
        if setting in settings:
            words = remedy if isinstance(remedy, str) else remedy.get(setting, POINTWISE)
            checks.append(run_check(name, partial(check, case), choose_remedy(words, CAUSES.get(name, ()), checks)))
        if name == REPEATS and not checks[-1].passed:
            break  # the other checks compare passes, and would fail for the same reason
    size = sum(weight.numel() for weight in case.weights().values())
    return PartChecks(part=path, parameters=size, checks=tuple(checks))
