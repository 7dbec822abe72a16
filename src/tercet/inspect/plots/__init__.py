"""Pictures of a run, of its model, and of ideas that need neither; each is a matplotlib Figure, which a notebook shows
and `save` writes.

save(plot_attention(load_model("runs/mine"), "The cat sat"), Path("cat.png"))
"""

from tercet.inspect.pictures import NothingToDraw as NothingToDraw
from tercet.inspect.pictures import check_picture as check_picture
from tercet.inspect.pictures import save as save
from tercet.inspect.plots.curves import plot_loss as plot_loss
from tercet.inspect.plots.curves import plot_score as plot_score
from tercet.inspect.plots.maps import plot_attention as plot_attention
from tercet.inspect.plots.masks import plot_masks as plot_masks
from tercet.inspect.plots.neighbours import plot_neighbours as plot_neighbours
from tercet.inspect.plots.positions import plot_position_schemes as plot_position_schemes
from tercet.inspect.plots.positions import plot_positions as plot_positions
from tercet.inspect.plots.schedule import plot_schedule as plot_schedule
from tercet.inspect.plots.schedule import plot_schedules as plot_schedules
from tercet.inspect.plots.smoothing import plot_smoothing as plot_smoothing
