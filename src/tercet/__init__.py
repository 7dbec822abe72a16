"""Transformers from scratch on your own text: train a model, load it, and use it.

    run = tercet.train("demo", data="my_texts/", out="runs/mine", changes={"training.max_steps": 500})
    print(run.generate("Once upon a time", temperature=0.8))

    run = tercet.train("numbers", out="runs/numbers")
    print(run.translate("twenty-seven"))

    run = tercet.load("runs/bert")
    print(run.fill("The [MASK] sat.").masks[0][0].word, run.embed(["one text", "another"]).shape)

    compared = tercet.compare(["nanogpt-cpu"], vary={"model.stack.placement": ["pre", "post"]}, seeds=[1, 2, 3])
    print(compared.rows[0].name, compared.rows[0].scores["nats_per_token"].mean)

    swept = tercet.sweep("nanogpt-cpu", vary={"training.optimizer.lr": "0.001..0.1"}, trials=9)
    print(swept.verdict, swept.command)

    with tercet.Engine(tercet.load("runs/mine")) as engine:
        streams = [engine.submit("Once upon a time", seed=seed) for seed in range(8)]
        print([stream.text() for stream in streams])

    tercet.seal_data("my_texts/", "sealed")
    print(tercet.evaluate_sealed(["runs/mine", "runs/other"], "sealed").models_scored)

    tercet.convert("runs/mine", "mine-for-transformers", to="hf")
    print(tercet.export_problems(tercet.load("runs/mine").model.spec))
    print(tercet.verify("runs/mine").damaged)
    print(tercet.doctor().kernel_reason)
    tercet.watch("runs/mine", "runs/other")
    print(tercet.report("runs/mine", "mine.html"))
    print([finding.found for finding in tercet.check_data("my_texts/").findings])
    print(tercet.plan("gpt2-124m", gpus="8xH100", mfu=0.4).time)

The building blocks are in `tercet.nn` and `tercet.models`. Recipes and their keys are described in
docs/reference/settings.md.
"""

from typing import TYPE_CHECKING, Any

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.api import forecast as forecast
    from tercet.api import load as load
    from tercet.api import plan as plan
    from tercet.api import train as train
    from tercet.checkpoint import convert as convert
    from tercet.checkpoint import export_problems as export_problems
    from tercet.checkpoint import verify as verify
    from tercet.dashboard import watch as watch
    from tercet.data import check_data as check_data
    from tercet.data.sealing.seal_data import seal_data as seal_data
    from tercet.diagnosis import doctor as doctor
    from tercet.evaluate.sealed.evaluate_sealed import evaluate_sealed as evaluate_sealed
    from tercet.reports import report as report
    from tercet.run import Run as Run
    from tercet.serve.engine import Engine as Engine
    from tercet.training.run_folder.choices import FromWeights as FromWeights
    from tercet.training.run_folder.choices import More as More
    from tercet.training.run_folder.choices import Restart as Restart
    from tercet.training.run_folder.choices import Resume as Resume
    from tercet.training.run_folder.choices import Until as Until
    from tercet.training.sweep.compare_runs import compare as compare
    from tercet.training.sweep.search_runs import sweep as sweep
else:
    export_lazily(__name__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from tercet.version import tercet_version

        return tercet_version()
    raise AttributeError(f"module 'tercet' has no attribute {name!r}")
