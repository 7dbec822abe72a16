"""Sections about the model, its data, recipe and versions, which do not use the metrics of the training."""

from collections.abc import Mapping
from typing import Any

from tercet.checkpoint.training_data import TrainingData, open_training_data
from tercet.config import UserError
from tercet.data import ConversationCorpus, Corpus, LabelCorpus, ParallelCorpus, QueryCorpus
from tercet.evaluate.scores import describe_unknown
from tercet.inspect import model_table
from tercet.messages import one_line, show
from tercet.notebook import format_count, format_value
from tercet.reports.markup import (
    Markup,
    Section,
    collapsed_block,
    element,
    facts_list,
    join,
    missing,
    paragraph,
    scrolling_table,
)
from tercet.reports.subject import ReportSubject
from tercet.settings_yaml import write_yaml

OMITTED_FACTS = ("Data", "Data hash", "Tokenizer hash", "Git commit", "Trained for")  # facts shown in other sections
HEADER = ("layer", "module", "output", "parameters", "FLOPs")


def model_section(subject: ReportSubject) -> Section:
    """Return the section with the family, sizes and layers of the model, and the model that it was fine-tuned from."""
    trained_model = subject.trained_model
    if trained_model is None:
        body = missing("No model is saved yet; the recipe below contains its sizes.")
        return Section(id="model", title="The model", body=join(body, facts_list(_origin(subject.recipe))))
    card_facts = trained_model.card.facts(trained_model.model.spec, n_parameters=trained_model.n_parameters)
    facts = {
        "Kind": trained_model.kind,
        **{name: value for name, value in card_facts.items() if name not in OMITTED_FACTS},
    }
    facts |= _origin(subject.recipe)
    if trained_model.task == "labels":
        head = trained_model.require("classify").label_head
        facts["Labels"] = one_line(", ".join(head.labels)) if head.problem_type != "regression" else "a number"
    table = model_table(trained_model.model.spec)
    rows = [
        (
            row.name,
            row.kind if row.count == 1 else f"{row.count} × {row.kind}",
            " × ".join(map(str, row.shape)),
            f"{row.parameters:,}" if row.parameters else f"= {row.tied_to}" if row.tied_to else "",
            format_count(row.flops) if row.flops else "",
        )
        for row in table.rows
    ]
    label = f"Layers: shapes for {table.length:,} tokens, FLOPs of a forward pass for one {table.unit}"
    layers = scrolling_table(rows, label=label, header=HEADER, right=(False, False, True, True, True))
    return Section(
        id="model",
        title="The model",
        body=join(facts_list(facts), collapsed_block(f"{len(rows)} kinds of layers", layers)),
    )


def _origin(recipe: Mapping[str, Any]) -> dict[str, str]:
    """Return the pretrained model, the adapter and the frozen parameters of a fine-tuning; empty without it."""
    pretrained, adapter = recipe.get("pretrained"), recipe.get("adapter")
    facts = {"Fine-tuned from": one_line(str(pretrained)) if pretrained else ""}
    if isinstance(adapter, Mapping):
        facts["Adapter"] = _format_settings(adapter)
    if freeze := recipe.get("freeze"):
        facts["Frozen"] = one_line(", ".join(map(str, freeze)) if isinstance(freeze, list | tuple) else str(freeze))
    return facts


def data_section(subject: ReportSubject) -> Section:
    """Return the section with the source, parts, sizes and hashes of the data."""
    data = subject.recipe.get("data")
    if not isinstance(data, Mapping):
        body = missing("The training data is not known: the model has no recipe in its card.json.")
        return Section(id="data", title="The data", body=body)
    facts = {
        name: one_line(str(data[key]))
        for key, name in (
            ("source", "Source"), ("target", "Target"), ("source_language", "Source language"),
            ("target_language", "Target language"),
        )
        if data.get(key)
    }  # fmt: skip
    validation = data.get("validation")
    facts["Kept for validation"] = (
        _format_settings(validation) if isinstance(validation, Mapping) else "defined by the data"
    )
    if isinstance(tokenizer := data.get("tokenizer"), Mapping):
        facts["Tokenizer"] = _format_settings(tokenizer)
    sizes, note = count_data(subject)
    facts |= sizes
    if subject.trained_model is not None:
        facts |= {
            "Data hash": subject.trained_model.card.data_hash,
            "Tokenizer hash": subject.trained_model.card.tokenizer_hash,
        }
    elif subject.record is not None:
        facts |= {"Data hash": subject.record.data, "Tokenizer hash": subject.record.tokenizer}
    return Section(id="data", title="The data", body=join(facts_list(facts), missing(note) if note else ""))


