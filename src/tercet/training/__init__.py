"""Training with Lightning. No other package uses Lightning, and it is imported only when a run starts."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.training.optim.optimizers import parameter_groups as parameter_groups
    from tercet.training.optim.schedules import CustomSchedule as CustomSchedule
    from tercet.training.optim.specs import CustomOptimizer as CustomOptimizer
    from tercet.training.recipe.files import recipe_names as recipe_names
    from tercet.training.recipe.files import recipe_text as recipe_text
    from tercet.training.recipe.recipe import Recipe as Recipe
    from tercet.training.recipe.recipe import load_recipe as load_recipe
    from tercet.training.recipe.recipe import parse_recipe as parse_recipe
    from tercet.training.recipe.specs import LoggingSpec as LoggingSpec
    from tercet.training.recipe.specs import TrainingSpec as TrainingSpec
    from tercet.training.run.finish import Interrupted as Interrupted
    from tercet.training.run.fit import RunDiverged as RunDiverged
    from tercet.training.run.train import train as train
    from tercet.training.run_folder.changes import read_recipe as read_recipe
else:
    export_lazily(__name__)
