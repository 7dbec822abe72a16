"""From a recipe to a run folder, stage by stage: opened, locked, started, trained, finished."""
