"""The parser of kernel contracts reads a contract correctly."""

import pytest
import torch

from tercet.kernel.contract import Contract


def test_contract_is_parsed() -> None:
    contract = Contract("test", x="float32|int8[* H%G K%8] rows", y="float32[G #H]?", z="bool[]?")
    assert contract.sizes(torch.zeros(3, 5, 4, 16), torch.zeros(2, 4), None)["*"] == (3, 5)
    assert contract.fits(torch.zeros(4, 16), torch.zeros(2, 1), torch.tensor(True))
    for x, y in (((3, 16), (2, 3)), ((4, 12), (2, 4)), ((4, 16), (0, 4)), ((0, 16), (2, 1)), ((16,), (2, 4))):
        assert not contract.fits(torch.zeros(x), torch.zeros(y), None)
    assert not contract.fits(torch.zeros(4, 32)[:, ::2], torch.zeros(2, 4), None)
    with pytest.raises(ValueError, match="form"):
        Contract("test", x="float32(B T)")
    with pytest.raises(ValueError, match="y None"):
        Contract("test", x="float32[B]", y="float32[B]").sizes(torch.zeros(3), None)
