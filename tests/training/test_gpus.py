"""Descriptions of clusters, and GPU names as reported by drivers."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.training.planning import GPUS, Cluster, parse_cluster
from tercet.training.planning.gpus import GIB, find_by_device_name


@pytest.mark.parametrize(
    ("text", "nodes", "count", "name"),
    [
        ("8xH100", 1, 8, "H100 SXM"),
        ("H100", 1, 1, "H100 SXM"),
        ("2x8xh100", 2, 16, "H100 SXM"),
        ("4xa100-40gb", 1, 4, "A100 40GB"),
        ("4xA100-80GB", 1, 4, "A100 80GB"),
        ("1xH100 PCIe", 1, 1, "H100 PCIe"),
        ("1xRTX 4090", 1, 1, "RTX 4090"),
        ("2x3090", 1, 2, "RTX 3090"),
        ("4x48GiB@150TFLOPS", 1, 4, "GPU"),
        ("2x4x48gb @ 150.5 tflops", 2, 8, "GPU"),
        ("16GiB", 1, 1, "GPU"),
    ],
)
def test_a_cluster_is_read(text: str, nodes: int, count: int, name: str) -> None:
    cluster = parse_cluster(text)
    assert (cluster.nodes, cluster.count, cluster.gpu.name) == (nodes, count, name)


def test_free_form_cluster_has_memory_and_speed() -> None:
    gpu = parse_cluster("4x48GiB@150TFLOPS").gpu
    assert (gpu.memory_bytes, gpu.peak_flops) == (48 * GIB, 150e12)
    assert parse_cluster("48GiB").gpu.peak_flops is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("8xH10", "unknown GPU 'H10' (free form: 4x48GiB@150TFLOPS); did you mean 'H100'?"),
        ("abacus", "known: A10, A100"),
        ("8x", ": not a cluster; pass 8xH100"),
        ("", "not a cluster"),
        ("-3xH100", "unknown GPU '-3xH100'"),
        ("0xH100", "0 GPUs; pass 1 to 65,536"),
        ("999999x999999xH100", "GPUs; pass 1 to 65,536"),
        ("4x48GiB@0TFLOPS", "memory must be above 0 and at most 1048576 GiB"),
        ("4x48GiB@fast", "not a cluster"),
        ("4x0GiB", "memory must be above 0 and at most 1048576 GiB"),
    ],
)
def test_invalid_cluster_is_rejected_with_remedy(text: str, words: str) -> None:
    with pytest.raises(UserError) as error:
        parse_cluster(text)
    assert words in str(error.value)


@pytest.mark.slow
@given(
    st.one_of(st.text(max_size=40), st.from_regex(r"(\d{1,12}x){0,3}(H100|\d{1,9}(\.\d{0,3})?GiB(@\d{0,12}TFLOPS)?)?"))
)
def test_any_text_is_a_cluster_or_one_error_line(text: str) -> None:
    with suppress(UserError):
        cluster = parse_cluster(text)
        assert isinstance(cluster, Cluster)
        assert 1 <= cluster.nodes <= cluster.count <= 1 << 16
        assert cluster.gpu.memory_bytes > 0
        assert cluster.count % cluster.nodes == 0


@given(st.sampled_from(list(GPUS)), st.integers(1, 64))
def test_each_name_of_the_table_is_understood(name: str, count: int) -> None:
    assert parse_cluster(f"{count}x{name}") == Cluster(GPUS[name], count)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB"),
        ("Tesla V100-SXM2-16GB", "V100 16GB"),
        ("Tesla T4", "T4"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA RTX A6000", None),
        ("NVIDIA GeForce GTX 1080", None),
    ],
)
def test_a_drivers_name_is_found(device: str, name: str | None) -> None:
    gpu = find_by_device_name(device, 7)
    assert (None if gpu is None else gpu.name) == name
    assert gpu is None or gpu.memory_bytes == 7