def count_data(subject: ReportSubject) -> tuple[dict[str, str], str]:
    """Return the sizes of the training and the validation part by name, and a note if they are unknown.

    They are counted in the data on this machine. Reports are shared, so the note does not reveal whether a file with
    the name in the model's card exists on this machine.
    """
    trained_model = subject.trained_model
    if trained_model is None:
        return {}, "The sizes of the parts are not known before a model is saved."
    try:
        data = open_training_data(trained_model)
    except (UserError, OSError):
        return {}, "The sizes of the parts are not recorded, and the data is missing or has changed since the training."
    if data is None:
        return {}, ""
    return dict(zip(("Training part", "Validation part"), _describe_parts(data), strict=True)), ""


def _describe_parts(data: TrainingData) -> tuple[str, str]:
    """Return descriptions of the training and the validation part."""
    match data:
        case ParallelCorpus():
            train, validation = (
                f"{len(part):,} pairs; {len(part.source):,} source and {len(part.target):,} target tokens"
                for part in (data.train, data.validation)
            )
        case QueryCorpus():
            train, validation = (
                f"{len(part):,} pairs; {len(part.queries):,} query and {len(part.documents):,} document tokens"
                for part in (data.train, data.validation)
            )
        case LabelCorpus() | ConversationCorpus():
            unit = "texts" if isinstance(data, LabelCorpus) else "conversations"
            train, validation = (
                f"{len(part):,} {unit}, {len(part.ids):,} tokens" for part in (data.train, data.validation)
            )
        case Corpus():
            train = f"{data.train_tokens:,} tokens" + (f", {data.train_bytes:,} bytes" if data.train_bytes else "")
            validation = f"{len(data.validation):,} tokens, {data.validation_bytes:,} bytes"
            if unknown := data.unknown_share:
                validation += f"; {describe_unknown(unknown)}"
    return train, validation


def recipe_section(subject: ReportSubject) -> Section:
    """Return the section with the recipe, which is collapsed, and the settings that were changed during the run."""
    if not subject.recipe:
        return Section(id="recipe", title="The recipe", body=missing("No recipe is recorded with this model."))
    yaml = collapsed_block(
        "recipe.yaml", element("pre", element("code", write_yaml(dict(subject.recipe))), tabindex="0")
    )
    return Section(id="recipe", title="The recipe", body=join(yaml, _changes_table(subject)))


def _changes_table(subject: ReportSubject) -> Markup:
    changes: list[tuple[Any, Any, Any, Any]] = []
    if subject.record is not None:
        changes = [(change.step, change.key, change.old, change.new) for change in subject.record.changes]
    elif subject.trained_model is not None:
        keys = ("step", "key", "old", "new")
        changes = [tuple(change.get(key) for key in keys) for change in subject.trained_model.card.changes]  # type: ignore[misc]
    if not changes:
        return Markup()
    rows = [(str(key), str(step), show(old), show(new)) for step, key, old, new in changes]
    return scrolling_table(
        rows, label="Changed since the start of the run", header=("key", "after step", "before", "now"),
        right=(False, True),
    )  # fmt: skip


def versions_section(subject: ReportSubject) -> Section:
    """Return the section with the versions of the software that trained the model."""
    trained_model = subject.trained_model
    if trained_model is None or not (trained_model.card.versions or trained_model.card.git_commit):
        return Section(id="versions", title="Versions", body=missing("No versions are recorded with this model."))
    versions = {**trained_model.card.versions, "git commit": trained_model.card.git_commit or ""}
    facts = facts_list({name: one_line(version) for name, version in versions.items()})
    body = join(paragraph("The model was trained with:"), facts)
    return Section(id="versions", title="Versions", body=body)


def _format_settings(settings: Mapping[str, Any]) -> str:
    """Return `{"kind": "tail", "fraction": 0.1}` as "tail, fraction 0.1", without unset values."""
    parts = [str(settings["kind"])] if settings.get("kind") else []
    parts += [
        f"{key.replace('_', ' ')}{'' if value is True else f' {_value(value)}'}"
        for key, value in settings.items()
        if key != "kind" and value not in (None, False, [], (), {})
    ]
    return one_line(", ".join(parts))


def _value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else format_value(value) if isinstance(value, int) else show(value)
