"""Checks of exercise 2: embeddings and sinusoidal positions. The reference is `tercet.nn.specs.Sinusoidal`."""

from types import ModuleType

import torch
from torch import Tensor

from tercet.learn.compare import explain, normal
from tercet.nn.specs import Sinusoidal

LENGTH, WIDTH = 7, 6
IDS = torch.tensor([[3, 1, 4, 1], [5, 0, 2, 6]])


def reference(length: int, width: int, first: int = 0) -> Tensor:
    """Return the vectors of `length` positions from `first` on (T, D)."""
    vectors = Sinusoidal().build(d_model=width).embed(torch.arange(first, first + length)[None])
    assert vectors is not None  # not a scheme that acts on attention only
    return vectors[0]


def check_positions(solution: ModuleType) -> str | None:
    columns = torch.arange(WIDTH)
    positions = torch.arange(LENGTH)[:, None].float()
    expected = reference(LENGTH, WIDTH)
    sines, cosines = expected[:, 0::2], expected[:, 1::2]

    def angles_to_columns(exponents: Tensor) -> Tensor:
        angles = positions / 10_000.0**exponents
        return torch.where(columns % 2 == 0, angles.sin(), angles.cos())

    return explain(
        solution.sinusoidal_positions(LENGTH, WIDTH),
        expected,
        {
            "sines and cosines are in separate halves; sine and cosine alternate: column 2i and 2i + 1": torch.cat(
                (sines, cosines), dim=-1
            ),
            "sine and cosine are swapped; even columns have the sine": torch.stack((cosines, sines), -1).flatten(-2),
            "positions are counted from 1; the first position is 0": reference(LENGTH, WIDTH, first=1),
            "the exponent is i / D; it must be 2i / D": angles_to_columns(columns // 2 / WIDTH),
            "each column has its own frequency; columns 2i and 2i + 1 share one": angles_to_columns(columns / WIDTH),
            "the exponent is twice too large; 2i is the number of the even column": angles_to_columns(
                2 * (columns - columns % 2) / WIDTH
            ),
        },
    )


def check_other_sizes(solution: ModuleType) -> str | None:
    for length, width in ((1, 2), (50, 16)):
        problem = explain(
            solution.sinusoidal_positions(length, width),
            reference(length, width),
            name=f"sinusoidal_positions({length}, {width})",
            absolute=1e-5,  # the rounding error of an angle grows with the position
        )
        if problem is not None:
            return problem
    return None


def check_embed(solution: ModuleType) -> str | None:
    table = normal(8, WIDTH)
    rows, positions, scale = table[IDS], reference(IDS.shape[1], WIDTH), WIDTH**0.5
    expected = rows * scale + positions
    return explain(
        solution.embed(IDS, table),
        expected,
        {
            "the embeddings are not multiplied by sqrt(D)": rows + positions,
            "the embeddings are multiplied by D instead of sqrt(D)": rows * WIDTH + positions,
            "the embeddings are divided by sqrt(D) instead of multiplied": rows / scale + positions,
            "the positions are scaled too; add them after the multiplication by sqrt(D)": (rows + positions) * scale,
            "the vectors of the positions are not added": rows * scale,
            "the vectors of the ids are added; the position of a token is its place in the row": (
                rows * scale + reference(8, WIDTH)[IDS]
            ),
        },
    )


def check_order_matters(solution: ModuleType) -> str | None:
    result = solution.embed(torch.tensor([[2, 2]]), normal(8, WIDTH))
    if torch.equal(result[0, 0], result[0, 1]):
        return "the same token has the same vector at two positions; add the vectors of the positions"
    return None


def check_gradient(solution: ModuleType) -> str | None:
    table = normal(8, WIDTH).requires_grad_()
    solution.embed(IDS, table).sum().backward()
    if table.grad is None:
        return "no gradient reaches the table; use operations of PyTorch, without .detach() or .item()"
    counts = torch.bincount(IDS.flatten(), minlength=8)[:, None].expand(8, WIDTH)
    return explain(table.grad, counts * WIDTH**0.5, name="the gradient of the table")


CHECKS = {
    "sinusoidal_positions equals the reference": check_positions,
    "sinusoidal_positions equals the reference for other lengths and widths": check_other_sizes,
    "embed equals the reference": check_embed,
    "embed gives a token different vectors at different positions": check_order_matters,
    "embed passes the gradient to the table": check_gradient,
}
