"""Figures of a run, of its model, and of ideas without a model (masks, schedules, label smoothing), with matplotlib.

Notebooks display a Figure, and `save` writes it to a file.

save(plot_attention(load_model("runs/mine"), "The cat sat"), Path("cat.png"))
"""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.plots.attention_maps import plot_attention as plot_attention
    from tercet.plots.calibration import ReliabilityBin as ReliabilityBin
    from tercet.plots.calibration import plot_calibration as plot_calibration
    from tercet.plots.curves import plot_loss as plot_loss
    from tercet.plots.curves import plot_score as plot_score
    from tercet.plots.masks import plot_masks as plot_masks
    from tercet.plots.neighbors import plot_neighbors as plot_neighbors
    from tercet.plots.picture_file import NothingToDraw as NothingToDraw
    from tercet.plots.picture_file import check_picture as check_picture
    from tercet.plots.picture_file import save as save
    from tercet.plots.positions import plot_position_schemes as plot_position_schemes
    from tercet.plots.positions import plot_positions as plot_positions
    from tercet.plots.schedule import plot_schedule as plot_schedule
    from tercet.plots.schedule import plot_schedules as plot_schedules
    from tercet.plots.smoothing import plot_smoothing as plot_smoothing
else:
    export_lazily(__name__)
