"""Diagnosis of this machine and of the connections between ranks, for runs that are slow or fail."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.diagnosis.cluster import ClusterFacts as ClusterFacts
    from tercet.diagnosis.cluster import GPUDevice as GPUDevice
    from tercet.diagnosis.cluster import RankPlace as RankPlace
    from tercet.diagnosis.custom_part import check_part as check_part
    from tercet.diagnosis.machine import Diagnosis as Diagnosis
    from tercet.diagnosis.machine import doctor as doctor
    from tercet.diagnosis.part_checks import PartChecks as PartChecks
    from tercet.diagnosis.ranks import RankReport as RankReport
    from tercet.diagnosis.ranks import meet_ranks as meet_ranks
    from tercet.diagnosis.recipe_use import RecipeUse as RecipeUse
    from tercet.diagnosis.recipe_use import diagnose_recipe as diagnose_recipe
else:
    export_lazily(__name__)
